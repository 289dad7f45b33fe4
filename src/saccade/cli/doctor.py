"""`saccade doctor`: is this machine, and is this model, in order?"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
from pathlib import Path
from typing import Annotated

import typer

from saccade import __version__
from saccade.errors import UsageError
from saccade.weights.look import locate, look

EXTRAS = {"huggingface_hub": "hub"}
MOST = 64


def doctor(
    model: Annotated[str | None, typer.Argument(help="A model to test; without one, the machine.")] = None,
    pictures: Annotated[
        Path | None, typer.Option(help="A folder of ordinary pictures to test it on.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check the machine, or a model file: `saccade doctor vit.npz --pictures holiday/`."""
    if model is None and pictures is not None:
        raise UsageError("--pictures was given without a model; name the model to test on them first")
    rows = machine() if model is None else examine(model, pictures)
    if as_json:
        typer.echo(json.dumps([{"test": t, "verdict": v, "words": w} for t, v, w in rows], indent=2))
    else:
        _show(rows)
    if any(verdict == "wrong" for _, verdict, _ in rows):
        raise typer.Exit(1)


Row = tuple[str, str, str]


def machine() -> list[Row]:
    """What is installed, and what there is of cores, memory and disk."""
    import torch

    rows = [("saccade", "ok", f"{__version__}, Python {platform.python_version()}, {platform.platform()}")]
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "none"
    level = torch.backends.cpu.get_cpu_capability()
    rows.append(("torch", "ok", f"{torch.__version__}, {torch.get_num_threads()} threads, {level}"))
    rows.append(("accelerator", "ok", str(accelerator)))
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    rows.append(("memory", "ok", f"{pages / 2**30:.0f} GiB"))
    free = shutil.disk_usage(".").free
    rows.append(("disk", "ok" if free > 2**30 else "wrong", f"{free / 2**30:.0f} GiB free here"))
    for package, extra in EXTRAS.items():
        if importlib.util.find_spec(package) is None:
            rows.append((package, "unknown", f"not installed: pip install 'saccade[{extra}]'"))
        else:
            rows.append((package, "ok", importlib.metadata.version(package)))
    return rows


def examine(word: str, folder: Path | None) -> list[Row]:
    """What a model is, and the self-tests of saccade.weights.doctor."""
    found = look(locate(word))
    from saccade.cli.predict import find
    from saccade.models.cost import parameters
    from saccade.weights import doctor as tests
    from saccade.weights.load import load

    loaded = load(found.path)
    module, preprocess = loaded.module, loaded.preprocess
    rows = [
        ("layout", "ok", f"{loaded.layout}, {len(found.headers)} tensors, {len(loaded.unused)} not needed")
    ]
    rows.append(
        ("model", "ok", f"{type(module).__name__} of {parameters(module):,} parameters: {module.config}")
    )
    rows.append(("preprocessing", "ok", str(preprocess)))
    rows.append(
        ("labels", "ok" if loaded.labels else "unknown", f"{len(loaded.labels)} of {module.config.classes}")
    )
    results = list(tests.check_weights(module))
    results.append(tests.check_probe(module, preprocess, found.model and found.model.get("probe")))
    if folder is None:
        words = "give ordinary pictures with --pictures to test it"
        results.append(tests.Finding("normalisation", "unknown", words))
    else:
        given = [source for _, source in find([str(folder)])]
        step = max(1, len(given) // MOST)
        results.append(tests.check_normalisation(module, preprocess, given[::step][:MOST]))
    return rows + [(r.test, r.verdict, r.words) for r in results]


def _show(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    colours = {"ok": "green", "unknown": "yellow", "wrong": "red"}
    table = Table(box=None, show_header=False, pad_edge=False)
    for test, verdict, words in rows:
        table.add_row(escape(test), f"[{colours[verdict]}]{verdict}[/]", escape(words))
    Console(highlight=False).print(table)
