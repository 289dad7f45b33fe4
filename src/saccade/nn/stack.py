"""A list of modules that keeps their type, so that a loop over blocks type-checks."""

from collections.abc import Iterator
from typing import Generic, TypeVar, cast

from torch import nn

M = TypeVar("M", bound=nn.Module)


class Stack(nn.ModuleList, Generic[M]):
    """An `nn.ModuleList` whose items are all of one kind."""

    def __iter__(self) -> Iterator[M]:
        return cast(Iterator[M], super().__iter__())
