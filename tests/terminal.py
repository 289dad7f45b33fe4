"""The command line inside of this process, and small models and pictures to give to it."""

import contextlib
import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from saccade.api.models import Model
from saccade.cli.app import main
from saccade.data.image.preprocess import Preprocess
from saccade.models.vit import ViT, ViTConfig

SMALL = ViTConfig(image=(32, 32), patch=8, width=32, depth=2, heads=4, hidden=64, classes=5)
NAMES = ["cat", "dog", "bird", "fish", "horse"]


class Done(NamedTuple):
    code: int
    out: str
    err: str


class _Text(io.TextIOWrapper):
    """A standard stream that remembers, with the encoding of a real one."""

    def __init__(self, errors: str = "strict") -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors=errors, write_through=True)

    def text(self) -> str:
        self.flush()
        return self.buffer.getvalue().decode()  # type: ignore[attr-defined]


def run(*words: object, stdin: bytes = b"") -> Done:
    """Run `saccade WORDS`."""
    out, err, before = _Text(), _Text("backslashreplace"), sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin))
    code: object = None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main([str(word) for word in words])
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdin = before
    assert isinstance(code, int)
    return Done(code, out.text(), err.text())


def small(**changes: object) -> Model:
    """A model whose answers differ from picture to picture."""
    torch.manual_seed(0)
    config = replace(SMALL, **changes)
    vit = ViT(config)
    with torch.no_grad():
        for parameter in vit.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2)
    return Model(vit, Preprocess(size=config.image), NAMES[: config.classes])


def forget_digest(folder: Path) -> None:
    """Let model.json make no claim about the weights, so that a test can change them."""
    path = folder / "model.json"
    if path.is_file():
        described = json.loads(path.read_text())
        described.pop("sha256", None)
        path.write_text(json.dumps(described))


def picture(path: Path, seed: int = 0) -> Path:
    """A noisy picture; the same seed gives the same one."""
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 48, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, format="PNG")
    return path
