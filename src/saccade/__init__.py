"""saccade: Vision Transformers you can see inside, and ship."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saccade.api import Model as Model
    from saccade.api import create as create
    from saccade.api import load as load
    from saccade.api import train as train
    from saccade.data.transform import Preprocess as Preprocess
    from saccade.errors import SaccadeError as SaccadeError
    from saccade.text import TextModel as TextModel
    from saccade.types import Prediction as Prediction

__version__ = "0.1.0.dev0"

_PLACES = {
    "Model": "saccade.api",
    "Prediction": "saccade.types",
    "Preprocess": "saccade.data.transform",
    "SaccadeError": "saccade.errors",
    "TextModel": "saccade.text",
    "create": "saccade.api",
    "load": "saccade.api",
    "train": "saccade.api",
}
__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import saccade` alone does not import torch."""
    if name not in _PLACES:
        raise AttributeError(f"saccade has no {name!r}; it has {', '.join(sorted(_PLACES))}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted([*_PLACES, "__version__"])
