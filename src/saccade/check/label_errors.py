"""Find labels that a trained model contradicts; its run says which images it was trained on."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from saccade import values
from saccade.check.examine import Examination, ImageRef
from saccade.data.pictures import Pictures
from saccade.data.splits import Splits
from saccade.errors import DataError, ModelError, SaccadeError, UsageError
from saccade.files.strict_json import read_json
from saccade.metrics.label_errors import find_label_errors as confident_errors
from saccade.progress import track
from saccade.recipe import Recipe
from saccade.train.selection import Selection
from saccade.train.start import is_cross_validation
from saccade.vision.model import Classifier, ImagesByNumber, Probabilities
from saccade.weights.load import Loaded, load
from saccade.wording import count, printable

UNSEEN, LEARNT, UNKNOWN = "unseen", "learnt", "unknown"
PARTS = {
    UNSEEN: "that the model was not trained on",
    LEARNT: "that the model was trained on",
    UNKNOWN: "that the model may have been trained on",
}
"""The groups of images that are checked separately; each ends the sentence "the images ..."."""
CAUTION = {
    UNSEEN: "",
    LEARNT: "a model memorises its training labels, so more of these may be wrong",
    UNKNOWN: "if it was trained on them, more of these may be wrong",
}


@dataclass(frozen=True, slots=True)
class SuspectLabel:
    """An image whose label may be wrong, and the model's answer."""

    place: ImageRef
    answer: str
    sure: float
    """Probability of the answer."""
    own: float
    """Probability of the label."""

    @property
    def margin(self) -> float:
        return self.sure - self.own


@dataclass(frozen=True, slots=True)
class Group:
    """The suspected labels of one group of images, the most suspicious first."""

    kind: str
    """A key of `PARTS`."""
    pictures: int
    """How many images were checked."""
    suspects: tuple[SuspectLabel, ...]

    @property
    def heading(self) -> str:
        """How many labels are suspected, and among which images."""
        found = count(len(self.suspects), "suspected label") if self.suspects else "no suspected label"
        return f"{found} among the {count(self.pictures, 'image')} {PARTS[self.kind]}"


@dataclass(frozen=True, slots=True)
class LabelErrors:
    """The labels that the model of a run contradicts."""

    run: str
    note: str
    """Why it is unknown for some images whether the model was trained on them; else empty."""
    parts: tuple[Group, ...]

    @property
    def count(self) -> int:
        return sum(len(part.suspects) for part in self.parts)

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, words and numbers."""
        rows = [
            {"part": part.kind, **asdict(each), "margin": each.margin}
            for part in self.parts
            for each in part.suspects
        ]
        judged = {part.kind: part.pictures for part in self.parts}
        return {"run": self.run, "note": self.note, "judged": judged, "suspects": rows}


@dataclass(frozen=True, slots=True)
class RunModels:
    """The models of a run and which images each answers; loaded before the long examination."""

    run: Path
    models: tuple[Loaded, ...]
    """The run's model and, for a cross-validation, the models of its folds."""
    turns: dict[str, np.ndarray]
    """For each split, for each image: the index of the model that answers it."""
    kinds: dict[str, np.ndarray]
    """For each split, for each image: a key of `PARTS`, as seen by the model that answers it."""

    @property
    def note(self) -> str:
        if not any((kinds == UNKNOWN).any() for kinds in self.kinds.values()):
            return ""
        return (
            f"names, labels or sizes of the images differ from those that {printable(self.run)} was trained "
            "on, so for some of them it is unknown whether the model has seen them"
        )


def load_models(run: Path, found: Splits[Pictures]) -> RunModels:
    """Load the models of a run; refuse what is not a run, a damaged one, or one for other classes.

    In a cross-validation each image is answered by the fold that held it out, and so has not seen it.
    """
    kinds, whole = _open(run, found)
    models = [whole]
    turns = {split: np.zeros(len(images), np.int64) for split, images in found.by_name.items()}
    for folder in sorted(run.glob("fold-*")) if is_cross_validation(run) else []:
        theirs, loaded = _open(folder, found)
        for split in turns:
            better = (kinds[split] == LEARNT) & (theirs[split] == UNSEEN)
            turns[split][better], kinds[split][better] = len(models), UNSEEN
        models.append(loaded)
    return RunModels(run, tuple(models), turns, kinds)


def _open(run: Path, found: Splits[Pictures]) -> tuple[dict[str, np.ndarray], Loaded]:
    """Return which images the model of a run folder was trained on, and the model."""
    if not (run / "recipe.json").is_file():
        raise UsageError(
            f"{printable(run)} is not a run folder (it has no recipe.json); "
            "give the folder that training wrote"
        )
    recipe, described = read_json(run / "recipe.json"), read_json(run / "data.json")
    try:  # also for a probe, whose recipe has other fields
        parting = values.from_json(Recipe, {name: recipe[name] for name in ("seed", "val") if name in recipe})
    except ValueError as error:
        raise ModelError(f"{printable(run / 'recipe.json')} cannot be used: {error}") from error
    selection = Selection.recorded(described)
    try:
        parted = selection.apply(found, parting)
    except SaccadeError:  # images that cannot be split as the run's were are not the run's
        parted = found
    loaded = load(run)
    found.map(lambda part: part.relabel(loaded.labels, printable(run)))
    return _kinds(found, parted, described), loaded


def _kinds(
    found: Splits[Pictures], parted: Splits[Pictures], described: dict[str, Any]
) -> dict[str, np.ndarray]:
    """Return which images the model was trained on; the run's split counts where the fingerprints agree."""
    same = {
        word: part.fingerprint() == _fingerprint(described, word) for word, part in parted.by_name.items()
    }
    kinds = {}
    for split, images in found.by_name.items():
        kinds[split] = np.full(len(images), UNSEEN if same["train"] else UNKNOWN)
        for word, part in parted.by_name.items():
            if same[word]:
                kinds[split][np.isin(images.rows, part.rows)] = LEARNT if word == "train" else UNSEEN
    return kinds


def _fingerprint(described: dict[str, Any], word: str) -> str:
    part = described.get(word)
    return str(part.get("fingerprint", "")) if isinstance(part, dict) else ""


def find_label_errors(models: RunModels, found: Splits[Pictures], seen: Examination) -> LabelErrors:
    """Return the labels that the model contradicts, of all images that can be read.

    Training images have their own thresholds: the model is more confident there, right or wrong.
    """
    names = models.models[0].labels
    p, labels, kinds, places = [], [], [], []
    for split, images in found.by_name.items():
        known = images.relabel(names).labels
        for number, model in enumerate(models.models):
            turn = np.setdiff1d(np.flatnonzero(models.turns[split] == number), seen.bad(split))
            probabilities = Probabilities(Classifier(model.module, model.preprocess))
            for k, row in track(
                ImagesByNumber(probabilities, images.take(turn)).answers(), len(turn), "checking labels"
            ):
                i = int(turn[k])
                p.append(row)
                labels.append(int(known[i]))
                kinds.append(str(models.kinds[split][i]))
                places.append((split, i))
    if not p:
        raise DataError(
            "none of the images can be read, so no label can be checked; expected at least one readable image"
        )
    parts = []
    for kind in PARTS:
        chosen = [k for k, each in enumerate(kinds) if each == kind]
        if chosen:
            errors = confident_errors(np.stack([p[k] for k in chosen]), np.array([labels[k] for k in chosen]))
            listed = [(places[chosen[each.row]], each) for each in errors]
            suspected = tuple(
                SuspectLabel(_place(found, *place), names[each.answer], each.p_answer, each.p_label)
                for place, each in listed
            )
            parts.append(Group(kind, len(chosen), suspected))
    return LabelErrors(str(models.run), models.note, tuple(parts))


def _place(found: Splits[Pictures], split: str, i: int) -> ImageRef:
    images = found.by_name[split]
    return ImageRef(split, i, images.name(i), images.classes[images.labels[i]])
