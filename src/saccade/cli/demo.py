"""`saccade demo`: the whole workflow on digits painted over photographs, command by command."""

import re
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO, TextIOBase
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from saccade.cli.arguments import examples
from saccade.cli.output import say
from saccade.wording import duration

RECIPE = """\
# A small ViT with convolutions before its 36 tokens, from scratch: saccade train DATA --recipe FILE
model = "conv_vit_xs16_96"
seed = {seed}
droppath = 0

[budget]
epochs = {epochs}
batch = 16

[augment]
flip = 0  # a mirrored 2 is not a 2
crop = [0.6, 1.0]
policy = "none"

[mix]
mixup = 0
cutmix = 0
"""
KEEP = 0.7
OWN = (
    "saccade check photos",
    "saccade train photos",
    "saccade explain runs/photos photos/cat/1.jpg --html why.html",
)
"""Three next commands."""


if TYPE_CHECKING:
    from saccade.api.demo import WildDigits


@dataclass(frozen=True, slots=True)
class Step:
    """A command, and how to sum up what it printed."""

    title: str
    words: list[str]
    result: Callable[[str], str]

    @property
    def command(self) -> str:
        """The command as a user would type it."""
        return shlex.join(["saccade", *self.words])


@dataclass(eq=False)
class Status(TextIOBase):
    """Takes the messages of a command: a log file gets all, a terminal shows the last line while it runs."""

    log: Path
    terminal: TextIO = field(default_factory=lambda: sys.stderr)
    _line: str = ""

    def write(self, text: str, /) -> int:
        with self.log.open("a", encoding="utf-8") as file:
            file.write(text)
        *lines, self._line = (self._line + text).split("\n")
        if shown := next((line for line in reversed(lines) if line.strip()), ""):
            self._show(f"   {shown.strip()}")
        return len(text)

    def isatty(self) -> bool:
        return False

    def clear(self) -> None:
        """Remove the line that is shown."""
        self._show("")

    def _show(self, line: str) -> None:
        if self.terminal.isatty():
            self.terminal.write(f"\r\033[K{line[: get_terminal_size().columns - 1]}")
            self.terminal.flush()


@examples(
    "saccade demo",
    "saccade demo --epochs 1 --images 200",
    "saccade demo --out runs/digits --seed 1",
)
def demo(
    out: Annotated[Path, typer.Option(help="Folder; -2, -3, ... is added if it exists.")] = Path("runs/demo"),
    epochs: Annotated[int, typer.Option(help="Passes over the training images.")] = 12,
    images: Annotated[int, typer.Option(help="Training images to make.")] = 4000,
    seed: Annotated[int, typer.Option(help="Of the dataset and of the training.")] = 0,
) -> None:
    """Try the whole workflow on digits in photographs."""
    from saccade.api.demo import write_digits
    from saccade.errors import check_number
    from saccade.files.atomic import new_folder, write_text

    check_number("epochs", epochs, 1, 10_000)
    check_number("images", images, 100, 100_000)
    check_number("seed", seed, 0, 2**31)
    start = time.monotonic()
    folder = new_folder(out)
    say(f"Digits in the wild: handwritten digits on photographs, in {folder}")
    made = write_digits(folder, images, seed)
    say("   a class folder for each digit, a mask for each test image that shows where the digit is")
    write_text(folder / "recipe.toml", RECIPE.format(seed=seed, epochs=epochs))
    for number, step in enumerate(_steps(folder, made), 1):
        say(f"\n{number}. {step.title}\n   $ {step.command}")
        say(f"   {_run(step, folder / 'demo.log')}")
    say(f"\nDone in {duration(time.monotonic() - start)}. Everything is in {folder}:")
    for words, name in (
        ("how the training went", "model/report.html"),
        ("one explanation to click through", "why.html"),
        ("all messages of the commands above", "demo.log"),
    ):
        say(f"   {folder / name}  {words}")
    say("\nNow your own photographs, a folder for each class:")
    for command in OWN:
        say(f"   {command}")
    typer.echo(folder)


def _steps(folder: Path, made: "WildDigits") -> list[Step]:
    recipe, model, pruned, graph = (str(folder / name) for name in ("recipe.toml", "model", "pruned", "onnx"))
    images, unseen = str(made.images), str(made.unseen)
    return [
        Step("Look for mistakes in the dataset", ["check", images], _last),
        Step(
            "Train a small ViT from scratch",
            ["train", images, "--recipe", recipe, "--out", model],
            _line("result "),
        ),
        Step(
            "Score it on digits and photographs that it has not seen",
            ["evaluate", model, images, "--split", "test"],
            _line("accuracy "),
        ),
        Step(
            "Does its explanation find the digit, and is it faithful?",
            ["explain", model, unseen, "--masks", str(made.masks)],
            _last,
        ),
        Step(
            "Explain one answer, on a page to click through",
            ["explain", model, str(min(made.unseen.rglob("*.png"))), "--html", str(folder / "why.html")],
            _last,
        ),
        Step(
            "Make it faster: merge similar patches, without training",
            ["prune", model, images, "--how", "merge", "--keep", str(KEEP), "--out", pruned],
            _pruned,
        ),
        Step(
            "Export it as an ONNX graph, checked against the model",
            ["export", pruned, graph, "--to", "onnx", "--data", images],
            _line("top-1 agreement"),
        ),
        Step(
            "Predict with the graph, which needs no PyTorch",
            ["predict", graph, unseen, "--top", "1"],
            _correct,
        ),
    ]


def _line(start: str) -> Callable[[str], str]:
    """Return what picks the last line that begins so, its columns a space apart."""

    def pick(text: str) -> str:
        found = [" ".join(line.split()) for line in text.splitlines()]
        return next((line for line in reversed(found) if line.startswith(start)), "done")

    return pick


def _last(text: str) -> str:
    """Return the last paragraph in one line."""
    return " ".join(text.strip().split("\n\n")[-1].split())


def _pruned(text: str) -> str:
    """Return what changed, from the table of the model and its pruned copy."""
    cells = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    rows = {row[0].partition(" (")[0]: row for row in cells if len(row) == 4}
    _, before, after, _ = rows["accuracy"]
    times = [
        row[3].partition(" (")[0] + row[0].removeprefix("time")
        for row in rows.values()
        if " as fast" in row[3]
    ]
    return f"accuracy {before} -> {after}, {rows['multiply-accumulates'][3]} operations; {times[-1]}"


def _correct(text: str) -> str:
    """Compare a table of predictions with the folders of the images."""
    rows = [line.split() for line in text.splitlines() if ".png " in line]
    right = sum(Path(row[0]).parent.name == row[-1] for row in rows)
    return f"{right} of {len(rows)} digits recognised"


def _run(step: Step, log: Path) -> str:
    """Run a command in this process; return its result in one line."""
    from saccade.cli.app import build_app

    printed, status = StringIO(), Status(log)
    status.write(f"$ {step.command}\n")
    with redirect_stdout(printed), redirect_stderr(status):
        build_app((step.words[0],))(step.words, prog_name="saccade", standalone_mode=False)
    status.write(printed.getvalue())
    status.clear()
    return step.result(log.read_text(encoding="utf-8").rpartition("\n$ ")[2])
