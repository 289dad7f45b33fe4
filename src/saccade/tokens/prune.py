"""DynamicViT: drop the patches that do not matter (Rao et al. 2021, https://arxiv.org/abs/2106.02034).

Before some of the blocks a predictor scores the patches (section 3.2). In inference the best of them are
gathered and go on; in training the decisions are drawn at random, and a patch that is dropped is hidden from
all others (section 3.3), so that decisions have gradients. Two scores without training are there to compare.

Shapes: b batch, n tokens of patches, t all tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import UsageError, check_number, check_word
from saccade.models.hybrid import Hybrid
from saccade.models.looped import LoopConfig, vit_of
from saccade.models.vit import ViT
from saccade.nn import init
from saccade.nn.attention import Tokens, probabilities
from saccade.nn.patch import Image
from saccade.nn.stack import Stack
from saccade.tokens.predictor import Decision, Predictor, received, sample, score
from saccade.tokens.trace import Trace
from saccade.tokens.walk import Fewer, Heads, Places, Walk, Walker, run, select

WAYS = ("predictor", "attention", "random")
PARTS = 1_000_000
"""Shares of patches are counted in millionths, as whole numbers survive an export with free sizes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrunedConfig(LoopConfig):
    """Which share of the patches goes on, from where, and who chooses."""

    kind: ClassVar[str] = "pruned"
    keep: float
    """Share of the patches that each place leaves of those before it; 1 drops nothing."""
    places: tuple[int, ...]
    """The blocks before which patches are dropped, the first block being 0."""
    by: str = "predictor"
    """predictor (learnt), attention (that the class token paid them in the block before) or random."""
    seed: int = 0
    """Of random dropping; the same places in every picture."""

    def __post_init__(self) -> None:
        depth = vit_of(self.vit).depth
        if not 0 < self.keep <= 1:
            raise UsageError(f"keep is {self.keep:g}; expected a share of the patches above 0, up to 1")
        check_word("by", self.by, WAYS)
        check_number("seed", self.seed, 0, 2**32)
        first = 1 if self.by == "attention" else 0
        if list(self.places) != sorted(set(self.places) & set(range(first, depth))):
            raise UsageError(
                f"places are {self.places}; expected rising numbers of blocks from {first} to {depth - 1}"
            )

    def count(self, stage: int, patches: int) -> int:
        """How many of so many patches go on after the place number `stage`, counted from 0; at least one."""
        share = round(self.keep ** (stage + 1) * PARTS)
        return torch.sym_max(patches * share // PARTS, 1)  # type: ignore[no-untyped-call]

    @property
    def ratios(self) -> tuple[float, ...]:
        """The share of all patches that is left after each place: keep, keep^2, keep^3, ..."""
        return tuple(self.keep ** (stage + 1) for stage in range(len(self.places)))

    def build(self) -> "Pruned":
        return Pruned(self)


def usual_places(depth: int, count: int | None = None) -> tuple[int, ...]:
    """Places spread evenly: three as in the paper, fewer where there are few blocks to gain from.

    >>> usual_places(12), usual_places(4)
    ((3, 6, 9), (2,))
    """
    count = min(max(depth // 3, 1), 3) if count is None else count
    return tuple(sorted({max(depth * (i + 1) // (count + 1), 1) for i in range(count)} & set(range(depth))))


def looked_at(walk: Walk, vit: ViT, q: Heads, k: Heads) -> Float[Tensor, "b p"]:
    """How much attention the patches at hand get: from the class token, or from all where there is none."""
    asks = slice(0, 1) if vit.config.pool in ("token", "pair", "token+mean") else slice(None)
    weight = walk.weight if walk.weight is None else walk.weight[:, :, asks]
    return received(probabilities(q[:, :, asks], k, weight), walk.front)


class Looking(Walk):
    """Changes nothing, and notes how much attention the patches get in the block before each place."""

    def __init__(self, vit: ViT, image: Image, places: Sequence[int]) -> None:
        super().__init__(vit, image)
        self.vit, self.places = vit, places
        self.attention: list[Float[Tensor, "b n"]] = []

    def between(self, index: int, z: Tokens, q: Heads, k: Heads) -> Fewer:
        if index + 1 in self.places:
            self.attention.append(looked_at(self, self.vit, q, k))
        return z


class Dropping(Walk):
    """Inference: at each place the best patches are gathered, in their order, and the rest is gone."""

    def __init__(self, vit: "Pruned", image: Image) -> None:
        super().__init__(vit, image)
        self.vit, self.plan = vit, vit.plan
        self.pairs = self.weight, self.turn
        self.kept: Places | None = None
        """Which of all tokens are at hand."""
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
        self.weight, self.turn = _gathered(*self.pairs, self.kept)
        return select(z, here)

    def scores(self, stage: int, z: Tokens) -> Float[Tensor, "b n"]:
        """The higher, the rather kept."""
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
            self.attention = looked_at(self, self.vit, q, k)
        return z

    def trace(self) -> Trace:
        trace = super().trace()
        return trace if self.kept is None else trace.kept(self.kept[:, self.front :] - self.front)


def _gathered(
    weight: Float[Tensor, "1 h t t"] | None, turn: Float[Tensor, "2 t k"] | None, kept: Places
) -> tuple[Float[Tensor, "b h m m"] | None, Float[Tensor, "2 b 1 m k"] | None]:
    """What attention is told of pairs and places, for those tokens of each picture that are kept."""
    pairs = None if weight is None else weight[0][:, kept[:, :, None], kept[:, None, :]].transpose(0, 1)
    return pairs, None if turn is None else turn[:, kept][:, :, None]


class Masking(Walk):
    """Training: nothing is gathered; a patch that is dropped counts for none but itself."""

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
        others = self.everyone()[:, None, None]  # a token always counts for itself: no row is empty
        itself = torch.eye(z.shape[1], device=z.device)
        self.weight = itself + (1 - itself) * others
        self.weight = self.weight if self.pairs is None else self.weight * self.pairs
        return z

    def everyone(self) -> Float[Tensor, "b t"]:
        """The last decision for all tokens; those before the patches are always kept."""
        last = self.decisions[-1]
        return torch.cat([last.new_ones(last.shape[0], self.front), last], 1)


@dataclass(frozen=True, slots=True)
class Masked:
    """What a training step sees: the answer, and what its losses need (tokens/distill.py)."""

    logits: Float[Tensor, "b classes"]
    patches: Float[Tensor, "b n d"]
    """The patches after the last block and the norm, dropped ones too: of like size in every model."""
    decisions: list[Decision]
    """What was kept after each place; 0 or 1, with a gradient."""
    scores: list[Float[Tensor, "b n"]] = field(default_factory=list)
    """What the predictors think of all patches at each place; nothing where decisions were given."""


class Pruned(Walker):
    """A ViT that drops patches on its way; in training it only hides them."""

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
        """Dropping, as in inference."""
        return Dropping(self, image)

    def masked(self, image: Image, decisions: Sequence[Decision] = ()) -> Masked:
        """The pass of training; `decisions`, one a place, take the place of chance."""
        walk = Masking(self, image, decisions)
        z = run(self, walk, self.embed(image))
        logits = self.read(z, walk.everyone() if walk.decisions else None)
        return Masked(logits, self.norm(z)[:, self.config.front :], walk.decisions, walk.scores)

    def taken(self) -> Masked:
        """What the last pass in training saw; once, as it holds the pass's graph."""
        assert self._seen is not None, "no pass in training came before"
        seen, self._seen = self._seen, None
        return seen

    def forward(self, image: Image) -> Float[Tensor, "b classes"]:
        if self.training and self.predictors:
            self._seen = self.masked(image)  # kept, as processes that train together see a forward only
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
    """A pruned copy of a trained ViT; its predictors are untrained, and all else is as it was."""
    where = usual_places(vit.config.depth) if places is None else places
    base = vit.hybrid if isinstance(vit, Hybrid) else vit.config
    made = Pruned(PrunedConfig(vit=base, keep=keep, places=where, by=by, seed=seed))
    made.load_state_dict({**made.state_dict(), **vit.state_dict()})
    return made.to(vit.front.device).train(vit.training)
