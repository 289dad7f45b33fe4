"""What each attention head does: how far it looks, how widely, and how much of the answer hangs on it.

The distance is that of Dosovitskiy et al. 2021 (figure 7, right). What a head adds to the stream is a term of
a sum (Elhage et al. 2021), so it can be taken out: out of the last stream alone, which is its direct path to
the answer, or where it is added, which silences it for all later blocks too (Michel et al. 2019).

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
"""Rows of a matrix of attention that are formed at a time."""
AT_ONCE = 16
"""Pictures in a batch of silenced heads."""
INSTEAD = ("zero", "mean")
NO_LOGIT = "The model has no head for classes, so there is no logit that a head of attention could change."
NO_PATH = "Post-norm blocks rescale the stream after each sum, so no head has a direct path of its own."
MERGED = "Tokens are merged between the blocks, so no head has a direct path of its own."

Finish = Callable[[Tokens, int], Float[Tensor, "b classes"]]
"""From the stream after a block, and that block's number, to the answer."""
Read = Callable[[Tokens], Float[Tensor, "b classes"]]
Table = tuple[tuple[float, ...], ...]
"""A number for each block (the first first) and head."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Heads:
    """Means over pictures, a number for each block and head; an empty table was not measured (see `why`)."""

    pictures: int
    tokens: int
    distance: Table
    """Pixels between a patch and what it attends to."""
    entropy: Table
    """Of the attention of a token, in nats; 0 is one place."""
    uniform: float
    """The distance of attention that is the same everywhere; its entropy is the logarithm of `tokens`."""
    effects: int
    """Pictures on which the next two were measured."""
    direct: Table
    """How much of the target's logit comes from the head by its direct path."""
    ablation: Table
    """How much the target's logit falls when the head is silenced."""
    instead: str
    """What a silenced head adds: zero, or its mean over the pictures."""
    why: str


def look(
    moment: Moment, between: Float[Tensor, "m m"], rows: int = ROWS
) -> tuple[Float[Tensor, "b h"], Float[Tensor, "b h"]]:
    """Distance and entropy of a block's heads, the matrix formed a few rows at a time.

    Args:
        between: Distances of all pairs of the last m tokens; those before have no place.
    """
    tokens, places = moment.q.shape[2], between.shape[0]
    front = tokens - places
    far, spread = (torch.zeros(moment.q.shape[:2], dtype=torch.float64, device=between.device) for _ in "ab")
    for part in moment.rows(rows):
        spread += torch.special.entr(part.p.double()).sum((2, 3))
        skip = max(front - part.start, 0)
        if (placed := part.p[:, :, skip:]).shape[2]:
            first = part.start + skip - front
            far += reach(placed, between[first : first + placed.shape[2]]).sum(2)
    return far / places, spread / tokens


def finisher(vit: ViT, image: Image) -> Finish:
    """The rest of a model behind any of its blocks; of one that drops or merges patches, for one picture."""
    stages = unfold(vit, image)

    def finish(z: Tokens, index: int) -> Float[Tensor, "b classes"]:
        for moment in follow(list(vit.blocks)[index + 1 :], z, stages[index + 1 :]):
            z = moment.out
        return read(vit, z, stages[-1].counted)

    return finish


def direct(
    moment: Moment, last: Tokens, read: Read, instead: Float[Tensor, "#b h n d"] | None = None
) -> Float[Tensor, "b h classes"]:
    """The answers when what each head adds, in turn, is taken out of the `last` stream alone.

    Later blocks go on as if it were there. Only where blocks add to one stream, which post-norm ones do not.

    Args:
        instead: What each head adds in the place of its own; nothing if it is None.
    """
    change, scale = _change(moment, instead), moment.block.add1.scale
    change = change if scale is None else change * scale
    return torch.stack([read(last + each) for each in change.unbind(1)], dim=1)


def ablation(
    moment: Moment, finish: Finish, instead: Float[Tensor, "#b h n d"] | None = None
) -> Float[Tensor, "b h classes"]:
    """The answers when each head in turn is silenced; several heads are tried at a time.

    Args:
        instead: What a silenced head adds in the place of its own; nothing if it is None.
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


def fall(
    logits: Float[Tensor, "b classes"], without: Float[Tensor, "b h classes"], target: Int[Tensor, "b"]
) -> Float[Tensor, "b h"]:
    """How much of the target's logit is lost without each head; less than 0 if it is won."""
    each = torch.arange(target.shape[0], device=target.device)
    return logits[each, target][:, None] - without[each, :, target]


def _change(moment: Moment, instead: Tensor | None) -> Float[Tensor, "b h n d"]:
    return -moment.parts() if instead is None else instead - moment.parts()


def mean_parts(vit: ViT, image: Image) -> list[Float[Tensor, "1 h n d"]]:
    """What each head adds on average over pictures, token by token; the first block first."""
    if image.shape[0] < 2:
        raise UsageError(
            f"instead is 'mean' over {image.shape[0]} picture, which is the picture itself; "
            "expected two or more pictures; give more, or use 'zero'"
        )
    total: list[Tensor] = []
    for one in torch.split(image, 1):
        parts = [moment.parts() for moment in moments(vit, one)]
        total = [a + b for a, b in zip(total, parts, strict=True)] if total else parts
    return [part / image.shape[0] for part in total]


def _effects(
    vit: ViT, image: Image, target: Int[Tensor, "b"], instead: str, straight: bool
) -> tuple[Float[Tensor, "some h"], Float[Tensor, "l h"]]:
    """Direct contribution, where the paths are `straight`, and ablation: means over single pictures."""
    means = mean_parts(vit, image) if instead == "mean" else [None] * len(vit.blocks)
    depth = len(vit.blocks) if straight else 0
    direct_ = torch.zeros(depth, vit.config.heads, dtype=torch.float64)
    ablation_ = torch.zeros(len(vit.blocks), vit.config.heads, dtype=torch.float64)
    for one, wanted in zip(torch.split(image, 1), torch.split(target, 1), strict=True):
        *_, last = moments(vit, one)
        finish, answer = finisher(vit, one), partial(read, vit, counted=last.stage.counted)
        logits = answer(last.out)
        for moment, mean in zip(moments(vit, one), means, strict=True):
            lost = fall(logits, ablation(moment, finish, mean), wanted)
            ablation_[moment.index] += lost[0].double().cpu()
            if depth:
                lost = fall(logits, direct(moment, last.out, answer, mean), wanted)
                direct_[moment.index] += lost[0].double().cpu()
    return direct_ / image.shape[0], ablation_ / image.shape[0]


def _bent(vit: ViT, image: Image) -> str:
    """Why no head has a direct path to the answer; nothing if each has."""
    if vit.config.block.placement == "post":
        return NO_PATH
    return "" if all(stage.means is None for stage in unfold(vit, image)) else MERGED


def _table(values: Float[Tensor, "l h"]) -> Table:
    return tuple(map(tuple, values.tolist()))


@torch.no_grad()
def measure(
    vit: ViT, image: Image, target: Int[Tensor, "b"], effects: int = 8, instead: str = "zero"
) -> Heads:
    """Watch every head on some pictures.

    Args:
        target: The class of each picture whose logit is looked at.
        effects: On how many of the pictures to silence heads, which costs about half as many forward passes
            a picture as there are heads in all.
        instead: zero, or mean: what a silenced head adds.
    """
    check_word("instead", instead, INSTEAD)
    between = apart(grid_of(vit, image), vit.config.patch, image)
    depth, heads = len(vit.blocks), vit.config.heads
    sums = torch.zeros(2, depth, heads, dtype=torch.float64)
    for one in torch.split(image, 1):
        for moment in moments(vit, one):
            for total, found in zip(sums, look(moment, between), strict=True):
                total[moment.index] += found[0].cpu()
    used = min(effects, image.shape[0]) if vit.config.classes else 0
    direct_, ablation_, why = torch.zeros(0, 0), torch.zeros(0, 0), NO_LOGIT
    if used:
        why = _bent(vit, image[:1])
        direct_, ablation_ = _effects(vit, image[:used], target[:used], instead, not why)
    distance, entropy = sums / image.shape[0]
    return Heads(
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


def widest(heads: Heads) -> float:
    """The entropy of attention that is the same everywhere."""
    return math.log(heads.tokens)
