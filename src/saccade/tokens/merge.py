"""Token merging: patches that look alike become one (Bolya et al. 2023, https://arxiv.org/abs/2210.09461).

Between attention and MLP of each block, every second patch finds the patch among the others whose key is most
similar to its own, and the r closest pairs become their mean, weighted by the patches that each stands for
(section 3, bipartite soft matching). A merged token counts as often as it has patches (proportional
attention). Merging needs no training, and gradients flow through it.

There are two ways to match. "paper" averages the keys over the heads, and tokens alternate from the class
token on; "own" concatenates the keys of all heads, and only patches alternate. docs/tokens.md compares them
on real images.

Shapes: b batch, t all tokens, n tokens of patches, h heads, k width of a head.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import UsageError
from saccade.models.hybrid import Hybrid
from saccade.models.looped import LoopConfig, vit_of
from saccade.models.vit import ViT
from saccade.nn.attention import Tokens
from saccade.nn.patch import Image
from saccade.tokens.trace import Trace
from saccade.tokens.walk import Fewer, Heads, Places, Walk, Walker, rows, run, select
from saccade.values import one_of, validate, within

Sizes = Float[Tensor, "b t"]
MATCHINGS = ("own", "paper")


@dataclass(frozen=True, kw_only=True, slots=True)
class MergedConfig(LoopConfig):
    """How many patches each block merges away."""

    kind: ClassVar[str] = "merged"
    rates: tuple[int, ...] = within(0, 2**20)
    """One number per block (`constant`, `decreasing`); a block can merge at most half of its patches."""
    matching: str = one_of(*MATCHINGS, default="own")

    def __post_init__(self) -> None:
        validate(self)
        depth = vit_of(self.vit).depth
        if len(self.rates) != depth:
            raise UsageError(f"rates has {len(self.rates)} numbers for {depth} blocks; give one per block")

    def build(self) -> "Merged":
        return Merged(self)


def constant(depth: int, rate: int) -> tuple[int, ...]:
    """Return the same rate for every block."""
    return (rate,) * depth


def decreasing(depth: int, rate: int) -> tuple[int, ...]:
    """Return rates from twice `rate` in the first block down to 0 in the last; their sum is as `constant`'s.

    >>> decreasing(5, 4)
    (8, 6, 4, 2, 0)
    """
    if depth == 1:
        return (rate,)
    steps = [2 * rate * (depth - 1 - i) / (depth - 1) for i in range(depth)]
    ends = [round(sum(steps[: i + 1])) for i in range(depth)]
    return tuple(b - a for a, b in zip([0, *ends], ends, strict=False))


class Match(NamedTuple):
    """Which tokens are merged with which."""

    order: Places
    """All tokens in a new order: first those that stay, then those that are merged away."""
    target: Int[Tensor, "b r"]
    """For each of the last r, the index of its match among the first."""


def match(k: Heads, front: int, rate: int, matching: str = "own") -> Match:
    """Find the `rate` closest pairs of patches; the `front` tokens before them are not merged."""
    paper = matching == "paper"
    key = k.detach().mean(1) if paper else k.detach().transpose(1, 2).flatten(2)
    length = torch.linalg.vector_norm(key, dim=-1).clamp_min(1e-6)
    # the paper takes every second token, front tokens included; ours takes every second patch
    a, b, start, (these, others) = _alternate(key, front, swap=paper and front % 2 == 1)
    # products first, lengths after: no copy of the keys is made, which halves the time of a match
    near = these @ others.mT / length[:, None, start::2]
    best, twins = near.max(-1)
    ranked = (best / length[:, a::2]).argsort(-1, descending=True)
    firsts, places = 2 * ranked + a, torch.arange(k.shape[2], device=k.device).expand(k.shape[0], -1)
    # sorted by position: by closeness, a rounding that swaps two would change the alternation of all others
    left = firsts[:, rate:].sort(-1).values
    order = torch.cat([places[:, :front], left, places[:, b::2], firsts[:, :rate]], 1)
    return Match(order, twins.gather(1, ranked[:, :rate]) + (front + ranked.shape[1] - rate))


def _alternate(
    key: Float[Tensor, "b t c"], front: int, swap: bool
) -> tuple[int, int, int, tuple[Tensor, Tensor]]:
    """Return the positions of the first source and the first target of a merge, and the keys.

    Args:
        swap: Merge the second patch, the fourth and so on into the others.
    """
    a, b = (front + 1, front) if swap else (front, front + 1)
    if torch.jit.is_tracing():  # type: ignore[no-untyped-call, attr-defined]
        # a graph for all sizes can meet a single patch: it is compared with itself and never merged
        last = key.shape[1] - 1
        if swap:
            a = torch.sym_min(a, last)  # type: ignore[no-untyped-call]
            b = 2 * front + 1 - a
        start = torch.sym_min(b, last)  # type: ignore[no-untyped-call]
        return a, b, start, (key[:, a::2], key[:, start::2])
    if (
        torch.compiler.is_compiling()
    ):  # copies: torch.export would fix the sizes for which views are contiguous
        places = torch.arange(key.shape[1], device=key.device)
        return a, b, b, (key.index_select(1, places[a::2]), key.index_select(1, places[b::2]))
    return a, b, b, (key[:, a::2], key[:, b::2])


class Merging(Walk):
    """The walk of a merged model."""

    def __init__(self, vit: "Merged", image: Image) -> None:
        super().__init__(vit, image)
        self.rates, self.matching = vit.plan.rates, vit.plan.matching
        self.pairs = self.weight
        self.size: Sizes | None = None
        """How many patches each token stands for; None as long as all stand for one."""
        self.matches: list[Match] = []

    def between(self, index: int, z: Tokens, q: Heads, k: Heads) -> Fewer:
        if not self.rates[index]:
            return z
        most = (z.shape[1] - self.front) // 2
        if not torch.compiler.is_compiling() and most == 0:  # a single patch has nothing to merge with
            return z
        rate = torch.sym_min(self.rates[index], most)  # type: ignore[no-untyped-call]
        found = match(k, self.front, rate, self.matching)
        self.matches.append(found)
        self.size, share = _grown(z.new_ones(z.shape[:2]) if self.size is None else self.size, found)
        if self.turn is not None:
            turn = self.turn
            if turn.ndim != 5:
                turn = repeat(turn, "two t k -> two b 1 t k", b=self.batch)
            flat = merged(rearrange(turn, "two b 1 t k -> b t (two k)"), found, share)
            self.turn = rearrange(flat, "b t (two k) -> two b 1 t k", two=2)
        self.weight = self.size[:, None, None] if self.pairs is None else self._related(self.pairs)
        return merged(z, found, share)

    def _related(self, pairs: Float[Tensor, "1 h t t"]) -> Float[Tensor, "b h m m"]:
        """Relative weights of merged tokens: the mean over a query's patches, the sum over a key's."""
        patches = F.pad(self.trace().matrix(), (self.front, 0, self.front, 0))
        row, col = (torch.arange(n, device=pairs.device) for n in patches.shape[1:])
        stands = patches + (row[:, None] == col).float() * (
            col < self.front
        )  # each front token stands for itself
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
    """Return the sizes after merging, and each source's share in its merged token."""
    size, left = size.gather(1, found.order), size.shape[1] - found.target.shape[1]
    source = size[:, left:]
    size = size[:, :left].scatter_add(1, found.target, source)
    return size, source / size.gather(1, found.target)


def merged(x: Float[Tensor, "b t c"], found: Match, share: Float[Tensor, "b r"]) -> Float[Tensor, "b m c"]:
    """Return the weighted means: each target moves towards its sources by their shares."""
    left = x.shape[1] - found.target.shape[1]
    flat, targets = x.flatten(0, 1), rows(found.target, left)
    made = flat.index_select(0, rows(found.order[:, :left], x.shape[1]))
    step = flat.index_select(0, rows(found.order[:, left:], x.shape[1])) - made.index_select(0, targets)
    made = made.index_add_(0, targets, step * share.flatten()[:, None])
    return made.view(x.shape[0], left, -1)


class Merged(Walker):
    """A ViT that merges patches block by block."""

    def __init__(self, config: MergedConfig) -> None:
        super().__init__(config)
        self.plan = config

    def walk(self, image: Image) -> Merging:
        return Merging(self, image)

    def encode(self, image: Image) -> Tokens:
        """Return the tokens after the last block, for each patch the one that stands for it."""
        walk = self.walk(image)
        z, front = run(self, walk, self.embed(image)), self.config.front
        owner = walk.trace().owner + front
        sure = torch.arange(front, device=z.device).expand(z.shape[0], -1)
        return select(z, torch.cat([sure, owner], 1))

    def forward(self, image: Image) -> Float[Tensor, "b classes"]:
        walk, asked = self.walk(image), self.asked() if any(self.plan.rates) else None
        z = run(self, walk, self.embed(image), asked)
        return self.read(z, walk.size if asked is None else None)


def merge(vit: ViT, rates: int | tuple[int, ...], matching: str = "own") -> Merged:
    """Return a copy of a trained ViT that merges `rates` patches per block (one number, or one each)."""
    base = vit.hybrid if isinstance(vit, Hybrid) else vit.config
    each = constant(vit.config.depth, rates) if isinstance(rates, int) else rates
    made = Merged(MergedConfig(vit=base, rates=each, matching=matching))
    made.load_state_dict(vit.state_dict())
    return made.to(vit.front.device).train(vit.training)
