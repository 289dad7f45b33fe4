"""DynamicViT: drop the patches that do not matter (Rao et al. 2021, https://arxiv.org/abs/2106.02034).

Before some of the blocks a predictor scores the patches (section 3.2). In inference the best patches are
gathered; in training the decisions are drawn at random, and dropped patches are hidden from all others
(section 3.3), so that decisions have gradients. For comparison, there are two scores without training.

Shapes: b batch, n tokens of patches, t all tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import UsageError, check_number, check_word
from saccade.models.hybrid import Hybrid
from saccade.models.looped import LoopConfig, vit_of
from saccade.models.vit import ViT
from saccade.nn import init
from saccade.nn.attention import Tokens, probabilities
from saccade.nn.patch import Image
from saccade.nn.stack import Stack
from saccade.tokens.trace import Trace
from saccade.tokens.walk import Fewer, Heads, Places, Walk, Walker, gather_pairs, run, select

Patches = Float[Tensor, "b n d"]
Decision = Float[Tensor, "b n"]
"""1 for a patch that is kept, 0 for one that is dropped."""
WAYS = ("predictor", "attention", "random")
PARTS = 1_000_000
"""Shares of patches are in millionths: whole numbers survive an export with free sizes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrunedConfig(LoopConfig):
    """Which share of the patches is kept, before which blocks, and by which score."""

    kind: ClassVar[str] = "pruned"
    keep: float
    """Share of the remaining patches that each place keeps; 1 drops nothing."""
    places: tuple[int, ...]
    """Blocks before which patches are dropped, counted from 0."""
    by: str = "predictor"
    """predictor (learnt), attention (of the class token in the block before) or random."""
    seed: int = 0
    """Of random dropping; the same patches in every image."""

    def __post_init__(self) -> None:
        depth = vit_of(self.vit).depth
        if not 0 < self.keep <= 1:
            raise UsageError(f"keep is {self.keep:g}; expected a share of the patches above 0 and at most 1")
        check_word("by", self.by, WAYS)
        check_number("seed", self.seed, 0, 2**32)
        first = 1 if self.by == "attention" else 0
        if list(self.places) != sorted(set(self.places) & set(range(first, depth))):
            raise UsageError(
                f"places are {self.places}; expected increasing block numbers from {first} to {depth - 1}"
            )

    def count(self, stage: int, patches: int) -> int:
        """Return how many of `patches` are left after place `stage`, counted from 0; at least one."""
        share = round(self.keep ** (stage + 1) * PARTS)
        return torch.sym_max(patches * share // PARTS, 1)  # type: ignore[no-untyped-call]

    @property
    def ratios(self) -> tuple[float, ...]:
        """Share of all patches left after each place: keep, keep^2, keep^3, ..."""
        return tuple(self.keep ** (stage + 1) for stage in range(len(self.places)))

    def build(self) -> "Pruned":
        return Pruned(self)


def usual_places(depth: int, count: int | None = None) -> tuple[int, ...]:
    """Return evenly spread places: three as in the paper, fewer for few blocks.

    >>> usual_places(12), usual_places(4)
    ((3, 6, 9), (2,))
    """
    count = min(max(depth // 3, 1), 3) if count is None else count
    return tuple(sorted({max(depth * (i + 1) // (count + 1), 1) for i in range(count)} & set(range(depth))))


class Predictor(nn.Module):
    """Two logits for each token, to keep it and to drop it (section 3.2).

    Half of the channels are the token's own, the other half are averaged over the tokens kept so far; an MLP
    reads both.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        half, quarter = max(width // 2, 1), max(width // 4, 1)
        self.norm, self.enter = nn.LayerNorm(width, eps=1e-5), nn.Linear(width, width)
        self.mix = nn.Linear(width, half)
        self.narrow = nn.Linear(half, quarter)
        self.decide = nn.Linear(quarter, 2)

    @torch.no_grad()
    def lean(self, keep: float) -> None:
        """Start with this probability to keep a patch: a model learns faster from its usual share."""
        chance = min(max(keep, 0.01), 0.99)
        self.decide.bias.copy_(torch.tensor([chance, 1 - chance]).log())

    def forward(self, z: Patches, kept: Decision | None = None) -> Float[Tensor, "b n 2"]:
        x = F.gelu(self.enter(self.norm(z)))
        half = self.narrow.in_features
        local, whole = x[..., :half], x[..., half:]
        mean = whole.mean(1, keepdim=True) if kept is None else _mean(whole, kept)
        # The average is the same for all tokens, so its half of the matrix is multiplied once.
        near, far = self.mix.weight[:, :half], self.mix.weight[:, half:]
        x = F.gelu(F.linear(local, near) + F.linear(mean, far, self.mix.bias))
        return self.decide(F.gelu(self.narrow(x)))


def _mean(x: Patches, kept: Decision) -> Float[Tensor, "b 1 d"]:
    counted = kept[..., None]
    return (x * counted).sum(1, keepdim=True) / counted.sum(1, keepdim=True).clamp_min(1e-6)


def score(logits: Float[Tensor, "b n 2"]) -> Float[Tensor, "b n"]:
    """Return the log-odds of being kept."""
    return logits[..., 0] - logits[..., 1]


def sample(logits: Float[Tensor, "b n 2"]) -> Decision:
    """Draw 1 (keep) or 0 (drop) with these probabilities and a gradient (Jang et al. 2017)."""
    return F.gumbel_softmax(logits, hard=True)[..., 0]


def attention_received(walk: Walk, vit: ViT, q: Heads, k: Heads) -> Float[Tensor, "b p"]:
    """Return how much attention the patches get from the class token, or from all tokens without one."""
    asks = slice(0, 1) if vit.config.pool in ("token", "pair", "token+mean") else slice(None)
    weight = walk.weight if walk.weight is None else walk.weight[:, :, asks]
    return probabilities(q[:, :, asks], k, weight).mean((1, 2))[:, walk.front :]


class Looking(Walk):
    """Changes nothing; records how much attention the patches get in the block before each place."""

    def __init__(self, vit: ViT, image: Image, places: Sequence[int]) -> None:
        super().__init__(vit, image)
        self.vit, self.places = vit, places
        self.attention: list[Float[Tensor, "b n"]] = []

    def between(self, index: int, z: Tokens, q: Heads, k: Heads) -> Fewer:
        if index + 1 in self.places:
            self.attention.append(attention_received(self, self.vit, q, k))
        return z


class Dropping(Walk):
    """Inference: each place gathers the best patches, in their order, and drops the rest."""

    def __init__(self, vit: "Pruned", image: Image) -> None:
        super().__init__(vit, image)
        self.vit, self.plan = vit, vit.plan
        self.pairs = self.weight, self.turn
        self.kept: Places | None = None
        """Indices of the tokens that are left, among all."""
        self.attention: Float[Tensor, "b n"] | None = None

    def before(self, index: int, z: Tokens) -> Fewer:
        if index not in self.plan.places or self.plan.keep == 1:
            return z
        stage = self.plan.places.index(index)
        scores = self.scores(stage, z[:, self.front :])
        count = self.plan.count(stage, self.grid[0] * self.grid[1])
        sure = scores.new_full((scores.shape[0], self.front), torch.inf)
        ranked = torch.cat([sure, scores], 1).topk(count + self.front, sorted=False)
        here = ranked.indices.sort().values
        self.kept = here if self.kept is None else self.kept.gather(1, here)
        self.weight, self.turn = gather_pairs(*self.pairs, self.kept)
        return select(z, here)

    def scores(self, stage: int, z: Tokens) -> Float[Tensor, "b n"]:
        """Return a score per patch; the highest are kept."""
        match self.plan.by:
            case "predictor":
                return score(self.vit.predictors[stage](z))
            case "attention":
                assert self.attention is not None
                return self.attention
            case _:
                chance = torch.Generator().manual_seed(self.plan.seed + stage)
                return torch.rand(z.shape[1], generator=chance).to(z.device).expand(z.shape[0], -1)

    def between(self, index: int, z: Tokens, q: Heads, k: Heads) -> Fewer:
        if self.plan.by == "attention" and index + 1 in self.plan.places and self.plan.keep < 1:
            self.attention = attention_received(self, self.vit, q, k)
        return z

    def trace(self) -> Trace:
        trace = super().trace()
        return trace if self.kept is None else trace.kept(self.kept[:, self.front :] - self.front)


class Masking(Walk):
    """Training: nothing is gathered; a dropped patch is visible only to itself."""

    def __init__(self, vit: "Pruned", image: Image, given: Sequence[Decision] = ()) -> None:
        super().__init__(vit, image)
        self.vit, self.plan, self.given = vit, vit.plan, given
        self.pairs = self.weight
        self.decisions: list[Decision] = []
        """What is kept after each place."""
        self.scores: list[Float[Tensor, "b n"]] = []

    def before(self, index: int, z: Tokens) -> Fewer:
        if index not in self.plan.places or self.plan.keep == 1:
            return z
        stage, last = self.plan.places.index(index), self.decisions[-1] if self.decisions else None
        if self.given:
            kept = self.given[stage]
        else:
            logits = self.vit.predictors[stage](z[:, self.front :], last)
            self.scores.append(score(logits))
            kept = sample(logits)
        self.decisions.append(kept if last is None else last * kept)
        others = self.everyone()[:, None, None]  # a token always sees itself: no row is empty
        itself = torch.eye(z.shape[1], device=z.device)
        self.weight = itself + (1 - itself) * others
        self.weight = self.weight if self.pairs is None else self.weight * self.pairs
        return z

    def everyone(self) -> Float[Tensor, "b t"]:
        """Return the last decision for all tokens; those before the patches are always kept."""
        last = self.decisions[-1]
        return torch.cat([last.new_ones(last.shape[0], self.front), last], 1)


@dataclass(frozen=True, slots=True)
class Masked:
    """What a training step returns: the logits, and what its losses need (tasks/classify/prune_loss.py)."""

    logits: Float[Tensor, "b classes"]
    patches: Float[Tensor, "b n d"]
    """The patches after the last block and the norm, dropped ones too."""
    decisions: list[Decision]
    """What was kept after each place; 0 or 1, with a gradient."""
    scores: list[Float[Tensor, "b n"]] = field(default_factory=list)
    """The predictors' scores of all patches at each place; empty if decisions were given."""


class Pruned(Walker):
    """A ViT that drops patches along the way; in training it only hides them."""

    def __init__(self, config: PrunedConfig) -> None:
        super().__init__(config)
        self.plan = config
        count = len(config.places) if config.by == "predictor" else 0
        self.predictors: Stack[Predictor] = Stack(Predictor(self.config.width) for _ in range(count))
        init.deit(self.predictors)
        for predictor in self.predictors:
            predictor.lean(config.keep)
        self._seen: Masked | None = None

    def walk(self, image: Image) -> Dropping:
        """Return the walk of inference."""
        return Dropping(self, image)

    def masked(self, image: Image, decisions: Sequence[Decision] = ()) -> Masked:
        """Run the training pass; `decisions`, one per place, replace random ones."""
        walk = Masking(self, image, decisions)
        z = run(self, walk, self.embed(image))
        logits = self.read(z, walk.everyone() if walk.decisions else None)
        return Masked(logits, self.norm(z)[:, self.config.front :], walk.decisions, walk.scores)

    def taken(self) -> Masked:
        """Return the last training pass, once: it holds the graph."""
        assert self._seen is not None, "no training pass came before"
        seen, self._seen = self._seen, None
        return seen

    def forward(self, image: Image) -> Float[Tensor, "b classes"]:
        if self.training and self.predictors:
            self._seen = self.masked(image)  # kept here, because DDP only calls forward
            return self._seen.logits
        asked = self.asked() if self.plan.places and self.plan.keep < 1 else None
        return self.read(run(self, self.walk(image), self.embed(image), asked))


def prune(
    vit: ViT,
    keep: float = 0.7,
    places: tuple[int, ...] | None = None,
    by: str = "predictor",
    seed: int = 0,
) -> Pruned:
    """Return a pruned copy of a trained ViT, with untrained predictors."""
    where = usual_places(vit.config.depth) if places is None else places
    base = vit.hybrid if isinstance(vit, Hybrid) else vit.config
    made = Pruned(PrunedConfig(vit=base, keep=keep, places=where, by=by, seed=seed))
    made.load_state_dict({**made.state_dict(), **vit.state_dict()})
    return made.to(vit.front.device).train(vit.training)
