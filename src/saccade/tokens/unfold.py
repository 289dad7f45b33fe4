"""A pruned or merged model as the dense model that it equals, so that explanations work on it.

A dropped patch can stay if no token sees it. A merged token that counts once per patch equals that many
equal tokens, each replaced by their mean at the merge. So every attention matrix has a row and a column for
each patch, and what holds for a token holds for its pixels. It costs as much as the dense model, plus one
pass of the model itself to find its decisions.

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
    """What one block of the dense model needs, and what happens to its tokens."""

    weight: Weight | None
    turn: Turn | None
    means: Means | None = None
    """Between attention and MLP: each token becomes the mean of those merged with it."""
    counted: Counted | None = None
    """0 for tokens that are dropped when they leave the block, else 1."""

    def between(self, z: Tokens) -> Tokens:
        """Replace tokens that are merged in this block by their mean."""
        return z if self.means is None else self.means @ z


def unfold(vit: ViT, image: Image) -> list[Stage]:
    """Return what each block of the dense model needs to compute what `vit` does, the first block first."""
    if not isinstance(vit, Walker):
        return [Stage(*vit.relate(image))] * len(vit.blocks)
    walk = vit.walk(image)
    if isinstance(walk, Glancing):
        mask = visible(walk.grid, walk.plan.size, walk.front) if walk.plan.attention == "windowed" else None
        return [Stage(walk.weight if mask is None else mask.to(image), walk.turn)] * len(vit.blocks)
    return _follow(vit, walk, image)


@torch.no_grad()
def _follow(vit: ViT, walk: Walk, image: Image) -> list[Stage]:
    """Return the stages of a walk, from its traces at each block."""
    z, pairs, front, found = vit.embed(image), vit.relate(image), vit.config.front, list[Stage]()
    for index, block in enumerate(vit.blocks):
        z = walk.before(index, z)
        entering = walk.trace()
        z = step(block, walk, index, z)
        weight, turn = _relations(entering, front, *pairs)
        leaving = walk.trace()
        means = _means(leaving, front, z) if leaving.tokens < entering.tokens else None
        found.append(Stage(weight, turn, means, _counted(leaving, front)))
    return found


def _relations(
    trace: Trace, front: int, weight: Float[Tensor, "1 h n n"] | None, turn: Float[Tensor, "2 n k"] | None
) -> tuple[Float[Tensor, "#b #h #n n"] | None, Float[Tensor, "2 *each n k"] | None]:
    """Return weight and angles for all tokens: the mean for merged tokens, 0 for dropped ones."""
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
    """Return the matrix that averages merged tokens; dropped ones stay alone."""
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
    """Return 1 for each token that is left, 0 for dropped ones; None if none was dropped."""
    kept = trace.owner >= 0
    return None if bool(kept.all()) else F.pad(kept.float(), (front, 0), value=1.0)


def features(vit: ViT, z: Tokens, counted: Float[Tensor, "_ _"] | None) -> Float[Tensor, "b *pair e"]:
    """Return the features of unfolded tokens, also for the first tokens only or variants of one image."""
    if not isinstance(vit, Looped) or counted is None:
        return vit.features(z)
    return vit.features(z, counted[:, : z.shape[1]].expand(z.shape[:2]))


def read(vit: ViT, z: Tokens, counted: Float[Tensor, "_ _"] | None) -> Float[Tensor, "b classes"]:
    """Return the logits of unfolded tokens."""
    return vit.head(vit.prelogits(features(vit, z, counted)))
