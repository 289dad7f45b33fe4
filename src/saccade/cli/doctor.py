"""`saccade doctor`: is this machine, and is this model, in order?"""

import json
import os
import platform
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade import __version__
from saccade.errors import DataError, UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

    from saccade.data.image.preprocess import Preprocess

EXTRAS = {"huggingface_hub": "hub"}
MOST = 64
COLOURS = {"ok": "green", "unknown": "yellow", "wrong": "red"}


def doctor(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="A model to test; without one, the machine.")
    ] = None,
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
    from importlib import metadata, util

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
        if util.find_spec(package) is None:
            rows.append((package, "unknown", f"not installed: pip install 'saccade[{extra}]'"))
        else:
            rows.append((package, "ok", metadata.version(package)))
    return rows


def examine(word: str, folder: Path | None) -> list[Row]:
    """What a model is, and the self-tests of saccade.weights.diagnose."""
    from saccade.cli.note import looked
    from saccade.weights.identify import locate

    found = looked(locate(word))
    from saccade.models.cost import parameters
    from saccade.weights import diagnose as tests
    from saccade.weights.load import load

    loaded = load(found.path)
    module, preprocess = loaded.module, loaded.preprocess
    shape = f"{type(module).__name__} of {parameters(module):,} parameters: {module.config}"
    labelled = "ok" if loaded.labels or not module.config.classes else "unknown"
    rows = [
        ("layout", "ok", f"{loaded.layout}, {len(found.headers)} tensors, {len(loaded.unused)} not needed"),
        ("model", "ok", shape),
        ("preprocessing", "ok", str(preprocess)),
        ("labels", labelled, f"{len(loaded.labels)} of {module.config.classes}"),
    ]
    if found.code:
        rows.append(("code", "ok", f"the model names code of its own ({', '.join(found.code)}); ignored"))
    results = list(tests.check_weights(module))
    results.append(tests.check_probe(module, preprocess, found.model and found.model.get("probe")))
    if folder is None:
        words = "give ordinary pictures with --pictures to test it"
        results.append(tests.Finding("normalisation", "unknown", words))
    else:
        results.append(tests.check_normalisation(module, preprocess, _pictures(folder, preprocess)))
    return rows + [(r.test, r.verdict, r.words) for r in results]


def _pictures(folder: Path, preprocess: "Preprocess") -> list["Image"]:
    """Up to MOST pictures, taken evenly from all; those that cannot be read are left out."""
    from saccade.cli.predict import find

    given = [source for _, source in find([str(folder)])]
    views = []
    for source in given[:: max(1, len(given) // MOST)][:MOST]:
        try:
            views.append(preprocess.view(source))
        except DataError:
            continue
    if not views:
        raise DataError(f"none of the {len(given)} pictures in {str(folder)!r} can be read")
    return views


def _show(rows: list[Row]) -> None:
    from saccade.cli.table import table

    lines = table(rows).split("\n")
    for line, (_, verdict, _) in zip(lines, rows, strict=True):
        # click drops the colour where the output is no terminal
        typer.echo(line.replace(f"  {verdict}", f"  {typer.style(verdict, fg=COLOURS[verdict])}", 1))
