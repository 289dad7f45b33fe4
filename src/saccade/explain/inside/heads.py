"""What each attention head does: how far and how widely it attends, and how much the answer depends on it.

The distance is that of Dosovitskiy et al. 2021 (figure 7, right). A head's output is a term of the residual
stream's sum (Elhage et al. 2021), so it can be removed: from the last stream alone, which is its direct path
to the answer, or where it is added, which ablates it for all later blocks too (Michel et al. 2019).

Shapes: b batch, h heads, n tokens, d width.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import UsageError, check_word
from saccade.explain.replay import Moment, follow, grid_of, moments
from saccade.models.receptive_field import apart, reach
from saccade.models.vit import ViT
from saccade.nn.attention import Tokens
from saccade.nn.patch import Image
from saccade.tokens.unfold import read, unfold

ROWS = 256
"""Rows of an attention matrix in memory at a time."""
AT_ONCE = 16
"""Images in a batch of ablated heads."""
INSTEAD = ("zero", "mean")
NO_LOGIT = "The model has no classification head, so attention heads have no logit to change."
NO_PATH = "Post-norm blocks rescale the stream after each sum, so no head has a direct path of its own."
MERGED = "Tokens are merged between the blocks, so no head has a direct path of its own."

Finish = Callable[[Tokens, int], Float[Tensor, "b classes"]]
"""From the stream after a block, and that block's index, to the logits."""
_Read = Callable[[Tokens], Float[Tensor, "b classes"]]
Table = tuple[tuple[float, ...], ...]
"""A number for each block, in order, and head."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadStatistics:
    """Means over images for each block and head; an empty table was not measured (see `why`)."""

    pictures: int
    tokens: int
    distance: Table
    """Pixels between a patch and what it attends to."""
    entropy: Table
    """Of a token's attention, in nats; 0 if it attends to one token."""
    uniform: float
    """The distance of uniform attention; its entropy is the logarithm of `tokens`."""
    effects: int
    """Images on which the next two were measured."""
    direct: Table
    """Part of the target's logit that comes from the head by its direct path."""
    ablation: Table
    """How much the target's logit falls when the head is ablated."""
    instead: str
    """What an ablated head adds: zero, or its mean over the images."""
    why: str


def distance_and_entropy(
    moment: Moment, between: Float[Tensor, "m m"], rows: int = ROWS
) -> tuple[Float[Tensor, "b h"], Float[Tensor, "b h"]]:
    """Return distance and entropy of a block's heads, with only a few rows of the matrix in memory.

    Args:
        between: distances of all pairs of the last m tokens; those before have no position.
    """
    tokens, patches = moment.q.shape[2], between.shape[0]
    front = tokens - patches
    far, spread = (torch.zeros(moment.q.shape[:2], dtype=torch.float64, device=between.device) for _ in "ab")
    for part in moment.rows(rows):
        spread += torch.special.entr(part.p.double()).sum((2, 3))
        skip = max(front - part.start, 0)
        if (placed := part.p[:, :, skip:]).shape[2]:
            first = part.start + skip - front
            far += reach(placed, between[first : first + placed.shape[2]]).sum(2)
    return far / patches, spread / tokens


def finisher(vit: ViT, image: Image) -> Finish:
    """Return the rest of a model after any of its blocks; for one image if it drops or merges patches."""
    stages = unfold(vit, image)

    def finish(z: Tokens, index: int) -> Float[Tensor, "b classes"]:
        for moment in follow(list(vit.blocks)[index + 1 :], z, stages[index + 1 :]):
            z = moment.out
        return read(vit, z, stages[-1].counted)

    return finish


def direct(
    moment: Moment, last: Tokens, read: _Read, instead: Float[Tensor, "#b h n d"] | None = None
) -> Float[Tensor, "b h classes"]:
    """Return the logits when the output of each head in turn is removed from the `last` stream alone.

    Later blocks still see it. Only for blocks that add to one stream, which post-norm ones do not.

    Args:
        instead: what each head adds instead of its own output; None is zero.
    """
    change, scale = _change(moment, instead), moment.block.add1.scale
    change = change if scale is None else change * scale
    return torch.stack([read(last + each) for each in change.unbind(1)], dim=1)


def ablation(
    moment: Moment, finish: Finish, instead: Float[Tensor, "#b h n d"] | None = None
) -> Float[Tensor, "b h classes"]:
    """Return the logits when each head in turn is ablated; several heads run in one batch.

    Args:
        instead: what an ablated head adds instead of its own output; None is zero.
    """
    block, found = moment.block, []
    added, change = block.attention.join(moment.heads), _change(moment, instead)
    for some in torch.split(change, max(1, AT_ONCE // change.shape[0]), dim=1):
        h = some.shape[1]
        y = rearrange(added[:, None] + some, "b h n d -> (h b) n d")
        z = moment.stage.between(block.add1(repeat(moment.z, "b n d -> (h b) n d", h=h), y))
        z = block.add2(z, block.mlp(block.norm2(z)))
        found.append(rearrange(finish(z, moment.index), "(h b) classes -> b h classes", h=h))
    return torch.cat(found, dim=1)


def logit_drop(
    logits: Float[Tensor, "b classes"], without: Float[Tensor, "b h classes"], target: Int[Tensor, "b"]
) -> Float[Tensor, "b h"]:
    """Return how much the target's logit falls without each head; below 0 if it rises."""
    each = torch.arange(target.shape[0], device=target.device)
    return logits[each, target][:, None] - without[each, :, target]


def _change(moment: Moment, instead: Tensor | None) -> Float[Tensor, "b h n d"]:
    return -moment.parts() if instead is None else instead - moment.parts()


def mean_parts(vit: ViT, image: Image) -> list[Float[Tensor, "1 h n d"]]:
    """Return what each head adds on average over images, token by token, for each block."""
    if image.shape[0] < 2:
        raise UsageError(
            f"instead is 'mean' over {image.shape[0]} image, which is the image itself; expected two or more "
            "images; give more, or use 'zero'"
        )
    total: list[Tensor] = []
    for one in torch.split(image, 1):
        parts = [moment.parts() for moment in moments(vit, one)]
        total = [a + b for a, b in zip(total, parts, strict=True)] if total else parts
    return [part / image.shape[0] for part in total]


def _effects(
    vit: ViT, image: Image, target: Int[Tensor, "b"], instead: str, straight: bool
) -> tuple[Float[Tensor, "some h"], Float[Tensor, "l h"]]:
    """Return direct contribution, if the paths are `straight`, and ablation: means over images."""
    means = mean_parts(vit, image) if instead == "mean" else [None] * len(vit.blocks)
    depth = len(vit.blocks) if straight else 0
    direct_ = torch.zeros(depth, vit.config.heads, dtype=torch.float64)
    ablation_ = torch.zeros(len(vit.blocks), vit.config.heads, dtype=torch.float64)
    for one, wanted in zip(torch.split(image, 1), torch.split(target, 1), strict=True):
        *_, last = moments(vit, one)
        finish, answer = finisher(vit, one), partial(read, vit, counted=last.stage.counted)
        logits = answer(last.out)
        for moment, mean in zip(moments(vit, one), means, strict=True):
            lost = logit_drop(logits, ablation(moment, finish, mean), wanted)
            ablation_[moment.index] += lost[0].double().cpu()
            if depth:
                lost = logit_drop(logits, direct(moment, last.out, answer, mean), wanted)
                direct_[moment.index] += lost[0].double().cpu()
    return direct_ / image.shape[0], ablation_ / image.shape[0]


def _no_direct_path(vit: ViT, image: Image) -> str:
    """Say why no head has a direct path to the answer; return "" if each has."""
    if vit.config.block.placement == "post":
        return NO_PATH
    return "" if all(stage.means is None for stage in unfold(vit, image)) else MERGED


def _table(values: Float[Tensor, "l h"]) -> Table:
    return tuple(map(tuple, values.tolist()))


@torch.no_grad()
def measure(
    vit: ViT, image: Image, target: Int[Tensor, "b"], effects: int = 8, instead: str = "zero"
) -> HeadStatistics:
    """Measure every head on some images.

    Args:
        target: the class of each image whose logit is measured.
        effects: images on which to ablate heads; costs half as many forward passes per image as there are
            heads in all.
        instead: zero, or mean: what an ablated head adds.
    """
    check_word("instead", instead, INSTEAD)
    between = apart(grid_of(vit, image), vit.config.patch, image)
    depth, heads = len(vit.blocks), vit.config.heads
    sums = torch.zeros(2, depth, heads, dtype=torch.float64)
    for one in torch.split(image, 1):
        for moment in moments(vit, one):
            for total, found in zip(sums, distance_and_entropy(moment, between), strict=True):
                total[moment.index] += found[0].cpu()
    used = min(effects, image.shape[0]) if vit.config.classes else 0
    direct_, ablation_, why = torch.zeros(0, 0), torch.zeros(0, 0), NO_LOGIT
    if used:
        why = _no_direct_path(vit, image[:1])
        direct_, ablation_ = _effects(vit, image[:used], target[:used], instead, not why)
    distance, entropy = sums / image.shape[0]
    return HeadStatistics(
        pictures=image.shape[0],
        tokens=vit.config.front + between.shape[0],
        distance=_table(distance),
        entropy=_table(entropy),
        uniform=between.mean().item(),
        effects=used,
        direct=_table(direct_),
        ablation=_table(ablation_),
        instead=instead,
        why=why,
    )


def widest(heads: HeadStatistics) -> float:
    """Return the entropy of uniform attention."""
    return math.log(heads.tokens)
