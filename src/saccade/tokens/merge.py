"""Token merging: patches that look alike become one (Bolya et al. 2023, https://arxiv.org/abs/2210.09461).

Between attention and MLP of each block, every second patch looks for the patch of the others whose key is the
most like its own, and the r closest pairs become their mean, weighted by the patches that each stands for
(section 3, bipartite soft matching). A merged token counts as often as it has patches (proportional
attention). Nothing needs to be trained, and all of it can be trained through. Keys are compared by the cosine
over all heads side by side: by that over their mean, as in the paper, a ViT-Ti lost 0.5 point more at r = 8.

Shapes: b batch, t all tokens, n tokens of patches, h heads, k width of a head.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import UsageError, check_number
from saccade.models.hybrid import Hybrid
from saccade.models.looped import LoopConfig, vit_of
from saccade.models.vit import ViT
from saccade.nn.attention import Tokens
from saccade.nn.patch import Image
from saccade.tokens.trace import Trace
from saccade.tokens.walk import Fewer, Heads, Places, Walk, Walker, rows, run, select

Sizes = Float[Tensor, "b t"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MergedConfig(LoopConfig):
    """How many patches each block merges away."""

    kind: ClassVar[str] = "merged"
    rates: tuple[int, ...]
    """One number a block (`constant`, `decreasing`); no block can merge more than half of its patches."""

    def __post_init__(self) -> None:
        depth = vit_of(self.vit).depth
        if len(self.rates) != depth:
            raise UsageError(f"rates has {len(self.rates)} numbers for {depth} blocks; give one for each")
        for rate in self.rates:
            check_number("rates", rate, 0, 2**20)

    def build(self) -> "Merged":
        return Merged(self)


def constant(depth: int, rate: int) -> tuple[int, ...]:
    """The same number in every block."""
    return (rate,) * depth


def decreasing(depth: int, rate: int) -> tuple[int, ...]:
    """From twice the rate in the first block down to none in the last; as many in all as `constant`.

    >>> decreasing(5, 4)
    (8, 6, 4, 2, 0)
    """
    if depth == 1:
        return (rate,)
    steps = [2 * rate * (depth - 1 - i) / (depth - 1) for i in range(depth)]
    ends = [round(sum(steps[: i + 1])) for i in range(depth)]
    return tuple(b - a for a, b in zip([0, *ends], ends, strict=False))


class Match(NamedTuple):
    """Who is merged with whom."""

    order: Places
    """All tokens anew: first those that go on, then those that are merged away."""
    target: Int[Tensor, "b r"]
    """For each of the last r of them, the place of its twin among the first."""


def match(k: Heads, front: int, rate: int) -> Match:
    """Find the `rate` closest pairs of patches; the `front` tokens before them stay as they are."""
    key = k.detach().transpose(1, 2).flatten(2)
    length = torch.linalg.vector_norm(key, dim=-1).clamp_min(1e-6)
    start, (these, others) = _parted(key, front)
    # products first, lengths after: no copy of the keys is made, which halves the time of a match
    near = these @ others.mT / length[:, None, start::2]
    best, twins = near.max(-1)
    ranked = (best / length[:, front::2]).argsort(-1, descending=True)
    firsts, places = 2 * ranked + front, torch.arange(k.shape[2], device=k.device).expand(k.shape[0], -1)
    # in the order of their places: by closeness, a rounding that swaps two would part all others anew
    left = firsts[:, rate:].sort(-1).values
    order = torch.cat([places[:, :front], left, places[:, front + 1 :: 2], firsts[:, :rate]], 1)
    return Match(order, twins.gather(1, ranked[:, :rate]) + (front + ranked.shape[1] - rate))


def _parted(key: Float[Tensor, "b t c"], front: int) -> tuple[int, tuple[Tensor, Tensor]]:
    """Every second patch, the others, and the place of the first of these."""
    if torch.jit.is_tracing():  # type: ignore[no-untyped-call, attr-defined]
        # a graph for all sizes meets a single patch too: it is compared with itself, and merged with nobody
        start = torch.sym_min(front + 1, key.shape[1] - 1)  # type: ignore[no-untyped-call]
        return start, (key[:, front::2], key[:, start::2])
    if torch.compiler.is_compiling():  # copies: torch.export would fix the sizes that make views contiguous
        places = torch.arange(key.shape[1], device=key.device)
        return front + 1, (key.index_select(1, places[front::2]), key.index_select(1, places[front + 1 :: 2]))
    return front + 1, (key[:, front::2], key[:, front + 1 :: 2])


class Merging(Walk):
    """The walk of a merged model."""

    def __init__(self, vit: "Merged", image: Image) -> None:
        super().__init__(vit, image)
        self.rates = vit.plan.rates
        self.pairs = self.weight
        self.size: Sizes | None = None
        """How many patches each token stands for; None as long as all stand for one."""
        self.matches: list[Match] = []

    def between(self, index: int, z: Tokens, q: Heads, k: Heads) -> Fewer:
        if not self.rates[index]:
            return z
        most = (z.shape[1] - self.front) // 2
        if not torch.compiler.is_compiling() and most == 0:  # a single patch has nobody to merge with
            return z
        found = match(k, self.front, torch.sym_min(self.rates[index], most))  # type: ignore[no-untyped-call]
        self.matches.append(found)
        self.size, share = _grown(z.new_ones(z.shape[:2]) if self.size is None else self.size, found)
        if self.turn is not None:
            turn = (
                self.turn
                if self.turn.ndim == 5
                else repeat(self.turn, "two t k -> two b 1 t k", b=self.batch)
            )
            flat = merged(rearrange(turn, "two b 1 t k -> b t (two k)"), found, share)
            self.turn = rearrange(flat, "b t (two k) -> two b 1 t k", two=2)
        self.weight = self.size[:, None, None] if self.pairs is None else self._related(self.pairs)
        return merged(z, found, share)

    def _related(self, pairs: Float[Tensor, "1 h t t"]) -> Float[Tensor, "b h m m"]:
        """Relative weights between merged tokens: a mean over the query's patches, a sum over the key's."""
        patches = F.pad(self.trace().matrix(), (self.front, 0, self.front, 0))
        row, col = (torch.arange(n, device=pairs.device) for n in patches.shape[1:])
        stands = patches + (row[:, None] == col).float() * (col < self.front)  # each front token for itself
        asks = stands / stands.sum(-1, keepdim=True)
        return asks[:, None] @ pairs @ stands[:, None].mT

    def trace(self) -> Trace:
        trace = super().trace()
        for order, target in self.matches:
            left = order.shape[1] - target.shape[1]
            rank = torch.arange(left, device=order.device).expand(order.shape[0], -1)
            into = torch.zeros_like(order).scatter(1, order, torch.cat([rank, target], 1))
            trace = trace.moved(into[:, self.front :] - self.front, left - self.front)
        return trace


def _grown(size: Sizes, found: Match) -> tuple[Float[Tensor, "b m"], Float[Tensor, "b r"]]:
    """The sizes after merging, and which share of its merged token each source is."""
    size, left = size.gather(1, found.order), size.shape[1] - found.target.shape[1]
    source = size[:, left:]
    size = size[:, :left].scatter_add(1, found.target, source)
    return size, source / size.gather(1, found.target)


def merged(x: Float[Tensor, "b t c"], found: Match, share: Float[Tensor, "b r"]) -> Float[Tensor, "b m c"]:
    """The weighted means: each target moves towards its sources by their shares."""
    left = x.shape[1] - found.target.shape[1]
    flat, targets = x.flatten(0, 1), rows(found.target, left)
    made = flat.index_select(0, rows(found.order[:, :left], x.shape[1]))
    step = flat.index_select(0, rows(found.order[:, left:], x.shape[1])) - made.index_select(0, targets)
    made = made.index_add_(0, targets, step * share.flatten()[:, None])
    return made.view(x.shape[0], left, -1)


class Merged(Walker):
    """A ViT that merges patches on its way."""

    def __init__(self, config: MergedConfig) -> None:
        super().__init__(config)
        self.plan = config

    def walk(self, image: Image) -> Merging:
        return Merging(self, image)

    def encode(self, image: Image) -> Tokens:
        """The tokens after the last block, each patch with the one that stands for it: as many as a ViT's."""
        walk = self.walk(image)
        z, front = run(self, walk, self.embed(image)), self.config.front
        owner = walk.trace().owner + front
        sure = torch.arange(front, device=z.device).expand(z.shape[0], -1)
        return select(z, torch.cat([sure, owner], 1))

    def forward(self, image: Image) -> Float[Tensor, "b classes"]:
        walk, asked = self.walk(image), self.asked() if any(self.plan.rates) else None
        z = run(self, walk, self.embed(image), asked)
        return self.read(z, walk.size if asked is None else None)


def merge(vit: ViT, rates: int | tuple[int, ...]) -> Merged:
    """A copy of a trained ViT that merges so many patches a block, in every block or in each its own."""
    base = vit.hybrid if isinstance(vit, Hybrid) else vit.config
    each = constant(vit.config.depth, rates) if isinstance(rates, int) else rates
    made = Merged(MergedConfig(vit=base, rates=each))
    made.load_state_dict(vit.state_dict())
    return made.to(vit.front.device).train(vit.training)
