"""All that the vectors of a set of pictures tell: scores, a map, copies, and labels that look wrong."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float32

from saccade import values
from saccade.data.splits import spread
from saccade.embedding import projection, scores
from saccade.embedding.doubts import Twin, contradicted, twins
from saccade.embedding.embedded import Embedded
from saccade.embedding.neighbours import INDEXES, METRICS, Neighbours, neighbours
from saccade.embedding.projection import WAYS, Map
from saccade.errors import check_number, check_word
from saccade.metrics.label_errors import Doubt


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """Everything that decides a survey, the model and the pictures aside."""

    way: str = "tsne"
    """The map: pca, tsne or umap."""
    metric: str = "cosine"
    index: str = "exact"
    neighbours: int = 10
    """How many neighbours of each picture are kept and vote."""
    shots: int = 5
    """Pictures a class that the few-shot probe learns from."""
    perplexity: float = 30.0
    alike: float = 0.85
    """The cosine from which on two pictures are suspected to be copies."""
    pictures: int = 2000
    """The most that are drawn on the map; the scores are of all."""
    batch: int = 32
    workers: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_word("map", self.way, WAYS)
        check_word("metric", self.metric, METRICS)
        check_word("index", self.index, INDEXES)
        check_number("neighbours", self.neighbours, 1, 1000)
        check_number("shots", self.shots, 1, 10_000)
        check_number("perplexity", self.perplexity, 1, 1e6)
        check_number("alike", self.alike, 0, 1)
        check_number("pictures", self.pictures, 2, 20_000)
        check_number("batch", self.batch, 1, 10**6)
        check_number("workers", self.workers, 0, 256)
        check_number("seed", self.seed, 0, 2**31)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """How well the vectors part the classes, each a share of 1; NaN where there is too little to tell.

    The order of the fields is that of every table.
    """

    knn: float = math.nan
    nearest: float = math.nan
    """By the one nearest neighbour."""
    pixels: float = math.nan
    """By the neighbours of the raw pixels: what a model has to beat."""
    few_shot: float = math.nan
    linear: float = math.nan
    retrieval: float = math.nan
    """Mean average precision."""
    chance: float = math.nan
    """What the commonest class alone would reach."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Survey:
    """The pictures, their neighbours, and what was found."""

    look: Look
    found: Embedded
    near: Neighbours
    scores: Scores
    drawn: np.ndarray
    """The rows that are on the map."""
    map: Map
    trust: float
    twins: list[Twin]
    suspects: list[Doubt]
    notes: tuple[str, ...]

    @property
    def way(self) -> str:
        """How the scores were taken, in words."""
        return (
            "each picture left out in turn"
            if self.found.parted() is None
            else "val and test pictures by train pictures"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain lists, words and numbers; what is not known is null."""
        found, names = self.found, self.found.names
        classes = found.images.classes
        suspects = [
            {
                "row": each.row,
                "picture": names[each.row],
                "label": classes[found.labels[each.row]],
                "answer": classes[each.answer],
                "share": round(each.sure, 6),
                "own": round(each.own, 6),
            }
            for each in self.suspects
        ]
        copies = [
            {
                "rows": [pair.first, pair.second],
                "pictures": [names[pair.first], names[pair.second]],
                "splits": [found.splits[pair.first], found.splits[pair.second]],
                "cosine": round(pair.cosine, 6),
            }
            for pair in self.twins
        ]
        told = {
            name: None if math.isnan(value) else value for name, value in values.to_json(self.scores).items()
        }
        return {
            "pictures": len(names),
            "width": found.vectors.shape[1],
            "classes": classes if found.labelled else [],
            "unread": found.unread,
            "scored": self.way if found.labelled else "",
            "scores": told,
            "map": {
                "way": self.map.way,
                "pictures": len(self.drawn),
                "trust": None if math.isnan(self.trust) else self.trust,
            },
            "copies": copies,
            "suspects": suspects,
            "notes": list(self.notes),
            "look": values.to_json(self.look),
        }


def survey(found: Embedded, look: Look) -> Survey:
    """Look at vectors from all sides; `beside` adds what raw pixels would have told."""
    near = neighbours(found.vectors, look.neighbours, metric=look.metric, index=look.index)
    classes = len(np.unique(found.labels)) if found.labelled else 0
    drawn = spread(len(found.vectors), look.pictures)
    chosen = found.vectors[drawn]
    made = projection.project(chosen, look.way, look.seed, look.perplexity, look.metric)
    notes = [made.note] if made.note else []
    if len(drawn) < len(found.vectors):
        notes.append(f"the map shows {len(drawn):,} of {len(found.vectors):,} pictures, evenly chosen")
    if classes == 1:
        notes.append("all pictures have one label, so there is nothing to score")
    return Survey(
        look=look,
        found=found,
        near=near,
        scores=score(found, look) if classes > 1 else Scores(),
        drawn=drawn,
        map=made,
        trust=projection.trust(chosen, made.points, metric=look.metric),
        twins=twins(found.vectors, look.alike),
        suspects=contradicted(near, found.labels, len(found.images.classes)) if classes > 1 else [],
        notes=tuple(notes),
    )


def beside(seen: Survey, pixels: Float32[np.ndarray, "n p"]) -> Survey:
    """Score the raw pixels of the same pictures as the vectors were scored."""
    if math.isnan(seen.scores.knn):
        return seen
    found, look = seen.found, seen.look
    classes, parted = len(found.images.classes), found.parted()
    told = scores.knn(pixels, found.labels, classes, look.neighbours, "euclidean", parted, look.index)
    return replace(seen, scores=replace(seen.scores, pixels=told))


def score(found: Embedded, look: Look) -> Scores:
    """Score labelled vectors on pictures of other splits than train, or else each left out in turn."""
    x, y, classes, parted = found.vectors, found.labels, len(found.images.classes), found.parted()
    asked = y if parted is None else y[parted[1]]
    return Scores(
        knn=scores.knn(x, y, classes, look.neighbours, look.metric, parted, look.index),
        nearest=scores.knn(x, y, classes, 1, look.metric, parted, look.index),
        few_shot=scores.few_shot(x, y, classes, look.shots, look.seed, parted),
        linear=scores.linear(x, y, classes, look.seed, parted),
        retrieval=scores.mean_average_precision(x, y, look.metric, parted),
        chance=float(np.bincount(asked).max() / len(asked)),
    )
