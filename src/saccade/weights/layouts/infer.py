"""Infer a config from the shapes in a file."""

from collections.abc import Iterable
from dataclasses import replace
from math import isqrt
from re import escape, fullmatch
from typing import Any

from saccade.errors import ModelError, UsageError
from saccade.models.hybrid import HybridConfig
from saccade.models.names import OURS, SIZES
from saccade.models.vit import ViTConfig
from saccade.nn.block import BlockStyle

HEADS = {width: heads for name, (width, _, heads, _) in SIZES.items() if name not in OURS}


def depth(names: Iterable[str], pattern: str) -> int:
    """Return the number of blocks; `pattern` has {i} in place of the index. Refuse gaps."""
    before, after = pattern.split("{i}")
    found = {
        int(m[1]) for name in names if (m := fullmatch(rf"{escape(before)}(\d+){escape(after)}.*", name))
    }
    if found != set(range(len(found))) or not found:
        gaps = sorted(set(range(max(found, default=0) + 1)) - found)
        raise ModelError(
            f"the blocks of the model have gaps in their numbers: {gaps[:4]} missing of {before}*"
        )
    return len(found)


def heads(width: int) -> int:
    """Return the usual number of heads for a width: that of a published size, or width / 64."""
    found = HEADS.get(width, width // 64)
    if found < 1 or width % found:
        raise ModelError(
            f"the file (width {width}) does not say how many heads it has; add a config.json that does"
        )
    return found


def grid(entries: int, tokens: int, patch: int, image: tuple[int, int] | None) -> tuple[tuple[int, int], int]:
    """Return the grid of patches behind a position table, and how many entries belong to class tokens.

    Without an image size, a table is that of a square grid, with or without the class tokens in it.
    """
    for embedded in (tokens, 0):
        count = entries - embedded
        if image is not None and (image[0] // patch) * (image[1] // patch) == count:
            return (image[0] // patch, image[1] // patch), embedded
        if image is None and isqrt(max(count, 0)) ** 2 == count > 0:
            return (isqrt(count), isqrt(count)), embedded
    expected = (
        "a square grid" if image is None else f"an image of {image[0]}x{image[1]} in patches of {patch}"
    )
    raise ModelError(
        f"{entries} positions, {tokens} of them for class tokens, do not fit {expected}; "
        f"give the size of the training images, for example image=(224, 448)"
    )


def pair(value: Any) -> tuple[int, int] | None:
    """Read an image size from JSON: one side, or height and width (a leading channel count is dropped)."""
    if type(value) is int:
        return value, value
    if isinstance(value, list | tuple) and len(value) in (2, 3) and all(type(v) is int for v in value):
        return value[-2], value[-1]
    return None


def check_plain(vit: ViTConfig, whose: str) -> None:
    """Refuse convolutions before the tokens, which no other layout has a place for."""
    if vit.convs:
        raise UsageError(f"{whose} layout has no convolutions before the tokens")


def check_style(vit: ViTConfig, theirs: BlockStyle, whose: str) -> None:
    """Refuse to write a model in a layout whose readers would compute it otherwise."""
    check_plain(vit, whose)
    kept = {name: getattr(vit.block, name) for name in ("layerscale", "dropout", "droppath")}
    if vit.block != replace(theirs, **kept):
        raise UsageError(
            f"{whose} layout means norm {theirs.norm}, placement {theirs.placement}, eps {theirs.eps:g}, "
            f"GELU {theirs.gelu}; this model has {vit.block.norm}, {vit.block.placement}, {vit.block.eps:g}, "
            f"{vit.block.gelu} and would give wrong answers there"
        )
    if vit.position != "learned":
        raise UsageError(f"{whose} layout expects learnt positions; this model has {vit.position!r}")


def check_input(size: tuple[int, int], vit: ViTConfig, whose: str) -> None:
    """Refuse a preprocessing size other than the training size, as the layout stores only one."""
    if size != vit.image:
        (height, width), (tall, wide) = size, vit.image
        raise UsageError(
            f"{whose} layout has one image size; this model takes images of {height}x{width} and was trained "
            f"on {tall}x{wide} (--image {height}x{width} resamples its positions permanently)"
        )


def check_stem(config: HybridConfig, eps: float, variance_eps: float, whose: str) -> None:
    """Refuse a hybrid whose stem the layout's readers would compute differently."""
    if config.eps != eps:
        raise UsageError(f"{whose} hybrids have a GroupNorm of eps {eps:g}; this model has {config.eps:g}")
    if config.variance_eps != variance_eps:
        raise UsageError(
            f"{whose} hybrids add {variance_eps:g} to the variance of a kernel; "
            f"this model adds {config.variance_eps:g}"
        )
