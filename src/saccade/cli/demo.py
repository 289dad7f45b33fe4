"""`saccade demo`: train a small ViT on scikit-learn's digits in seconds, and let it name some pictures."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Where to put the run; a number is added if it exists.")] = Path(
        "runs/demo"
    ),
    seconds: Annotated[float, typer.Option(help="How long to train.")] = 20.0,
) -> None:
    """Train, save and ask a small ViT on handwritten digits: `saccade demo --seconds 20`."""
