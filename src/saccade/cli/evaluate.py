"""`saccade evaluate`: how often is a model right on labelled pictures, how well does it translate or read?"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli.arguments import AnyDataArgument, EngineOption, FormatOption, ModelArgument
from saccade.errors import DataError, ModelError, UsageError
from saccade.weights.identify import locate, look

if TYPE_CHECKING:
    from saccade.data.pictures import Images
    from saccade.metrics.classify import Scores


def evaluate(
    model: ModelArgument,
    data: AnyDataArgument,
    split: Annotated[
        str, typer.Option(help="train, val or test; default: the first of test, val, train.")
    ] = "",
    kind: FormatOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the worst mistakes.")] = False,
    engine: EngineOption = "",
) -> None:
    """Score a model on labelled pictures: `saccade evaluate runs/pets pets/test`.

    A model of text is scored on sentence pairs or a text: `saccade evaluate runs/multi30k multi30k`.
    """
    from saccade.engine.exported import is_exported

    path = locate(model)
    graph = is_exported(path)
    if not graph and look(path).text:  # also refuses a damaged file before torch is imported
        _of_text(path, data, split, as_json)
        return
    from saccade.data.readers.open import open_images

    found = open_images(data, kind, least=1).splits
    chosen = _chosen(data, list(found), split)
    from saccade.metrics.interval import wilson

    if graph or engine:
        scores, told = _on_engine(path, model, data, found[chosen], chosen, engine or "auto")
    else:
        from saccade.tasks.classify.evaluate import evaluate as scored
        from saccade.weights.load import load

        loaded = load(path)
        _check_labels(model, data, found[chosen].classes, loaded.labels)
        images = found[chosen].relabel(loaded.labels)
        scores, told = scored(loaded.module, loaded.preprocess, images, chosen)
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


def _check_labels(model: str, data: str, classes: Sequence[str], labels: Sequence[str]) -> None:
    """Refuse data whose classes are not the model's."""
    if not labels:
        raise ModelError(
            f"{model} has no labels, so its answers cannot be compared; convert it with --labels"
        )
    unknown = sorted(set(classes) - set(labels))
    if unknown:
        raise DataError(
            f"{data} has {len(unknown)} classes that the model does not know ({', '.join(unknown[:3])}); "
            f"expected folders named like its labels ({', '.join(labels[:3])}, ...)"
        )


def _on_engine(
    path: Path, model: str, data: str, images: "Images", split: str, engine: str
) -> tuple["Scores", dict[str, Any]]:
    """The same scores from an exported graph, without torch, or from any model on the engine asked for."""
    from saccade.engine.answer import answering
    from saccade.tasks.classify.scores import judge

    answers = answering(path, engine, len(images))
    _check_labels(model, data, images.classes, answers.made.labels)
    known = images.relabel(list(answers.made.labels))
    return judge(known, *answers.table(known), split=split)


def _chosen(data: str, found: list[str], split: str) -> str:
    """The split that was asked for, or else the first of the test splits, val, train."""
    tests = [name for name in found if name not in ("train", "val")]
    chosen = split or next(name for name in (*tests, "val", "train") if name in found)
    if chosen not in found:
        raise UsageError(f"{data} has no split {chosen!r}; it has {', '.join(found)}")
    return chosen


def _of_text(path: Path, data: str, split: str, as_json: bool) -> None:
    from saccade.text.evaluation import judge, parts
    from saccade.weights.load_text import load

    spoken = load(path)
    found = parts(spoken, data)
    chosen = _chosen(data, list(found), split)
    told = judge(spoken, found[chosen], chosen)
    if as_json:
        typer.echo(json.dumps({"data": data, **told}, indent=2, ensure_ascii=False))
        return
    scores, signed = told["scores"], told.get("signatures", {})
    if "bleu" in scores:
        typer.echo(f"BLEU               {scores['bleu']:.2f}  ({signed['bleu']})")
        typer.echo(f"BLEU, lower case   {scores['bleu_lowercase']:.2f}  ({signed['bleu_lowercase']})")
        typer.echo(f"simple BLEU        {scores['simple_bleu']:.4f}  (k = 2, mean of the sentences)")
    typer.echo(f"perplexity         {scores['perplexity']:.4f}")
    typer.echo(f"loss               {scores['loss']:.4f}")
    after = "of those that were hidden" if told.get("hidden") else "after the true words"
    typer.echo(f"words right        {scores['accuracy']:.2%}  ({after})")
    typer.echo(f"{'sentence pairs' if 'bleu' in scores else 'words':<18} {scores['count']}  ({chosen})")
