"""`saccade evaluate`: how often is a model right on labelled pictures?"""

import json
from typing import Annotated

import typer

from saccade.cli.parse import DataArgument, FormatOption, ModelArgument
from saccade.errors import DataError, ModelError, UsageError
from saccade.weights.look import locate, look


def evaluate(
    model: ModelArgument,
    data: DataArgument,
    split: Annotated[
        str, typer.Option(help="train, val or test; default: the first of test, val, train.")
    ] = "",
    kind: FormatOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the worst mistakes.")] = False,
) -> None:
    """Score a model on labelled pictures: `saccade evaluate runs/pets pets/test`."""
    path = locate(model)
    look(path)  # refuses a damaged file before torch is imported
    from saccade.data.open import open_images

    found = open_images(data, kind, least=1).splits
    chosen = split or next(name for name in ("test", "val", "train") if name in found)
    if chosen not in found:
        raise UsageError(f"{data} has no split {chosen!r}; it has {', '.join(found)}")
    from saccade.metrics.interval import wilson
    from saccade.train.evaluate import evaluate as scored
    from saccade.weights.load import load

    loaded = load(path)
    if not loaded.labels:
        raise ModelError(
            f"{model} has no labels, so its answers cannot be compared; convert it with --labels"
        )
    unknown = sorted(set(found[chosen].classes) - set(loaded.labels))
    if unknown:
        raise DataError(
            f"{data} has {len(unknown)} classes that the model does not know ({', '.join(unknown[:3])}); "
            f"expected folders named like its labels ({', '.join(loaded.labels[:3])}, ...)"
        )
    scores, told = scored(loaded.module, loaded.preprocess, found[chosen].relabel(loaded.labels), chosen)
    if as_json:
        typer.echo(json.dumps({"data": data, **told}, indent=2))
        return
    low, high = wilson(scores.correct, scores.count)
    typer.echo(f"accuracy           {scores.accuracy:.2%}  (95 % sure: {low:.1%} to {high:.1%})")
    typer.echo(f"top 5              {scores.top5:.2%}")
    typer.echo(f"balanced accuracy  {scores.balanced_accuracy:.2%}")
    typer.echo(f"macro F1           {scores.macro_f1:.4f}")
    typer.echo(f"loss               {scores.loss:.4f}")
    typer.echo(f"calibration error  {scores.ece:.4f}")
    typer.echo(f"pictures           {scores.count}  ({chosen})")
