"""Labels that a trained model contradicts; its run tells which pictures it learnt from and which not."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saccade import values
from saccade.check.examine import Examination, Place
from saccade.data.pictures import Images
from saccade.data.readers.listing import Collection, plural, some
from saccade.errors import DataError, ModelError, SaccadeError, UsageError
from saccade.files.paths import shown
from saccade.metrics.label_errors import doubts
from saccade.recipe import Recipe
from saccade.tasks.classify.job import Source
from saccade.train.cross_validation import is_crossval
from saccade.weights.formats.tensors import read_json
from saccade.weights.load import Loaded, load

UNSEEN, LEARNT, UNKNOWN = "unseen", "learnt", "unknown"
PARTS = {
    UNSEEN: "that the model did not learn from",
    LEARNT: "that the model learnt from",
    UNKNOWN: "of which it is not known whether the model learnt from them",
}
"""The parts that are judged apart, as they end the sentence "the pictures ..."."""
CAUTION = {
    UNSEEN: "",
    LEARNT: "a model rarely doubts what it has learnt by heart, so more of these may be wrong",
    UNKNOWN: "if it did learn from them, more of these may be wrong",
}
BATCH = 32


@dataclass(frozen=True, slots=True)
class Suspect:
    """A picture whose label may be wrong, and what the model takes it for."""

    place: Place
    answer: str
    sure: float
    """Probability of the answer."""
    own: float
    """Probability of the label."""

    @property
    def margin(self) -> float:
        return self.sure - self.own


@dataclass(frozen=True, slots=True)
class Part:
    """The suspects of one kind of pictures, the most suspect first."""

    kind: str
    """A key of `PARTS`."""
    pictures: int
    """How many were judged."""
    suspects: tuple[Suspect, ...]

    @property
    def told(self) -> str:
        """A heading: what was judged, and how many of them are suspected."""
        found = plural(len(self.suspects), "suspected label") if self.suspects else "no suspected label"
        return f"{found} among the {plural(self.pictures, 'picture')} {PARTS[self.kind]}"


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What the model of a run says of all the labels."""

    run: str
    note: str
    """Why it is not known of some pictures whether the model learnt from them; empty where it is known."""
    parts: tuple[Part, ...]

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
class Judge:
    """The models of a run and which pictures each answers, opened before the long look at all pictures."""

    run: Path
    models: tuple[Loaded, ...]
    """The run's model and, of a cross-validation, those of its folds."""
    turns: dict[str, np.ndarray]
    """For each split, for each picture: the place of the model that answers it."""
    kinds: dict[str, np.ndarray]
    """For each split, for each picture: a key of `PARTS`, as seen by the model that answers it."""

    @property
    def note(self) -> str:
        if not any((kinds == UNKNOWN).any() for kinds in self.kinds.values()):
            return ""
        return (
            f"by their names, labels and sizes the pictures are not those that {shown(self.run)} was trained "
            "on, so it is not known of all of them whether the model learnt from them"
        )


def judge(run: Path, found: Collection) -> Judge:
    """Open the run and refuse what does not fit: no run, a damaged one, or one for other classes.

    Of a cross-validation each picture is answered by the fold that held it out, so that all are unseen.
    """
    kinds, whole = _open(run, found)
    models = [whole]
    turns = {split: np.zeros(len(images), np.int64) for split, images in found.splits.items()}
    for folder in sorted(run.glob("fold-*")) if is_crossval(run) else []:
        theirs, loaded = _open(folder, found)
        for split in turns:
            better = (kinds[split] == LEARNT) & (theirs[split] == UNSEEN)
            turns[split][better], kinds[split][better] = len(models), UNSEEN
        models.append(loaded)
    return Judge(run, tuple(models), turns, kinds)


def _open(run: Path, found: Collection) -> tuple[dict[str, np.ndarray], Loaded]:
    """What the model of a run folder learnt from, and the model."""
    if not (run / "recipe.json").is_file():
        raise UsageError(
            f"{shown(run)} is no run folder (it has no recipe.json); give the folder that training made"
        )
    recipe, described = read_json(run / "recipe.json"), read_json(run / "data.json")
    try:  # of a probe's recipe too, whose other fields are not these
        parting = values.from_json(Recipe, {name: recipe[name] for name in ("seed", "val") if name in recipe})
    except ValueError as error:
        raise ModelError(f"{shown(run / 'recipe.json')} cannot be used: {error}") from error
    source = Source.of(described)
    try:
        parted = source.part(found, parting)
    except SaccadeError:  # they cannot be parted as the run's were, so they are not the run's
        parted = found
    loaded = load(run)
    strange = sorted(set(found.train.classes) - set(loaded.labels))
    if strange:
        raise DataError(
            f"the pictures have {plural(len(strange), 'class')} that {shown(run)} does not know "
            f"({some(strange)}); expected its own ({some(loaded.labels)}); give a run of these classes"
        )
    return _kinds(found, parted, described), loaded


def _kinds(found: Collection, parted: Collection, described: dict[str, Any]) -> dict[str, np.ndarray]:
    """What the model learnt from; the run's way to part the pictures counts where the fingerprints agree."""
    same = {word: part.fingerprint() == _fingerprint(described, word) for word, part in parted.splits.items()}
    kinds = {}
    for split, images in found.splits.items():
        kinds[split] = np.full(len(images), UNSEEN if same["train"] else UNKNOWN)
        for word, part in parted.splits.items():
            if same[word]:
                kinds[split][np.isin(images.rows, part.rows)] = LEARNT if word == "train" else UNSEEN
    return kinds


def _fingerprint(described: dict[str, Any], word: str) -> str:
    part = described.get(word)
    return str(part.get("fingerprint", "")) if isinstance(part, dict) else ""


def suspects(judge: Judge, found: Collection, seen: Examination, workers: int = 2) -> Suspicion:
    """Let the model answer every picture that can be read, and return the labels that it contradicts.

    What the model learnt from has thresholds of its own: it is surer of these pictures, right or wrong.
    """
    names = judge.models[0].labels
    p, labels, kinds, places = [], [], [], []
    for split, images in found.splits.items():
        known = images.relabel(names).labels
        for number, model in enumerate(judge.models):
            turn = np.setdiff1d(np.flatnonzero(judge.turns[split] == number), seen.bad(split))
            for i, row in _answers(model, images, turn, workers):
                p.append(row)
                labels.append(int(known[i]))
                kinds.append(str(judge.kinds[split][i]))
                places.append((split, i))
    if not p:
        raise DataError("none of the pictures can be read, so no label can be judged; expected one or more")
    parts = []
    for kind in PARTS:
        chosen = [k for k, each in enumerate(kinds) if each == kind]
        if chosen:
            told = doubts(np.stack([p[k] for k in chosen]), np.array([labels[k] for k in chosen]))
            listed = [(places[chosen[each.row]], each) for each in told]
            suspected = tuple(
                Suspect(_place(found, *place), names[each.answer], each.sure, each.own)
                for place, each in listed
            )
            parts.append(Part(kind, len(chosen), suspected))
    return Suspicion(str(judge.run), judge.note, tuple(parts))


def _place(found: Collection, split: str, i: int) -> Place:
    images = found.splits[split]
    return Place(split, i, images.name(i), images.classes[images.labels[i]])


def _answers(
    loaded: Loaded, images: Images, chosen: np.ndarray, workers: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the number and the probabilities of each picture that can be read."""

    def read(i: int) -> np.ndarray | None:
        try:
            return loaded.preprocess(images.read(i))
        except DataError:  # the examination tells of it, unless it read the headers only
            return None

    device = next(loaded.module.parameters()).device
    with ThreadPoolExecutor(max(1, workers)) as pool:
        for start in range(0, len(chosen), BATCH):
            numbers = chosen[start : start + BATCH].tolist()
            arrays = [(i, array) for i, array in zip(numbers, pool.map(read, numbers), strict=True)]
            whole = [(i, array) for i, array in arrays if array is not None]
            if whole:
                batch = torch.from_numpy(np.stack([array for _, array in whole])).to(device)
                with torch.inference_mode():
                    p = loaded.module(batch).float().softmax(-1).cpu().numpy()
                yield from ((i, row) for (i, _), row in zip(whole, p, strict=True))
