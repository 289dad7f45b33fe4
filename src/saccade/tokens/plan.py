"""Ways to give a trained ViT fewer patches to look at, by one number: keep, as DynamicViT counts it."""

from saccade.errors import UsageError, check_word
from saccade.models.hybrid import Hybrid
from saccade.models.loop import LoopConfig, Looped
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
    """How many patches a block has to merge to cost what dropping costs at `keep`, as nearly as it can."""
    base = vit.hybrid if isinstance(vit, Hybrid) else vit.config
    depth, patches = vit.config.depth, vit.config.grid[0] * vit.config.grid[1]
    aim = macs(PrunedConfig(vit=base, keep=keep, places=usual_places(depth), by="random"))

    def cost(rate: int) -> int:
        return macs(MergedConfig(vit=base, rates=constant(depth, rate)))

    low, high = 0, max(patches // 2, 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle) > aim else (low, middle)
    return min((low, high), key=lambda rate: abs(cost(rate) - aim))


def told(config: LoopConfig) -> str:
    """A plan in words."""
    if isinstance(config, PrunedConfig):
        by = {"predictor": "by what it has learnt", "attention": "by attention", "random": "at random"}
        where = ", ".join(str(place + 1) for place in config.places)
        return f"keep {config.keep:.3g} at block {where}, {by[config.by]}"
    assert isinstance(config, MergedConfig)
    rates = config.rates
    each = f"{rates[0]}" if len(set(rates)) == 1 else f"{rates[0]} down to {rates[-1]}"
    return f"merge {each} patches a block"
