"""A model traced into a graph whose sizes stay free, from the same code that runs it.

torch's tracer follows the sizes of pictures as numbers of the graph, as long as nobody makes a Python number
of them. While `Free` is on, the few functions that would (or that graphs do not know) are replaced by equal
ones: the smaller of two sizes, a resampled table, attention in its plain form.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from saccade.engine.graph.stretch import stretched


def _extreme(choose: Callable[[Tensor, Tensor], Tensor], a: Any, b: Any) -> Any:
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        return int(choose(torch.tensor(a), torch.tensor(b)))
    a, b = (x if isinstance(x, Tensor) else torch.tensor(x) for x in (a, b))
    return choose(a, b)


def _interpolate(
    x: Tensor, size: Any, *, mode: str, antialias: bool, align_corners: bool, **_: Any
) -> Tensor:
    assert align_corners == (mode == "bilinear")
    rows, cols = size
    return stretched(x, rows, cols, mode, antialias)


def _attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    logits = (q * int(q.shape[-1]) ** -0.5) @ k.transpose(-2, -1)
    return (logits if bias is None else logits + bias).softmax(-1) @ v


def _tails(x: Tensor) -> Tensor:
    return x.transpose(-2, -1)


REPLACED: dict[Any, Callable[..., Any]] = {
    torch.sym_min: lambda a, b: _extreme(torch.minimum, a, b),
    torch.sym_max: lambda a, b: _extreme(torch.maximum, a, b),
    F.interpolate: _interpolate,
    F.scaled_dot_product_attention: _attention,
    Tensor.mT.__get__: _tails,  # type: ignore[attr-defined]
}


class Free(TorchFunctionMode):
    """Equal functions in the place of those that a graph with free sizes does not know."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return REPLACED.get(func, func)(*args, **(kwargs or {}))


@contextmanager
def free() -> Iterator[None]:
    """Trace with free sizes: what the rooms below do under `torch.export`, they do here too."""
    flags: Any = torch.compiler
    before = flags._is_compiling_flag, flags._is_exporting_flag
    flags._is_compiling_flag = flags._is_exporting_flag = True
    try:
        with Free(), torch.no_grad():
            yield
    finally:
        flags._is_compiling_flag, flags._is_exporting_flag = before
