"""A model that drops or merges patches as the dense one that it equals, so that one can look inside of it.

A dropped patch may as well stay, if nobody sees it. A merged token that counts as often as it has patches may
as well be so many equal tokens, if those are replaced by their mean where it was made. Thus every matrix of
attention has a row and a column for each patch, and whatever is found of a token is found of the pixels that
it stands for. It costs what the dense model costs, and one pass of the model's own to learn what it decides.

Shapes: b batch, n all tokens of the dense model, p patches.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from saccade.models.looped import Looped
from saccade.models.vit import ViT
from saccade.nn.attention import Tokens, Turn, Weight
from saccade.nn.patch import Image
from saccade.nn.variants.windowed import visible
from saccade.tokens.light import Glancing
from saccade.tokens.trace import Trace
from saccade.tokens.walk import Walk, Walker, step

Means = Float[Tensor, "b n n"]
Counted = Float[Tensor, "b n"]


@dataclass(frozen=True, eq=False, slots=True)
class Stage:
    """What one block is told, and what becomes of its tokens."""

    weight: Weight | None
    turn: Turn | None
    means: Means | None = None
    """Each token's share in each, between attention and MLP: a mean over those that were merged there."""
    counted: Counted | None = None
    """Whether each token has not been dropped, 1 or 0, when it leaves the block."""

    def between(self, z: Tokens) -> Tokens:
        """Tokens that were merged in this block become their mean."""
        return z if self.means is None else self.means @ z


def unfold(vit: ViT, image: Image) -> list[Stage]:
    """What each block of the dense model must be told to compute what `vit` does; the first block first."""
    if not isinstance(vit, Walker):
        return [Stage(*vit.relate(image))] * len(vit.blocks)
    walk = vit.walk(image)
    if isinstance(walk, Glancing):
        mask = visible(walk.grid, walk.plan.size, walk.front) if walk.plan.attention == "windowed" else None
        return [Stage(walk.weight if mask is None else mask.to(image), walk.turn)] * len(vit.blocks)
    return _followed(vit, walk, image)


@torch.no_grad()
def _followed(vit: ViT, walk: Walk, image: Image) -> list[Stage]:
    """The stages of a walk, read off its traces while it goes on."""
    z, pairs, front, found = vit.embed(image), vit.relate(image), vit.config.front, list[Stage]()
    for index, block in enumerate(vit.blocks):
        z = walk.before(index, z)
        entering = walk.trace()
        z = step(block, walk, index, z)
        weight, turn = _told(entering, front, *pairs)
        leaving = walk.trace()
        means = _means(leaving, front, z) if leaving.tokens < entering.tokens else None
        found.append(Stage(weight, turn, means, _counted(leaving, front)))
    return found


def _told(
    trace: Trace, front: int, weight: Float[Tensor, "1 h n n"] | None, turn: Float[Tensor, "2 n k"] | None
) -> tuple[Float[Tensor, "#b #h #n n"] | None, Float[Tensor, "2 *each n k"] | None]:
    """What attention is told of all tokens: of merged ones the mean, of dropped ones that they count 0."""
    counted = _counted(trace, front)
    if trace.tokens < trace.owner.shape[1] and (weight is not None or turn is not None):
        means = _means(trace, front, turn if weight is None else weight)[:, None]
        weight = None if weight is None else means @ weight @ means.mT
        turn = None if turn is None else means @ turn[:, None, None]
    if counted is not None:
        seen = rearrange(counted, "b n -> b 1 1 n")
        weight = seen if weight is None else weight * seen
    return weight, turn


def _means(trace: Trace, front: int, like: Tensor | None) -> Means:
    """From each token to the mean of those that are one with it; dropped ones are alone."""
    assert like is not None
    owner = trace.owner
    alone = trace.tokens + torch.arange(owner.shape[1], device=owner.device)
    owner = torch.where(owner < 0, alone, owner)
    same = (owner[:, :, None] == owner[:, None]).to(like)
    means = F.pad(same / same.sum(-1, keepdim=True), (front, 0, front, 0))
    places = torch.arange(front, device=owner.device)
    means[:, places, places] = 1
    return means


def _counted(trace: Trace, front: int) -> Counted | None:
    """1 for each token that has not been dropped; None if none has been."""
    kept = trace.owner >= 0
    return None if bool(kept.all()) else F.pad(kept.float(), (front, 0), value=1.0)


def features(vit: ViT, z: Tokens, counted: Float[Tensor, "_ _"] | None) -> Float[Tensor, "b *pair e"]:
    """The summary of unfolded tokens, be it of the first ones only, or of variants of one picture's."""
    if not isinstance(vit, Looped) or counted is None:
        return vit.features(z)
    return vit.features(z, counted[:, : z.shape[1]].expand(z.shape[:2]))


def read(vit: ViT, z: Tokens, counted: Float[Tensor, "_ _"] | None) -> Float[Tensor, "b classes"]:
    """The answer from unfolded tokens."""
    return vit.head(vit.prelogits(features(vit, z, counted)))
