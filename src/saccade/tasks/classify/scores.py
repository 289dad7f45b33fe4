"""Scores of answers that are there already, and the mistakes that a model was surest of; without torch."""

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

from saccade.data.image.decode import decode
from saccade.data.pictures import Images
from saccade.metrics.classify import Scores, scores

SHOWN = 24
THUMBNAIL = 112


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


def thumbnail(picture: Image.Image) -> str:
    """A small PNG in base64; tiny pictures are enlarged without smoothing, so that pixels can be seen."""
    scale = THUMBNAIL / max(picture.size)
    how = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BICUBIC
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    file = io.BytesIO()
    picture.resize(size, how).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()
