"""What every engine is: something that turns a batch of pictures into logits.

Shapes: b batch, c channels, height and width in pixels.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from saccade.errors import UsageError, check_word
from saccade.shapes import Float32

Pixels = Float32[np.ndarray, "b 3 height width"]
"""Pictures as `Preprocess` gives them."""
Logits = Float32[np.ndarray, "b classes"]

PACKAGES = {"eager": "torch", "compiled": "torch", "onnx": "onnxruntime", "openvino": "openvino"}
"""Each engine and the package that it runs on."""
NAMES = tuple(PACKAGES)
EXTRAS = ("onnx", "openvino")
"""Those that come with an extra of the same name; torch is there anyway."""


@runtime_checkable
class Engine(Protocol):
    """A model ready to answer, whoever computes it."""

    name: str
    """One of `NAMES`."""

    def run(self, pixels: Pixels) -> Logits:
        """The logits of a batch of any length and of any size that the model can take."""
        ...


def installed(name: str) -> bool:
    """Can this engine run here?"""
    check_word("the engine", name, NAMES)
    return find_spec(PACKAGES[name]) is not None


def release(name: str) -> str | None:
    """The version of the package that an engine runs on; None if it is not installed."""
    package, spec = PACKAGES[name], find_spec(PACKAGES[name])
    if spec is None or spec.origin is None:
        return None
    beside = Path(spec.origin).parent.parent.glob(f"{package}-*.dist-info")  # importlib.metadata takes 50 ms
    return next((path.name.removesuffix(".dist-info").removeprefix(f"{package}-") for path in beside), "")


def check_installed(name: str) -> None:
    """Refuse an engine that is not there, with the command that brings it."""
    if not installed(name):
        here = ", ".join(known for known in NAMES if installed(known))
        brought = f"'saccade[{name}]'" if name in EXTRAS else PACKAGES[name]
        raise UsageError(
            f"the engine {name} needs the package {PACKAGES[name]}, which is not installed; "
            f"run `pip install {brought}`{f', or choose one of {here}' if here else ''}"
        )


def brief(error: Exception) -> str:
    """The first line of a long message; each engine has its own kinds of failing."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def softmax(logits: Float32[np.ndarray, "b classes"]) -> Float32[np.ndarray, "b classes"]:
    """Logits to probabilities, without torch."""
    shifted: Any = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)
