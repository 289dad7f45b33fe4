"""A map in words, made from its numbers: where it is hottest, and how much of the heat lies there."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from saccade.wording import percent

Grid = Float[np.ndarray, "rows columns"]
ACROSS = ("left", "centre", "right")
DOWN = ("upper", "middle", "lower")


class Spot(NamedTuple):
    """A place of a map: row and column count from 1, at the upper left."""

    row: int
    column: int
    value: float
    share: float
    """Of all the heat; what speaks against the class has none."""
    where: str


def side(row: int, column: int, rows: int, columns: int) -> str:
    """Which ninth of the picture a place is in; row and column count from 0.

    >>> side(0, 0, 14, 14), side(0, 7, 14, 14), side(7, 7, 14, 14), side(7, 13, 14, 14)
    ('upper left', 'top', 'middle', 'right')
    """
    down, across = DOWN[row * 3 // rows], ACROSS[column * 3 // columns]
    if across == "centre":
        return {"upper": "top", "middle": "middle", "lower": "bottom"}[down]
    return across if down == "middle" else f"{down} {across}"


def hottest(grid: Grid, count: int) -> list[Spot]:
    """The places with the most heat, the hottest first."""
    rows, columns = grid.shape
    heat = np.clip(grid.astype(np.float64), 0, None)
    total = heat.sum() or 1.0
    order = np.argsort(-grid.ravel(), kind="stable")[:count]
    spots = []
    for row, column in (divmod(int(i), columns) for i in order):
        value, share = float(grid[row, column]), float(heat[row, column] / total)
        spots.append(Spot(row + 1, column + 1, value, share, side(row, column, rows, columns)))
    return spots


def tenth(grid: Grid) -> float:
    """The share of the heat that the hottest tenth of the map holds; 0.1 is a map that says nothing."""
    return sum(spot.share for spot in hottest(grid, math.ceil(grid.size / 10)))


def where(grid: Grid) -> str:
    """The ninth of the picture that holds most of the heat, or that there is none."""
    rows, columns = grid.shape
    heat = np.clip(grid.astype(np.float64), 0, None)
    if not heat.any():
        return "nowhere"
    held: dict[str, float] = {}
    for (row, column), value in np.ndenumerate(heat):
        place = side(row, column, rows, columns)
        held[place] = held.get(place, 0.0) + float(value)
    return max(held, key=lambda place: held[place])


def alt(grid: Grid, method: str, label: str, picture: str) -> str:
    """What somebody who does not see the map is told instead."""
    title = f"Heat map of {method.replace('_', ' ')} for {label!r} on {picture}"
    if not (grid > 0).any():
        return f"{title}: no place speaks for it."
    (top,) = hottest(grid, 1)
    return (
        f"{title}: hottest {at(top.where)} (row {top.row}, column {top.column} of {grid.shape[0]} x "
        f"{grid.shape[1]}); the hottest tenth of it holds {percent(tenth(grid), 0)} of the heat, which lies "
        f"mostly {at(where(grid))}."
    )


def at(place: str) -> str:
    """Return a place in a sentence: "at the upper left", "in the middle"."""
    return {"nowhere": "nowhere", "middle": "in the middle"}.get(place, f"at the {place}")


def listing(words: Sequence[str]) -> str:
    """Return words in a sentence: "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def titled(word: str) -> str:
    """The name of a method as it is said."""
    return word.replace("_", " ")
