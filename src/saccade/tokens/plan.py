"""Ways to reduce the patches of a trained ViT, by one number: keep, as in DynamicViT."""

from saccade.errors import UsageError, check_word
from saccade.models.hybrid import Hybrid
from saccade.models.looped import LoopConfig, Looped, vit_of
from saccade.models.vit import ViT
from saccade.tokens.cost import macs
from saccade.tokens.merge import MergedConfig, constant, merge
from saccade.tokens.prune import PrunedConfig, prune, usual_places

HOW = ("drop", "merge", "merge-paper", "attention", "random")
"""drop learns which patches matter; the others need no training."""
MATCHING = {"merge": "own", "merge-paper": "paper"}


def prunable(module: object) -> ViT:
    """Return the module if it is a dense ViT, which can drop or merge patches; refuse others."""
    if isinstance(module, Looped):
        raise UsageError(f"the model is already {module.loop.kind}; give the dense model it was made from")
    if not isinstance(module, ViT):
        raise UsageError(f"a {type(module).__name__} has no patches to drop; expected a Vision Transformer")
    return module


def apply_plan(vit: ViT, how: str, keep: float, seed: int = 0) -> Looped:
    """Return a copy that keeps this share; merging continues until it costs what dropping would."""
    check_word("how", how, HOW)
    if how in MATCHING:
        return merge(vit, like(vit, keep, MATCHING[how]), MATCHING[how])
    return prune(vit, keep, by="predictor" if how == "drop" else how, seed=seed)


def like(vit: ViT, keep: float, matching: str = "own") -> int:
    """Return how many patches each block has to merge to cost about what dropping costs at `keep`.

    0 if dropping saves nothing.
    """
    base = vit.hybrid if isinstance(vit, Hybrid) else vit.config
    depth, patches = vit.config.depth, vit.config.grid[0] * vit.config.grid[1]
    aim = macs(PrunedConfig(vit=base, keep=keep, places=usual_places(depth), by="random"))
    if aim >= macs(base):
        return 0

    def cost(rate: int) -> int:
        return macs(MergedConfig(vit=base, rates=constant(depth, rate), matching=matching))

    low, high = 0, max(patches // 2, 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle) > aim else (low, middle)
    return min((low, high), key=lambda rate: abs(cost(rate) - aim))


def rates(config: MergedConfig) -> tuple[int, ...]:
    """Return how many patches each block really merges: at most half of those that are left."""
    height, width = vit_of(config).grid
    left, found = height * width, []
    for rate in config.rates:
        found.append(min(rate, left // 2))
        left -= found[-1]
    return tuple(found)


def saves(config: LoopConfig) -> bool:
    """Return whether a plan reduces the cost of its model."""
    return macs(config) < macs(config.vit)


def check_saving(config: LoopConfig) -> None:
    """Refuse a plan that saves nothing, before anything is trained or written."""
    if not saves(config):
        vit = vit_of(config)
        blocks = f"{vit.depth} block{'s' if vit.depth > 1 else ''}"
        raise UsageError(
            f"the plan ({describe_plan(config)}) saves nothing in a model with {blocks} and a grid of "
            f"{vit.grid[0]} x {vit.grid[1]} patches ({macs(config.vit):,} multiply-accumulates before, "
            f"{macs(config):,} after); keep less, or use a model with more blocks or patches"
        )


def describe_plan(config: LoopConfig) -> str:
    """Return a plan as text."""
    if isinstance(config, PrunedConfig):
        if not config.places:
            return "keep all patches in every block"
        by = {"predictor": "by a trained predictor", "attention": "by attention", "random": "at random"}
        where = ", ".join(str(place + 1) for place in config.places)
        return f"keep {config.keep:.3g} at block {where}, {by[config.by]}"
    assert isinstance(config, MergedConfig)
    merged = rates(config)
    each = f"{merged[0]}" if len(set(merged)) == 1 else f"{merged[0]} down to {merged[-1]}"
    return f"merge {each} patches per block{', matched as in the paper' * (config.matching == 'paper')}"
