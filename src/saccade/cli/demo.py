"""`saccade demo`: the whole workflow on scikit-learn's handwritten digits."""

from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.arguments import examples
from saccade.cli.output import say
from saccade.cli.predict import show_table


@examples(
    "saccade demo",
    "saccade demo --epochs 5",
    "saccade demo --out runs/digits --epochs 10",
)
def demo(
    out: Annotated[Path, typer.Option(help="Run folder; -2, -3, ... is added if it exists.")] = Path(
        "runs/demo"
    ),
    epochs: Annotated[int, typer.Option(help="Passes over the digits.")] = 70,
) -> None:
    """Train, test and explain a small model on handwritten digits."""
    from saccade.api.demo import run_demo

    typer.echo(run_demo(out, epochs, say, show_table))
