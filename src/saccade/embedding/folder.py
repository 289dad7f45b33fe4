"""A survey on disk: vectors, names, scores, the map as page, picture and numbers."""

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, Int64

from saccade.embedding import map_page as atlas
from saccade.embedding.sketch import Sketches
from saccade.embedding.survey import Survey
from saccade.errors import ModelError
from saccade.files.atomic import write_text
from saccade.report.plots import save
from saccade.weights.formats.tensors import tensors, write_safetensors

VECTORS, NAMES, REPORT, PAGE = "features.safetensors", "pictures.csv", "report.json", "map.html"
COLUMNS = ("row", "split", "label", "picture")


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """Vectors read back from a folder; row i of each is the same picture."""

    features: Float32[np.ndarray, "n e"]
    neighbours: Int64[np.ndarray, "n k"]
    names: list[str]
    labels: list[str]
    splits: list[str]


def write(folder: Path, survey: Survey, sketches: Sketches, title: str, told: str = "") -> Path:
    """Write all files of a survey into a folder that exists; return the page."""
    found = survey.found
    held = {
        "features": torch.from_numpy(np.ascontiguousarray(found.vectors)),
        "neighbours": torch.from_numpy(survey.near.places),
        "distances": torch.from_numpy(survey.near.distances.astype(np.float32)),
    }
    write_safetensors(folder / VECTORS, held, {"format": "pt", "metric": survey.look.metric})
    made = io.StringIO()
    rows = csv.writer(made, lineterminator="\n")
    rows.writerow(COLUMNS)
    for i, name in enumerate(found.names):
        rows.writerow([i, found.splits[i], found.label(i), name])
    write_text(folder / NAMES, made.getvalue())
    write_text(folder / REPORT, json.dumps(survey.to_json(), indent=2, allow_nan=False) + "\n")
    plot = atlas.plot(survey)
    light = save(plot, folder)
    write_text(folder / PAGE, atlas.write(survey, sketches, plot, light, title, told))
    return folder / PAGE


def read(folder: str | Path) -> Kept:
    """Read the vectors and names that `saccade embed` wrote."""
    folder = Path(folder)
    held = tensors(folder / VECTORS)
    try:
        with (folder / NAMES).open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        names, labels, splits = ([row[key] for row in rows] for key in ("picture", "label", "split"))
        kept = Kept(held["features"].numpy(), held["neighbours"].numpy(), names, labels, splits)
    except (OSError, KeyError, UnicodeDecodeError) as error:
        raise ModelError(
            f"{folder} does not hold what `saccade embed` writes ({error}); embed anew"
        ) from error
    if len(kept.names) != len(kept.features):
        raise ModelError(f"{folder} has {len(kept.names)} names for {len(kept.features)} vectors; embed anew")
    return kept
