"""All kinds of position by name; here the two-dimensional, relative and rotary ones (appendix D.4)."""

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import UsageError
from saccade.nn.attention import Turn, Weight
from saccade.nn.position import Learned, Position, SinCos1d, Vectors, sincos
from saccade.nn.resample import resample
from saccade.nn.rotary import turns


def spread(row: Float[Tensor, "r e"], col: Float[Tensor, "c e"]) -> Vectors:
    """Return vectors that are half their row's, half their column's."""
    r, c = row.shape[0], col.shape[0]
    return torch.cat([repeat(row, "r e -> (r c) e", c=c), repeat(col, "c e -> (r c) e", r=r)], dim=-1)


class Learned2d(Position):
    """A learnt vector per row and per column (appendix D.4)."""

    def __init__(self, rows: int, cols: int, width: int, how: str = "antialias") -> None:
        super().__init__()
        self.row, self.col = Learned(rows, 1, width // 2, how), Learned(1, cols, width // 2, how)

    def forward(self, rows: int, cols: int, like: Tensor) -> Vectors:
        return spread(self.row(rows, 1, like), self.col(1, cols, like))


class SinCos2d(SinCos1d):
    """Sines and cosines of the row and of the column."""

    def forward(self, rows: int, cols: int, like: Tensor) -> Vectors:
        row, col = (
            sincos(torch.arange(s, device=like.device).float(), self.width // 2) for s in (rows, cols)
        )
        return spread(row, col).to(like.dtype)


class Relative(Position):
    """A learnt bias for every offset between two patches, per head, shared by all blocks."""

    def __init__(self, rows: int, cols: int, heads: int, how: str = "antialias") -> None:
        super().__init__()
        self.how = how
        self.bias = nn.Parameter(torch.zeros(2 * rows - 1, 2 * cols - 1, heads))

    def relate(self, rows: int, cols: int, front: int, like: Tensor) -> tuple[Weight, None]:
        bias = resample(self.bias, 2 * rows - 1, 2 * cols - 1, self.how)
        i, j = (torch.arange(s, device=like.device) for s in (rows, cols))
        row = repeat(i[:, None] - i + rows - 1, "r s -> (r c) (s e)", c=cols, e=cols)
        col = repeat(j[:, None] - j + cols - 1, "c e -> (r c) (s e)", r=rows, s=rows)
        pairs = rearrange(bias[row, col], "n m h -> 1 h n m")
        return F.pad(pairs, (front, 0, front, 0)).exp(), None  # a bias on the logits is a weight on the key


class Rotary(Position):
    """Rotates queries and keys by their row and column; the front tokens stay as they are."""

    def __init__(self, key: int) -> None:
        super().__init__()
        if key % 4:
            raise UsageError(
                f"a head of {key} channels does not split into rows and columns of pairs; use a multiple of 4"
            )
        self.key = key

    def relate(self, rows: int, cols: int, front: int, like: Tensor) -> tuple[None, Turn]:
        return None, turns(rows, cols, self.key, front, like)


KINDS = ("none", "learned", "learned2d", "sincos1d", "sincos2d", "relative", "rope2d")


def position(kind: str, grid: tuple[int, int], width: int, heads: int, how: str) -> Position:
    """Build a position by name for a training grid; it works on any other grid too."""
    parts = {"learned2d": 2, "sincos1d": 2, "sincos2d": 4}.get(kind, 1)
    if width % parts:
        raise UsageError(f"width {width} does not split into {parts} parts, as position {kind!r} needs")
    match kind:
        case "learned":
            return Learned(*grid, width, how)
        case "learned2d":
            return Learned2d(*grid, width, how)
        case "sincos1d":
            return SinCos1d(width)
        case "sincos2d":
            return SinCos2d(width)
        case "relative":
            return Relative(*grid, heads, how)
        case "rope2d":
            return Rotary(width // heads)
        case _:
            return Position()
