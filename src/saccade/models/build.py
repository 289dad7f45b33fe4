"""From a config to a module, and from a config to JSON and back."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from saccade import values
from saccade.errors import ModelError
from saccade.models.hybrid import Hybrid, HybridConfig
from saccade.models.names import Config
from saccade.models.resnet import ResNet, ResNetConfig
from saccade.models.vit import ViT, ViTConfig

Vision: TypeAlias = ViT | ResNet
KINDS: dict[str, type[Config]] = {"vit": ViTConfig, "hybrid": HybridConfig, "resnet": ResNetConfig}


def build(config: Config) -> Vision:
    """An untrained module for a config."""
    if isinstance(config, HybridConfig):
        return Hybrid(config)
    return ViT(config) if isinstance(config, ViTConfig) else ResNet(config)


def config_of(module: Vision) -> Config:
    """The config that `build` would make this module from."""
    return module.hybrid if isinstance(module, Hybrid) else module.config


def to_json(config: Config) -> dict[str, Any]:
    """Numbers and words only."""
    kind = next(name for name, made in KINDS.items() if type(config) is made)
    return {"kind": kind, **values.to_json(config)}


def from_json(found: Mapping[str, Any]) -> Config:
    """The config that `to_json` wrote; anything else is refused in words."""
    kind = found.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ModelError(f"the model's kind is {kind!r}; expected one of {', '.join(KINDS)}")
    try:
        return values.from_json(KINDS[kind], {k: v for k, v in found.items() if k != "kind"})
    except ValueError as error:
        raise ModelError(f"the config of the model cannot work: {error}") from error
