"""Everything about the vectors of a set of images: scores, a map, copies, label errors; its files."""

import csv
import io
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64

from saccade import values
from saccade.data.splits import evenly
from saccade.embedding import projection, scores
from saccade.embedding.embedded import Embedded
from saccade.embedding.neighbours import (
    INDEXES,
    METRICS,
    Neighbours,
    SimilarPair,
    find_copies,
    find_label_errors,
    neighbours,
)
from saccade.embedding.projection import WAYS, Projection
from saccade.errors import ModelError
from saccade.files.atomic import write_text
from saccade.files.strict_json import write_json
from saccade.files.tables import from_cell, to_cell
from saccade.metrics.label_errors import LabelError
from saccade.values import one_of, validate, within
from saccade.weights.formats.tensors import read_tensors, write_safetensors

VECTORS, NAMES, REPORT = "features.safetensors", "pictures.csv", "report.json"
COLUMNS = ("row", "split", "label", "picture")


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbedSettings:
    """Everything that decides a survey, besides the model and the images."""

    way: str = one_of(*WAYS, default="tsne", name="map")
    """The map: pca, tsne or umap."""
    metric: str = one_of(*METRICS, default="cosine")
    index: str = one_of(*INDEXES, default="exact")
    neighbours: int = within(1, 1000, default=10)
    """How many neighbours of each image are stored and vote."""
    shots: int = within(1, 10_000, default=5)
    """Training images per class of the few-shot probe."""
    perplexity: float = within(1, 1e6, default=30.0)
    alike: float = within(0, 1, default=0.85)
    """Lowest cosine of two images that may be copies."""
    pictures: int = within(2, 20_000, default=2000)
    """Most images on the map; the scores are of all."""
    batch: int = within(1, 10**6, default=32)
    workers: int = within(0, 256, default=1)
    seed: int = within(0, 2**31, default=0)

    def __post_init__(self) -> None:
        validate(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingScores:
    """How well the vectors separate the classes, from 0 to 1; NaN where there is too little data.

    The order of the fields is that of every table.
    """

    knn: float = math.nan
    nearest: float = math.nan
    """By the one nearest neighbour."""
    pixels: float = math.nan
    """k-NN on raw pixels: what a model has to beat."""
    few_shot: float = math.nan
    linear: float = math.nan
    retrieval: float = math.nan
    """Mean average precision."""
    chance: float = math.nan
    """Accuracy of always answering the most frequent class."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Survey:
    """The images, their neighbours, and the results."""

    settings: EmbedSettings
    found: Embedded
    near: Neighbours
    scores: EmbeddingScores
    drawn: np.ndarray
    """The rows on the map."""
    map: Projection
    trust: float
    copies: list[SimilarPair]
    suspects: list[LabelError]
    notes: tuple[str, ...]

    @property
    def scored_by(self) -> str:
        """How the scores were measured, in words."""
        return "leave one out" if self.found.split() is None else "val and test images against train images"

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, words and numbers; what is unknown is null."""
        found, names = self.found, self.found.names
        classes = found.images.classes
        suspects = [
            {
                "row": each.row,
                "picture": names[each.row],
                "label": classes[found.labels[each.row]],
                "answer": classes[each.answer],
                "share": round(each.p_answer, 6),
                "own": round(each.p_label, 6),
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
            for pair in self.copies
        ]
        scores = {
            name: None if math.isnan(value) else value for name, value in values.to_json(self.scores).items()
        }
        return {
            "pictures": len(names),
            "width": found.vectors.shape[1],
            "classes": classes if found.labelled else [],
            "unread": found.unread,
            "scored": self.scored_by if found.labelled else "",
            "scores": scores,
            "map": {
                "way": self.map.way,
                "pictures": len(self.drawn),
                "trust": None if math.isnan(self.trust) else self.trust,
            },
            "copies": copies,
            "suspects": suspects,
            "notes": list(self.notes),
            "look": values.to_json(self.settings),
        }


def survey(found: Embedded, settings: EmbedSettings) -> Survey:
    """Score and map vectors, find copies and label errors; `add_pixel_score` adds the baseline."""
    near = neighbours(found.vectors, settings.neighbours, metric=settings.metric, index=settings.index)
    classes = len(np.unique(found.labels)) if found.labelled else 0
    drawn = evenly(len(found.vectors), settings.pictures)
    chosen = found.vectors[drawn]
    made = projection.project(chosen, settings.way, settings.seed, settings.perplexity, settings.metric)
    notes = [made.note] if made.note else []
    if len(drawn) < len(found.vectors):
        notes.append(f"the map shows {len(drawn):,} of {len(found.vectors):,} images, evenly spread")
    if classes == 1:
        notes.append("all images have the same label, so there is nothing to score")
    return Survey(
        settings=settings,
        found=found,
        near=near,
        scores=score(found, settings) if classes > 1 else EmbeddingScores(),
        drawn=drawn,
        map=made,
        trust=projection.trust(chosen, made.points, metric=settings.metric),
        copies=find_copies(found.vectors, settings.alike),
        suspects=find_label_errors(near, found.labels, len(found.images.classes)) if classes > 1 else [],
        notes=tuple(notes),
    )


def add_pixel_score(seen: Survey, pixels: Float32[np.ndarray, "n p"]) -> Survey:
    """Score the raw pixels of the same images in the same way as the vectors."""
    if math.isnan(seen.scores.knn):
        return seen
    found, settings = seen.found, seen.settings
    classes, split = len(found.images.classes), found.split()
    accuracy = scores.knn(
        pixels, found.labels, classes, settings.neighbours, "euclidean", split, settings.index
    )
    return replace(seen, scores=replace(seen.scores, pixels=accuracy))


def score(found: Embedded, settings: EmbedSettings) -> EmbeddingScores:
    """Score labelled vectors on the splits other than train, or without those leave one out."""
    x, y, classes, split = found.vectors, found.labels, len(found.images.classes), found.split()
    queries = y if split is None else y[split[1]]
    return EmbeddingScores(
        knn=scores.knn(x, y, classes, settings.neighbours, settings.metric, split, settings.index),
        nearest=scores.knn(x, y, classes, 1, settings.metric, split, settings.index),
        few_shot=scores.few_shot(x, y, classes, settings.shots, settings.seed, split),
        linear=scores.linear(x, y, classes, settings.seed, split),
        retrieval=scores.mean_average_precision(x, y, settings.metric, split),
        chance=float(np.bincount(queries).max() / len(queries)),
    )


@dataclass(frozen=True, slots=True, eq=False)
class SavedVectors:
    """Vectors read back from a folder; row i of each is the same image."""

    features: Float32[np.ndarray, "n e"]
    neighbours: Int64[np.ndarray, "n k"]
    names: list[str]
    labels: list[str]
    splits: list[str]


def write_survey(folder: Path, survey: Survey) -> None:
    """Write vectors, names and results into an existing folder; `write_map` adds the page."""
    found = survey.found
    arrays = {
        "features": torch.from_numpy(np.ascontiguousarray(found.vectors)),
        "neighbours": torch.from_numpy(survey.near.places),
        "distances": torch.from_numpy(survey.near.distances.astype(np.float32)),
    }
    write_safetensors(folder / VECTORS, arrays, {"format": "pt", "metric": survey.settings.metric})
    made = io.StringIO()
    rows = csv.writer(made, lineterminator="\n")
    rows.writerow(COLUMNS)
    for i, name in enumerate(found.names):
        rows.writerow([i, found.splits[i], to_cell(found.label(i)), to_cell(name)])
    write_text(folder / NAMES, made.getvalue())
    write_json(folder / REPORT, survey.to_json(), escape=True, finite=True)


def read_survey(folder: str | Path) -> SavedVectors:
    """Read the vectors and names that `saccade embed` wrote."""
    folder = Path(folder)
    arrays = read_tensors(folder / VECTORS)
    try:
        with (folder / NAMES).open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        names, labels, splits = (
            [from_cell(row[key]) for row in rows] for key in ("picture", "label", "split")
        )
        saved = SavedVectors(arrays["features"].numpy(), arrays["neighbours"].numpy(), names, labels, splits)
    except (OSError, KeyError, UnicodeDecodeError) as error:
        raise ModelError(
            f"{folder} does not contain what `saccade embed` writes ({error}); embed again"
        ) from error
    if len(saved.names) != len(saved.features):
        raise ModelError(
            f"{folder} has {len(saved.names)} names for {len(saved.features)} vectors; embed again"
        )
    return saved
