"""A tensor as a checkpoint describes it: a window onto a record of raw numbers."""

import math
from dataclasses import dataclass

from saccade.files.paths import Flaw, shown
from saccade.weights.formats.safetensors import RANK, SIZES

ADVICE = "nothing was executed; ask its author for safetensors or a plain state_dict"


@dataclass(frozen=True, slots=True)
class Storage:
    """A record of raw numbers elsewhere in the file."""

    key: str
    dtype: str
    count: int


@dataclass(frozen=True, slots=True)
class View:
    """A tensor: which numbers of a storage, in which order, in units of its own dtype."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def check(self) -> None:
        """Refuse a tensor that would read outside its storage."""
        if len(self.shape) != len(self.stride) or len(self.shape) > RANK:
            raise Flaw(f"has a tensor of {len(self.shape)} sizes and {len(self.stride)} strides", ADVICE)
        if not all(type(n) is int and 0 <= n < 2**62 for n in (self.offset, *self.shape, *self.stride)):
            raise Flaw("has a tensor whose sizes, strides or offset are not counts", ADVICE)
        last = self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        end = (last + 1) * SIZES[self.dtype] if math.prod(self.shape) else 0
        if end > self.storage.count * SIZES[self.storage.dtype]:
            raise Flaw(
                f"has a tensor that ends {end:,} bytes into storage '{shown(self.storage.key)}', outside",
                ADVICE,
            )

    def numbers(self, record: memoryview) -> bytes | memoryview:
        """Return the raw numbers in row-major order: a window if they lie so already, else a copy."""
        count = math.prod(self.shape)
        width = SIZES[self.dtype]
        if not count:
            return b""
        if self.stride == _row_major(self.shape) or count == 1:
            return record[self.offset * width : (self.offset + count) * width]
        words = record[: len(record) // width * width].cast({1: "B", 2: "H", 4: "I", 8: "Q"}[width])  # type: ignore[call-overload]
        *outer, (length, step) = zip(self.shape, self.stride, strict=True)
        rows = [self.offset]
        for size, stride in outer:
            rows = [row + n * stride for row in rows for n in range(size)]
        if not step:
            return b"".join(words[row : row + 1].tobytes() * length for row in rows)
        return b"".join(words[row : row + (length - 1) * step + 1 : step].tobytes() for row in rows)


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))
