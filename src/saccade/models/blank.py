"""A module without numbers: all of its shapes, none of its memory."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from saccade.models.build import Known, Vision, build

M = TypeVar("M")


class _Undrawn(TorchFunctionMode):
    """Draws no random numbers; to draw none on the meta device, torch imports its compiler for a second."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(function, "__name__", "") in ("normal_", "uniform_", "trunc_normal_"):
            return args[0] if args else kwargs["tensor"]  # torch.nn.init passes it on by name
        return function(*args, **(kwargs or {}))


def blank(config: Known) -> Vision:
    """Build a module on the meta device, to count or to be filled."""
    return undrawn(lambda: build(config))


def undrawn(make: Callable[[], M]) -> M:
    """What `make` builds, on the meta device and with no number drawn."""
    with torch.device("meta"), _Undrawn():
        return make()
