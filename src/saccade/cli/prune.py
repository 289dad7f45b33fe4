"""`saccade prune`: a model that looks at fewer patches, for a share of them or for a speed."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.arguments import ChangesOption, DataArgument, FormatOption, ModelArgument
from saccade.cli.note import looked
from saccade.errors import UsageError, check_number, check_word
from saccade.weights.identify import locate

HOW = ("drop", "merge", "attention", "random")
MUCH = 0.1
"""A loss of accuracy that is worth a note."""


def prune(
    model: ModelArgument,
    data: DataArgument,
    keep: Annotated[
        float | None, typer.Option(help="Share of the patches that each of some blocks keeps.")
    ] = None,
    target_ms: Annotated[
        float | None, typer.Option(help="Milliseconds that an answer may take here.")
    ] = None,
    speed_up: Annotated[
        float | None, typer.Option(help="How many times as fast as the dense model it has to be here.")
    ] = None,
    how: Annotated[
        str, typer.Option(help="With --keep: drop (it is trained), or merge, attention, random (it is not).")
    ] = "drop",
    batch: Annotated[int, typer.Option(help="Pictures at once, for a speed.")] = 1,
    minutes: Annotated[float | None, typer.Option(help="Train for so long.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; default runs/<name of the model>-pruned.")] = None,
    changes: ChangesOption = None,
    kind: FormatOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print what was measured as JSON.")] = False,
) -> None:
    """Let a model look at fewer patches: `saccade prune runs/pets pets --keep 0.7` or `--speed-up 1.5`."""
    wanted = _wanted(keep, target_ms, speed_up)
    check_word("--how", how, HOW)
    check_number("--batch", batch, 1, 4096)
    trains = wanted is None and how == "drop"
    if not trains and (minutes is not None or changes):
        raise UsageError("--minutes and --set are for a training, and only --keep with --how drop trains")
    if wanted is not None and how != "drop":
        raise UsageError("a speed is reached by dropping or merging, whichever answers best; leave out --how")
    looked(locate(model))  # refuses a damaged file before torch is imported
    from saccade.prune import prune as pruning

    if wanted is not None:
        found = pruning.chosen(model, data, wanted, batch, out, _say, kind)
        if found is None:
            _say("the dense model is that fast already; nothing was written")
            typer.echo(model)
            return
        _tell(found, as_json)
        return
    assert keep is not None
    if not trains:
        _tell(pruning.untrained(model, data, how, keep, out, kind), as_json)
        return
    given = [*(changes or ()), *([] if minutes is None else [f"budget.minutes={minutes}"])]
    from saccade.processes import joined
    from saccade.train import start

    with joined() as team:
        run = pruning.learn(model, data, keep, out, given, kind)
        run.go()
        if team.leads:
            start.finish(run)
            _tell(run.folder, as_json)


def _wanted(
    keep: float | None, target: float | None, faster: float | None
) -> Callable[[float], float] | None:
    """From the seconds of the dense model to how many times faster it must be; None for a share."""
    options = {"--keep": keep, "--target-ms": target, "--speed-up": faster}
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} were given; give one of them")
    if keep is not None:
        if not 0 < keep < 1:
            raise UsageError(
                f"--keep is {keep:g}; expected a share of the patches above 0 and below 1, such as 0.7"
            )
        return None
    if target is not None:
        check_number("--target-ms", target, 1e-3, 1e7)
        return lambda seconds: 1e3 * seconds / target
    if faster is not None:
        check_number("--speed-up", faster, 1.01, 100)
        return lambda _: faster
    raise UsageError("nothing says how fast; give --keep 0.7, --target-ms 20 or --speed-up 1.5")


def _tell(folder: Path, as_json: bool) -> None:
    """What was measured: a table for people and the folder, or JSON with both."""
    import json

    from saccade.cli.table import table
    from saccade.vision import slim_told

    found = slim_told.read(folder)
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), **slim_told.described(found)}, indent=2))
        return
    _say(f"{found.plan}\n{table(slim_told.rows(found), right=(1, 2))}")
    if found.lost > MUCH:
        _say(
            f"note: {100 * found.lost:.0f} points were lost; ask for less speed, or go on training with "
            f"`saccade train DATA --model {folder}`"
        )
    typer.echo(folder)


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
