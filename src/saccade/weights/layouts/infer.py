"""What a config can read off the shapes of a file."""

from collections.abc import Iterable
from dataclasses import replace
from math import isqrt
from re import escape, fullmatch
from typing import Any

from saccade.errors import ModelError, UsageError
from saccade.models.names import OURS, SIZES
from saccade.models.vit import ViTConfig
from saccade.nn.block import BlockStyle

HEADS = {width: heads for name, (width, _, heads, _) in SIZES.items() if name not in OURS}


def depth(names: Iterable[str], pattern: str) -> int:
    """How many blocks there are; `pattern` has {i} where their number stands. Gaps are refused."""
    before, after = pattern.split("{i}")
    found = {
        int(m[1]) for name in names if (m := fullmatch(rf"{escape(before)}(\d+){escape(after)}.*", name))
    }
    if found != set(range(len(found))) or not found:
        gaps = sorted(set(range(max(found, default=0) + 1)) - found)
        raise ModelError(
            f"the blocks of the model are not numbered without gaps: {gaps[:4]} missing of {before}*"
        )
    return len(found)


def heads(width: int) -> int:
    """The usual number of heads for a width: that of a published size, or width / 64."""
    found = HEADS.get(width, width // 64)
    if found < 1 or width % found:
        raise ModelError(
            f"a file of width {width} does not say its number of heads; put it in a config.json beside it"
        )
    return found


def grid(entries: int, tokens: int, patch: int, image: tuple[int, int] | None) -> tuple[tuple[int, int], int]:
    """The grid of patches behind a position table, and how many of its entries belong to class tokens.

    Without an image size, a table is that of a square grid, with or without the class tokens in it.
    """
    for embedded in (tokens, 0):
        count = entries - embedded
        if image is not None and (image[0] // patch) * (image[1] // patch) == count:
            return (image[0] // patch, image[1] // patch), embedded
        if image is None and isqrt(max(count, 0)) ** 2 == count > 0:
            return (isqrt(count), isqrt(count)), embedded
    expected = (
        "a square grid" if image is None else f"a picture of {image[0]}x{image[1]} in patches of {patch}"
    )
    raise ModelError(
        f"{entries} positions, {tokens} of them for class tokens, do not fit {expected}; "
        f"give the size of the training picture, for example image=(224, 448)"
    )


def pair(value: Any) -> tuple[int, int] | None:
    """An image size from JSON: one side, or height and width (a leading channel count is dropped)."""
    if type(value) is int:
        return value, value
    if isinstance(value, list | tuple) and len(value) in (2, 3) and all(type(v) is int for v in value):
        return value[-2], value[-1]
    return None


def check_plain(vit: ViTConfig, whose: str) -> None:
    """Refuse convolutions before the tokens, which no other layout has a place for."""
    if vit.convs:
        raise UsageError(
            f"{whose} layout has no convolutions before the tokens; write the model in saccade's own"
        )


def check_style(vit: ViTConfig, theirs: BlockStyle, whose: str) -> None:
    """Refuse to write a model in a layout whose readers would compute it otherwise."""
    check_plain(vit, whose)
    kept = {name: getattr(vit.block, name) for name in ("layerscale", "dropout", "droppath")}
    if vit.block != replace(theirs, **kept):
        raise UsageError(
            f"{whose} layout means norm {theirs.norm}, placement {theirs.placement}, eps {theirs.eps:g}, "
            f"GELU {theirs.gelu}; this model has {vit.block.norm}, {vit.block.placement}, {vit.block.eps:g}, "
            f"{vit.block.gelu} and would answer wrongly there; write it in another layout"
        )
