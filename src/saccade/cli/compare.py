"""`saccade compare`: several models on growing shares of your images."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.arguments import ChangesOption, DataArgument, FormatOption, examples
from saccade.cli.output import say, table
from saccade.errors import UsageError

if TYPE_CHECKING:
    from saccade.compare.plan import Cost, Row

FRACTIONS = "0.1,0.3,1"


@examples(
    "saccade compare pets --fractions 1 --set budget.epochs=2",
    "saccade compare pets --models vit_xs8_32,resnet18_small_32 --equal params",
    "saccade compare --resume runs/compare-pets",
)
def compare(
    data: DataArgument = "",
    models: Annotated[
        str, typer.Option(help="Comma-separated names (saccade models); default: a ViT and a ResNet.")
    ] = "",
    fractions: Annotated[
        str, typer.Option(help="Comma-separated shares of the training images to train on.")
    ] = FRACTIONS,
    equal: Annotated[
        str, typer.Option(help="params: match parameter counts; time: give each --minutes; or both.")
    ] = "",
    minutes: Annotated[float, typer.Option(help="Time for each training run, with --equal time.")] = 0.0,
    out: Annotated[Path | None, typer.Option(help="Folder; default runs/compare-<name of the data>.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Resume a comparison that was stopped.")] = None,
    changes: ChangesOption = None,
    kind: FormatOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print compare.json.")] = False,
) -> None:
    """Train several models on growing shares of your images."""
    if bool(data) == (resume is not None):
        raise UsageError("give either DATA to start a comparison or --resume FOLDER to resume one")
    others = models or equal or minutes or out or changes or kind != "auto" or fractions != FRACTIONS
    if resume is not None and others:
        raise UsageError("--resume continues a comparison exactly as it started; leave out the other options")
    shares = _numbers(fractions)
    from saccade.compare import compare, plan
    from saccade.compare.page import doubts

    if resume is None:
        folder, made = plan.begin(
            data, _words(models), shares, _words(equal), minutes, changes or (), kind, out
        )
        for note in made.notes:
            say(note)
    else:
        folder = resume
    _, rows, costs = compare.go(folder, say)
    for words in doubts(rows):
        say(f"warning: {words}")
    say(f"report: {folder / 'report.html'}")
    if as_json:
        typer.echo((folder / plan.FILE).read_text(encoding="utf-8").rstrip("\n"))
    else:
        typer.echo(_table(rows, costs))


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(text: str) -> list[float]:
    try:
        return [float(word) for word in _words(text)] or [1.0]
    except ValueError:
        raise UsageError(
            f"--fractions is {text!r}; expected comma-separated numbers such as 0.1,0.3,1"
        ) from None


HEAD = (
    *("model", "data", "images", "accuracy", "95% CI", "epochs", "trained", "params", "MACs"),
    *("1 image", "32 at once", "forward", "step", "field", "half in", "attention"),
)


def _table(rows: "list[Row]", costs: "list[Cost]") -> str:
    """Return a row per training: its result, then what its model costs."""
    by_model = {each.model: each for each in costs}
    lines = [_line(row, by_model[row.model]) for row in rows]
    return table([HEAD, *lines], right=range(1, len(HEAD)))


def _line(row: "Row", cost: "Cost") -> list[str]:
    from saccade.wording import duration, percent

    return [
        row.model,
        f"{row.fraction * 100:g}%",
        f"{row.pictures:,}",
        percent(row.accuracy),
        f"{percent(row.low)} – {percent(row.high)}",
        f"{row.epochs:.4g}",
        duration(row.seconds),
        f"{cost.parameters / 1e6:.3g} M",
        f"{cost.macs / 1e6:.3g} M",
        f"{1000 * cost.latency:.3g} ms",
        f"{cost.throughput:.4g}/s",
        f"{cost.forward / 2**20:.3g} MiB",
        f"{cost.step / 2**20:.3g} MiB",
        f"{cost.field} px" if cost.field else "all",
        f"{row.effective[0]:.3g} px",
        f"{row.blocks[0]:.3g} – {row.blocks[-1]:.3g} px" if row.attention else "",
    ]
