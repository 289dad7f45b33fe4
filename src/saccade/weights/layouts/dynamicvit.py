"""The layout of DynamicViT's checkpoints (Rao et al. 2021): timm's names, and those of the predictors.

The file has neither the places of the predictors nor the share of patches that they keep. Without a config
beside it, they are spread evenly (before blocks 3, 6 and 9 of 12, as published) and keep 0.7.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from saccade.data.image.preprocess import Preprocess
from saccade.errors import ModelError, UsageError
from saccade.tokens.prune import PrunedConfig, usual_places
from saccade.weights.layouts import infer, timm
from saccade.weights.layouts.rules import Layout, Rule, Shapes, renamed

PREFIX = "score_predictor."
NAMES = {
    "norm": "in_conv.0",
    "enter": "in_conv.1",
    "mix": "out_conv.0",
    "narrow": "out_conv.2",
    "decide": "out_conv.4",
}
KEEP = 0.7


def recognise(names: Iterable[str]) -> bool:
    """Return whether these are timm's tensors with at least one predictor."""
    known = set(names)
    return timm.recognise(known) and f"{PREFIX}0.in_conv.0.weight" in known


def predictor_rules(count: int) -> list[Rule]:
    """Return the rules of the predictors."""
    return [
        rule
        for i in range(count)
        for ours, theirs in NAMES.items()
        for rule in renamed(f"predictors.{i}.{ours}", f"{PREFIX}{i}.{theirs}")
    ]


def rules(config: PrunedConfig) -> list[Rule]:
    """Return all rules for a model."""
    if not isinstance(config, PrunedConfig) or config.by != "predictor":
        raise UsageError("DynamicViT's layout is for models with predictors; write this one as saccade")
    return timm.rules(config.vit) + predictor_rules(len(config.places))


def read_config(
    shapes: Shapes, side: Mapping[str, Any], image: tuple[int, int] | None
) -> tuple[PrunedConfig, list[Rule]]:
    """Return config and rules for a file; `pruning_loc` and `token_ratio` are its authors' names."""
    vit, made = timm.read_config({n: s for n, s in shapes.items() if not n.startswith(PREFIX)}, side, image)
    count = infer.depth(shapes, f"{PREFIX}{{i}}.in_conv.0.weight")
    given = side.get("model_args") or {}
    ratios = given.get("token_ratio", [KEEP])
    places = given.get("pruning_loc", usual_places(infer.depth(shapes, "blocks.{i}.norm1.weight"), count))
    config = PrunedConfig(vit=vit, keep=float(ratios[0]), places=tuple(map(int, places)))
    if len(config.places) != count:
        raise ModelError(
            f"there are {count} predictors for {len(config.places)} blocks; expected one per block"
        )
    if any(abs(a - b) > 0.01 for a, b in zip(map(float, ratios), config.ratios, strict=False)):
        raise ModelError(
            f"token_ratio is {ratios}; expected a fraction and its powers, such as 0.7, 0.49, 0.343"
        )
    return config, made + predictor_rules(count)


def read_preprocess(side: Mapping[str, Any], config: PrunedConfig) -> Preprocess:
    """Return what timm's layout returns."""
    return timm.read_preprocess(side, config.vit)


def write_side(config: PrunedConfig, preprocess: Preprocess, labels: list[str]) -> dict[str, Any]:
    """Return the files beside the weights: timm's, with what the loop needs."""
    made = timm.write_side(config.vit, preprocess, labels)
    arguments = {"pruning_loc": list(config.places), "token_ratio": list(config.ratios)}
    made["config.json"]["model_args"] |= arguments
    return made


LAYOUT = Layout("dynamicvit", recognise, timm.clean, rules, read_config, read_preprocess, write_side)
