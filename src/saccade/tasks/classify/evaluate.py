"""How good a model is on labelled pictures, and where it errs worst; what it was shown while it learnt."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from saccade.data.image.augment import Augment
from saccade.data.image.preprocess import Preprocess
from saccade.data.loader import scoring
from saccade.data.pictures import Images
from saccade.data.randomness import Chance
from saccade.errors import DataError
from saccade.metrics.classify import Scores
from saccade.models.build import Vision
from saccade.tasks.classify.scores import SHOWN as SHOWN
from saccade.tasks.classify.scores import judge as judge
from saccade.tasks.classify.scores import thumbnail as thumbnail
from saccade.weights.formats.tensors import write_text


def answers(
    module: Vision, preprocess: Preprocess, images: Images, batch: int = 32, workers: int = 0
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Probabilities, labels and numbers of the pictures that could be read, batch by batch."""
    module.eval()
    device = next(module.parameters()).device
    for found in scoring(images, preprocess, batch, workers):
        with torch.inference_mode():
            p = module(found["image"].to(device)).float().softmax(-1).cpu().double()
        yield p.numpy(), found["label"].numpy(), found["index"].numpy()


def evaluate(
    module: Vision, preprocess: Preprocess, images: Images, split: str = "val", workers: int = 0
) -> tuple[Scores, dict[str, Any]]:
    """The scores, and evaluation.json: the same with the mistakes that the model was surest of."""
    parts = list(answers(module, preprocess, images, workers=workers))
    if not parts:
        raise DataError("there is no picture to be scored on; expected one or more")
    return judge(images, *(np.concatenate(column) for column in zip(*parts, strict=True)), split=split)


def samples(
    images: Images, preprocess: Preprocess, augment: Augment | None, seed: int
) -> list[dict[str, str]]:
    """Some pictures of the first epoch as the model was shown them."""
    shown = []
    for i in np.linspace(0, len(images) - 1, min(16, len(images))).astype(int).tolist():
        try:
            data = images.read(i)
            array = preprocess(data) if augment is None else augment(data, preprocess, Chance(seed, 0, i))
        except DataError:
            continue
        picture = Image.fromarray(preprocess.undo(array))
        shown.append({"thumbnail": thumbnail(picture), "label": images.classes[int(images.labels[i])]})
    return shown


def write_json(path: Path, content: object) -> None:
    """Write JSON, whole or not at all."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
