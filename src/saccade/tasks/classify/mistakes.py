"""Maps of the evidence behind a classifier's worst mistakes, for its report."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saccade.data.image.preprocess import Preprocess
from saccade.data.pictures import Pictures
from saccade.errors import SaccadeError
from saccade.explain.methods.table import DEFAULT, Method, find_method, fitting_methods, heatmaps
from saccade.files.strict_json import read_json, write_json
from saccade.models.build import Vision
from saccade.report.thumbnails import enlarged
from saccade.weights.load import load
from saccade.wording import count

SECONDS = 30.0
"""All maps may take this long; the report shows those that are ready by then."""


def explain_mistakes(folder: Path, images: Pictures) -> None:
    """Add a map of the predicted class to the mistakes in evaluation.json, and a sentence on the maps."""
    found = read_json(folder / "evaluation.json")
    mistakes = found.get("mistakes")
    if not mistakes:
        return
    try:
        found["maps"] = _add_maps(folder, images, mistakes)
    except (SaccadeError, RuntimeError):  # of torch: out of memory
        found["maps"] = "Maps of the evidence could not be made for this model."
    write_json(folder / "evaluation.json", found, indent=1)


def _add_maps(folder: Path, images: Pictures, mistakes: list[dict[str, Any]]) -> str:
    loaded, end = load(folder), time.monotonic() + SECONDS
    fitting = fitting_methods(loaded.module)
    method = find_method(DEFAULT if DEFAULT in fitting else fitting[0], loaded.module)
    wanted = {mistake["path"] for mistake in mistakes}
    number = {name: i for i in range(len(images)) if (name := images.name(i)) in wanted}
    done = 0
    for mistake in mistakes:
        if time.monotonic() > end:
            break
        target = images.classes.index(mistake["predicted"])
        mistake["map"] = _map(
            loaded.module, loaded.preprocess, method, images, number[mistake["path"]], target
        )
        done += 1
    words = (
        f"Beside each image, the evidence for the predicted class (by {method.name}): the brighter, the more."
    )
    late = f" There was time for {count(done, 'map')}; `saccade explain` makes the others."
    return words + late if done < len(mistakes) else words


def _map(
    module: Vision, preprocess: Preprocess, method: Method, images: Pictures, i: int, target: int
) -> str:
    pixels = preprocess.pixels(images.open(i))
    image = torch.from_numpy(np.asarray(preprocess.normalise(pixels))[None])
    (heatmap,) = heatmaps(method, module, image, [pixels], str, target)
    return enlarged(heatmap.overlay())
