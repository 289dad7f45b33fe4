"""saccade: Vision Transformers you can see inside, and ship."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saccade.api.load import create as create
    from saccade.api.load import load as load
    from saccade.api.models import Model as Model
    from saccade.api.text_models import TextModel as TextModel
    from saccade.api.train import train as train
    from saccade.data.image.preprocess import Preprocess as Preprocess
    from saccade.errors import SaccadeError as SaccadeError
    from saccade.vision.model import Prediction as Prediction

__version__ = "0.1.0.dev0"

_PLACES = {
    "Model": "saccade.api.models",
    "Prediction": "saccade.vision.model",
    "Preprocess": "saccade.data.image.preprocess",
    "SaccadeError": "saccade.errors",
    "TextModel": "saccade.api.text_models",
    "create": "saccade.api.load",
    "load": "saccade.api.load",
    "train": "saccade.api.train",
}
__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import saccade` alone does not import torch."""
    if name not in _PLACES:
        raise AttributeError(f"saccade has no {name!r}; it has {', '.join(sorted(_PLACES))}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted([*_PLACES, "__version__"])
