"""Training. The package can be called, so that `saccade.train("photos")` works although they share a name."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    def __call__(self, *given: Any, **named: Any) -> Any:
        """Call `saccade.api.train.train`."""
        return import_module("saccade.api.train").train(*given, **named)


sys.modules[__name__].__class__ = _Room
