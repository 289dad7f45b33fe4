"""`saccade prune`: a model that looks at fewer patches, for a share of them or for a speed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.arguments import ChangesOption, DataArgument, FormatOption, ModelArgument, examples
from saccade.cli.output import print_json, say, table

if TYPE_CHECKING:
    from saccade.vision.pruned import PrunedComparison

MUCH = 0.1
"""A loss of accuracy that is worth a note."""


@examples(
    "saccade prune runs/pets pets --keep 0.7 --how merge",
    "saccade prune runs/pets pets --keep 0.5 --set budget.epochs=2",
    "saccade prune runs/pets pets --target-ms 1000 --json",
)
def prune(
    model: ModelArgument,
    data: DataArgument = "",
    keep: Annotated[
        float | None, typer.Option(help="Share of the patches kept at each pruning stage.")
    ] = None,
    target_ms: Annotated[
        float | None, typer.Option(help="Target time per answer on this machine, in milliseconds.")
    ] = None,
    speed_up: Annotated[
        float | None, typer.Option(help="Target speed-up over the dense model on this machine.")
    ] = None,
    how: Annotated[
        str,
        typer.Option(
            help="With --keep: drop (trains), or without training merge, merge-paper (matched as published), "
            "attention, random."
        ),
    ] = "drop",
    batch: Annotated[int, typer.Option(help="Batch size at which the speed is measured.")] = 1,
    minutes: Annotated[float | None, typer.Option(help="Train for this many minutes.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; default runs/<name of the model>-pruned.")] = None,
    changes: ChangesOption = None,
    kind: FormatOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the measurements as JSON.")] = False,
) -> None:
    """Make a model faster by dropping patches."""
    from saccade.api.prune import prune as prune_model

    result = prune_model(
        model, data, say, keep, target_ms, speed_up, how, batch, minutes, out, changes or [], kind
    )
    if result is None:
        return
    if result.comparison is None:
        typer.echo(model)
        return
    _print_comparison(result.folder, result.comparison, as_json)


def _print_comparison(folder: Path, found: "PrunedComparison", as_json: bool) -> None:
    """Print a table and the folder, or JSON with both."""
    from saccade.vision import pruned

    if as_json:
        print_json({"folder": str(folder), **pruned.comparison_facts(found)})
        return
    say(f"{found.plan}\n{table(pruned.comparison_rows(found), right=(1, 2))}")
    if found.lost > MUCH:
        say(
            f"note: {100 * found.lost:.0f} points were lost; ask for less speed, or train it further with "
            f"`saccade train DATA --model {folder}`"
        )
    typer.echo(folder)
