"""Ways to give a trained ViT fewer patches to look at, by one number: keep, as DynamicViT counts it."""

from saccade.errors import UsageError, check_word
from saccade.models.hybrid import Hybrid
from saccade.models.looped import LoopConfig, Looped, vit_of
from saccade.models.vit import ViT
from saccade.tokens.cost import macs
from saccade.tokens.merge import MergedConfig, constant, merge
from saccade.tokens.prune import PrunedConfig, prune, usual_places

HOW = ("drop", "merge", "attention", "random")
"""drop learns which patches matter; the others need no training."""
UNTRAINED = HOW[1:]


def prunable(module: object) -> ViT:
    """The module as a ViT that can be made to drop or merge patches."""
    if isinstance(module, Looped):
        raise UsageError(f"the model is {module.loop.kind} already; give the dense model that it was made of")
    if not isinstance(module, ViT):
        raise UsageError(
            f"a {type(module).__name__} has no patches that could be dropped; expected a Vision Transformer"
        )
    return module


def planned(vit: ViT, how: str, keep: float, seed: int = 0) -> Looped:
    """A copy that keeps this share; merging merges until it computes as much as dropping would."""
    check_word("how", how, HOW)
    if how == "merge":
        return merge(vit, like(vit, keep))
    return prune(vit, keep, by="predictor" if how == "drop" else how, seed=seed)


def like(vit: ViT, keep: float) -> int:
    """How many patches a block has to merge to cost what dropping costs at `keep`, as nearly as it can.

    None if dropping saves nothing: matches cost a little, and some that pay for themselves could be found.
    """
    base = vit.hybrid if isinstance(vit, Hybrid) else vit.config
    depth, patches = vit.config.depth, vit.config.grid[0] * vit.config.grid[1]
    aim = macs(PrunedConfig(vit=base, keep=keep, places=usual_places(depth), by="random"))
    if aim >= macs(base):
        return 0

    def cost(rate: int) -> int:
        return macs(MergedConfig(vit=base, rates=constant(depth, rate)))

    low, high = 0, max(patches // 2, 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle) > aim else (low, middle)
    return min((low, high), key=lambda rate: abs(cost(rate) - aim))


def rates(config: MergedConfig) -> tuple[int, ...]:
    """How many patches each block really merges: no more than half of those that are left."""
    height, width = vit_of(config).grid
    left, found = height * width, []
    for rate in config.rates:
        found.append(min(rate, left // 2))
        left -= found[-1]
    return tuple(found)


def saves(config: LoopConfig) -> bool:
    """Whether a model computes less by a plan than without it."""
    return macs(config) < macs(config.vit)


def check_saving(config: LoopConfig) -> None:
    """Refuse a plan by which a model computes no less: it would be trained or written for nothing."""
    if not saves(config):
        vit = vit_of(config)
        blocks = f"{vit.depth} block{'s' if vit.depth > 1 else ''}"
        raise UsageError(
            f"the plan ({told(config)}) saves nothing in a model of {blocks} and a grid of "
            f"{vit.grid[0]} x {vit.grid[1]} patches ({macs(config.vit):,} multiply-accumulates before, "
            f"{macs(config):,} after); give a smaller share, or a model with more blocks or patches"
        )


def told(config: LoopConfig) -> str:
    """A plan in words."""
    if isinstance(config, PrunedConfig):
        if not config.places:
            return "keep all patches in every block"
        by = {"predictor": "by what it has learnt", "attention": "by attention", "random": "at random"}
        where = ", ".join(str(place + 1) for place in config.places)
        return f"keep {config.keep:.3g} at block {where}, {by[config.by]}"
    assert isinstance(config, MergedConfig)
    merged = rates(config)
    each = f"{merged[0]}" if len(set(merged)) == 1 else f"{merged[0]} down to {merged[-1]}"
    return f"merge {each} patches a block"
