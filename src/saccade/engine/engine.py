"""The protocol of an engine: a batch of images in, outputs by name out.

Shapes: b batch, height and width in pixels.
"""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from saccade.errors import UsageError, check_word
from saccade.shapes import Float32
from saccade.wording import printable

Pixels = Float32[np.ndarray, "b 3 height width"]
"""Images as `Preprocess` gives them."""
Arrays = dict[str, np.ndarray]
"""Outputs of a model by name, batch first."""
LOGITS = "logits"
"""The output of a classifier."""
OUTPUTS: Mapping[str, float] = {LOGITS: 1e-4}
"""The output of a classifier and its tolerance, as a share of an image's largest logit if above 1."""

PACKAGES = {"eager": "torch", "onnx": "onnxruntime", "openvino": "openvino"}
"""Each engine and the package that it runs on."""
NAMES = tuple(PACKAGES)
EXTRAS = ("onnx", "openvino")
"""Engines that are installed as an extra of the same name."""


@runtime_checkable
class Engine(Protocol):
    """A model ready to answer."""

    name: str
    """One of `NAMES`."""

    def arrays(self, pixels: Pixels) -> Arrays:
        """Return all outputs for a batch of any length, of any size that the model accepts."""
        ...

    def run(self, pixels: Pixels) -> np.ndarray:
        """Return the first output of such a batch: of a classifier, the logits."""
        ...


def installed(name: str) -> bool:
    """Return whether an engine can run here."""
    check_word("the engine", name, NAMES)
    return find_spec(PACKAGES[name]) is not None


def available() -> int:
    """The processors that this process may use."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return int(wanted) if wanted.isdigit() and int(wanted) else len(os.sched_getaffinity(0))


def release(name: str) -> str | None:
    """Return the version of the package that an engine runs on; None if it is not installed."""
    package, spec = PACKAGES[name], find_spec(PACKAGES[name])
    if spec is None or spec.origin is None:
        return None
    beside = Path(spec.origin).parent.parent.glob(f"{package}-*.dist-info")  # importlib.metadata takes 50 ms
    return next((path.name.removesuffix(".dist-info").removeprefix(f"{package}-") for path in beside), "")


def check_installed(name: str) -> None:
    """Refuse an engine that is not installed, with the command that installs it."""
    if not installed(name):
        here = ", ".join(known for known in NAMES if installed(known))
        needed = f"'saccade[{name}]'" if name in EXTRAS else PACKAGES[name]
        raise UsageError(
            f"the engine {name} needs the package {PACKAGES[name]}, which is not installed; "
            f"run `pip install {needed}`{f', or choose one of {here}' if here else ''}"
        )


def first_line(error: Exception) -> str:
    """Return the first informative line of a long message; each engine has its own exceptions."""
    lines = [line for line in str(error).strip().splitlines() if not line.startswith("Exception from")]
    return printable(lines[0]) if lines else type(error).__name__


def softmax(logits: Float32[np.ndarray, "b classes"]) -> Float32[np.ndarray, "b classes"]:
    """Return probabilities, without torch."""
    with np.errstate(all="ignore"):  # what is not finite stays so; the caller reports it
        shifted: Any = np.exp(logits - logits.max(-1, keepdims=True))
        return shifted / shifted.sum(-1, keepdims=True)


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the distance between two answers as a share of the expected one's length."""
    return float(np.linalg.norm(found - expected)) / max(float(np.linalg.norm(expected)), 1e-6)
