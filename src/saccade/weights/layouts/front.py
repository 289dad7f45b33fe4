"""The tokens before the patches and the table of positions, which others store otherwise than we do."""

import torch
from einops import rearrange
from torch import Tensor

from saccade.weights.layouts.rules import Rule


def front_rule(tokens: list[str], counts: list[int], embedded: int, grid: tuple[int, int], pos: str) -> Rule:
    """Class tokens, registers and positions: ours stores a class token with its position already added.

    Args:
        tokens: their names of the tokens in front, in order.
        counts: how many vectors each of those holds.
        embedded: how many of the vectors in front have an entry in their position table.
    """

    def load(*theirs: Tensor) -> tuple[Tensor, ...]:
        *front, places = (rearrange(t, "1 n d -> n d") for t in theirs)
        table = rearrange(places[embedded:], "(r c) d -> r c d", r=grid[0])
        if not front:
            return (table,)
        own = torch.cat(list(front))
        return torch.cat([own[:embedded] + places[:embedded], own[embedded:]]), table

    def save(*ours: Tensor) -> tuple[Tensor, ...]:
        *front, table = ours
        places = torch.cat([table.new_zeros(embedded, table.shape[-1]), rearrange(table, "r c d -> (r c) d")])
        parts = torch.split(front[0], counts) if front else ()
        return tuple(rearrange(t, "n d -> 1 n d").contiguous() for t in (*parts, places))

    ours = ("front", "position.table") if tokens else ("position.table",)
    return Rule(ours, (*tokens, pos), load, save)
