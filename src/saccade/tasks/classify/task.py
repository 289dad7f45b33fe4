"""Image classification; loads without torch."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from saccade.engine.select import MANY
from saccade.errors import DataError, ModelError
from saccade.report.html import Draw, Html, joined
from saccade.report.run_page import Section
from saccade.report.run_record import Record
from saccade.task import SCRATCH, START, Evaluation, Job, Metric, Task
from saccade.vision.model import Classifier, load_vision, probabilities_of, wrap_vision
from saccade.wording import count, some

if TYPE_CHECKING:
    from saccade.data.pictures import Pictures
    from saccade.data.splits import Splits
    from saccade.recipe import Recipe
    from saccade.tasks.classify.recipe import ClassifyRecipe
    from saccade.vision.model import Prediction
    from saccade.weights.identify import Identified


class Classify(Task):
    """One class for each image."""

    name, noun, unit, counted = "classify", "images", "images", "pictures"
    metrics = {"loss": Metric("Loss", better="lower"), "accuracy": Metric("Accuracy", "percent")}
    headline = "accuracy"
    fold_metrics = {
        "accuracy": metrics["accuracy"],
        "balanced_accuracy": Metric("Balanced accuracy", "percent"),
        "loss": metrics["loss"],
    }
    outputs = {"logits": 1e-4}
    abilities = frozenset({"folds", "probe", "prune", "compare", "embed", "explain"})
    fields, columns = ("label", "score", "index"), ("score", "label")
    loss_note = "Training loss is measured on augmented images, so it may lie above the validation loss."

    @property
    def recipe(self) -> "type[ClassifyRecipe]":
        from saccade.tasks.classify.recipe import ClassifyRecipe

        return ClassifyRecipe

    def matches(self, data: str, model: str) -> bool:
        return True  # the table asks it last

    def open(self, data: str, recipe: "Recipe", format: str = "auto") -> "Splits[Pictures]":
        from saccade.data.readers.open import open_images

        return open_images(data, format)

    def open_for(self, found: "Identified", data: str, format: str = "auto") -> "Splits[Pictures]":
        from saccade.data.readers.open import open_images

        return open_images(data, format, least=1)

    def plan(self, splits: "Splits[Pictures]", model: str) -> "tuple[ClassifyRecipe, str]":
        from dataclasses import replace

        from saccade.processes import current
        from saccade.tasks.classify.recipe import default_recipe
        from saccade.vision.backbone import is_name, small_name, typical_side, usual_start

        side, team, missing = typical_side(splits.train), current(), ""
        if not model:
            model, missing = usual_start(side, team)
        model = small_name(side) if model == SCRATCH else model
        recipe, why = default_recipe(len(splits.train), not is_name(model), side, team.accelerated)
        return replace(recipe, model=model), f"{why}{missing}"

    def start(self, recipe: "Recipe", splits: "Splits[Pictures]", resume: Path | None = None) -> Job:
        from saccade.tasks.classify.job import ClassifyJob
        from saccade.tokens.plan import prunable
        from saccade.tokens.prune import prune
        from saccade.vision.backbone import (
            as_known,
            describe_start,
            freeze,
            prepare,
            prepare_teacher,
            rebuild,
        )

        assert isinstance(recipe, self.recipe)
        splits = splits if recipe.keep == 1 else as_known(splits, recipe.model)
        labels = list(splits.train.classes)
        begun = rebuild(recipe.model, resume) or prepare(recipe, labels)
        module, preprocess, summary, lineage, own_head = begun
        if resume is not None and lineage:
            from saccade.weights.lineage import recorded

            lineage = recorded(resume)  # what it started from may have moved since
        if recipe.keep < 1:
            module = prune(prunable(module), recipe.keep, recipe.places or None)
            blocks = ", ".join(str(place + 1) for place in module.plan.places)
            summary += f"; it learns to keep {recipe.keep:.0%} of the patches at block {blocks}"
        if recipe.freeze != "none":
            freeze(module, recipe.freeze)
        return ClassifyJob(
            recipe=recipe,
            splits=splits,
            module=module,
            preprocess=preprocess,
            teacher=prepare_teacher(recipe.teacher, labels, preprocess),
            summary=summary,
            facts={"classes": labels},
            lineage=lineage,
            own_head=own_head,
            files={START: describe_start(begun)},
        )

    def load(
        self, source: "Path | Identified", engine: str = "", images: int | float = MANY, top: int = 5
    ) -> Classifier:
        return load_vision(source, Classifier, self.outputs, engine, images, top)

    def wrap(self, loaded: Any, top: int = 5, network: Any = None) -> Classifier:
        return wrap_vision(loaded, Classifier, top, network)

    def align(self, model: Any, examples: Any, name: str = "the model", data: str = "the dataset") -> Any:
        """Number the classes as the model does."""
        if not model.labels:
            raise ModelError(f"{name} has no labels to compare its answers with; convert it with --labels")
        unknown = sorted(set(examples.classes) - set(model.labels))
        if unknown:
            raise DataError(
                f"{data} has {len(unknown)} classes that the model does not know ({', '.join(unknown[:3])}); "
                f"expected folders named like its labels ({', '.join(model.labels[:3])}, ...)"
            )
        return examples.relabel(list(model.labels))

    def evaluate(self, model: Any, examples: Any, split: str) -> Evaluation:
        from saccade.tasks.classify.evaluate import evaluate_answers

        return evaluate_answers(examples, *probabilities_of(model, examples), split=split)

    def probe(self, data: str, model: str, out: Path | None, changes: Sequence[str], format: str) -> Path:
        from saccade.tasks.classify.probe import probe

        return probe(data, model, out, changes, format)

    def rows(self, answer: "list[Prediction]") -> list[dict[str, Any]]:
        return [{"label": p.label, "score": round(p.score, 6), "index": p.index} for p in answer]

    def to_json(self, answer: "list[Prediction]") -> dict[str, Any]:
        return {"predictions": self.rows(answer)}

    def table(self, answer: "list[Prediction]") -> list[dict[str, str]]:
        return [{"score": f"{p.score:.1%}", "label": p.label} for p in answer]

    def summary(self, found: Evaluation) -> str:
        from saccade.metrics.interval import wilson

        low, high = wilson(int(found.metrics["correct"]), found.count)
        what = {"val": "validation ", "test": "test "}.get(found.split, f"{found.split} ")
        ends = f"95% CI {low:.1%} to {high:.1%}"
        return f"accuracy {found.metrics['accuracy']:.1%} on {found.count:,} {what}images ({ends})"

    def doubt(self, found: Evaluation) -> str:
        from saccade.metrics.interval import wilson

        support = found.details["scores"]["support"]
        most, low = max(support), wilson(int(found.metrics["correct"]), found.count)[0]
        if low > most / found.count:
            return ""
        return (
            "the accuracy is not clearly above that of always answering the largest class "
            f"({most / found.count:.1%}); train longer, start from pretrained weights, "
            "or validate on more images"
        )

    def next_commands(self, folder: Path, run: str, example: str) -> list[str]:
        from importlib.util import find_spec

        form = "onnx" if find_spec("onnx") else "torch"
        return [
            f"saccade predict {run} {example}",
            f"saccade explain {run} {example} --html why.html",
            f"saccade export {run} --to {form}",
        ]

    def score_rows(self, found: Evaluation) -> list[tuple[str, str]]:
        from saccade.metrics.interval import wilson

        scores = found.metrics
        low, high = wilson(int(scores["correct"]), found.count)
        return [
            ("accuracy", f"{scores['accuracy']:.2%}  (95% CI {low:.1%} to {high:.1%})"),
            ("top 5", f"{scores['top5']:.2%}"),
            ("balanced accuracy", f"{scores['balanced_accuracy']:.2%}"),
            ("macro F1", f"{scores['macro_f1']:.4f}"),
            ("loss", f"{scores['loss']:.4f}"),
            ("calibration error", f"{scores['ece']:.4f}"),
            ("images", f"{found.count}  ({found.split})"),
        ]

    def revive(self, details: dict[str, Any]) -> Evaluation:
        from saccade.metrics.classify import ClassifyScores
        from saccade.tasks.classify.evaluate import evaluation

        return evaluation(ClassifyScores.from_json(details["scores"]), details)

    def fold_notes(self, splits: "Splits[Pictures]", parts: Sequence[Any]) -> list[str]:
        """Return a note for each fold that holds out all images of a class, which groups may force it to."""
        import numpy as np

        images, notes = splits.train, []
        for number, (train, val) in enumerate(parts, 1):
            lost = np.setdiff1d(images.labels[val], images.labels[train])
            if len(lost):
                names = some([images.classes[i] for i in lost.tolist()])
                notes.append(f"fold {number} has no training image of {count(len(lost), 'class')}: {names}")
        return notes

    def pooled(self, parts: Sequence[Evaluation], split: str) -> Evaluation:
        from saccade.metrics.classify import ClassifyScores, pool_scores
        from saccade.tasks.classify.evaluate import SHOWN, evaluation

        found = pool_scores([ClassifyScores.from_json(part.details["scores"]) for part in parts])
        mistakes = sorted((m for part in parts for m in part.details["mistakes"]), key=lambda m: -m["score"])
        details = {"split": split, "scores": found.to_json(), "mistakes": mistakes[:SHOWN]}
        return evaluation(found, details)

    def results(self, record: Record) -> Iterator[Html]:
        from saccade.tasks.classify.report import results

        return results(record)

    def data_words(self, record: Record) -> Html:
        return joined([f" of {count(len(record.labels), 'class')}" if record.labels else ""])

    def evaluation_sections(self, record: Record, draw: Draw) -> Iterator[Section]:
        kept = ("confusions", "by-class", "reliability", "mistakes")
        return (part for part in self.sections(record, draw) if part.anchor in kept)

    def class_rows(self, found: Evaluation, labels: Sequence[str]) -> list[list[str]]:
        from saccade.tasks.classify.evaluate import class_rows

        return class_rows(found.details["scores"], labels)

    def sections(self, record: Record, draw: Draw) -> Iterator[Section]:
        from saccade.tasks.classify.report import sections

        return sections(record, draw)

    def next_steps(self, record: Record) -> list[tuple[str, str]]:
        run, data = quote(str(record.folder)), quote(str(record.data.get("source", "DATA")))
        return [
            *super().next_steps(record),
            ("See why it answers so:", f"saccade explain {run} photo.jpg --html why.html"),
            ("Find labels that it contradicts:", f"saccade check {data} --run {run} --html check.html"),
            ("Use it without PyTorch:", f"saccade export {run} --to onnx"),
        ]
