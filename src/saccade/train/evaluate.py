"""How good a model is on labelled pictures, and where it errs worst; what it was shown while it learnt."""

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from saccade.data.augment import Augment
from saccade.data.chance import Chance
from saccade.data.decode import decode
from saccade.data.images import Images
from saccade.data.loader import scoring
from saccade.data.transform import Preprocess
from saccade.errors import DataError
from saccade.metrics.classify import Scores, scores
from saccade.models.build import Vision
from saccade.weights.files import write_text

SHOWN = 24
THUMBNAIL = 112


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


def judge(
    images: Images, p: np.ndarray, labels: np.ndarray, numbers: np.ndarray, *, split: str
) -> tuple[Scores, dict[str, Any]]:
    """What `evaluate` gives, of answers that are there already."""
    found = scores(p / p.sum(-1, keepdims=True), labels)
    answer = p.argmax(-1)
    wrong = np.flatnonzero(answer != labels)
    worst = wrong[np.argsort(-p[wrong, answer[wrong]], kind="stable")][:SHOWN]
    mistakes = [
        {
            "picture": images.name(int(numbers[i])),
            "path": images.name(int(numbers[i])),
            "label": images.classes[int(labels[i])],
            "predicted": images.classes[int(answer[i])],
            "score": float(p[i, answer[i]]),
            "thumbnail": thumbnail(decode(images.read(int(numbers[i])))),
        }
        for i in worst
    ]
    return found, {"split": split, "scores": found.to_json(), "mistakes": mistakes}


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


def thumbnail(picture: Image.Image) -> str:
    """A small PNG in base64; tiny pictures are enlarged without smoothing, so that pixels can be seen."""
    scale = THUMBNAIL / max(picture.size)
    how = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BICUBIC
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    file = io.BytesIO()
    picture.resize(size, how).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def write_json(path: Path, content: object) -> None:
    """Write JSON, whole or not at all."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
