"""From a config to a module, and from a config to JSON and back."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from saccade import values
from saccade.errors import ModelError
from saccade.models.hybrid import Hybrid, HybridConfig
from saccade.models.looped import LoopConfig, Looped
from saccade.models.names import Config
from saccade.models.resnet import ResNet, ResNetConfig
from saccade.models.vit import ViT, ViTConfig

Vision: TypeAlias = ViT | ResNet
Known: TypeAlias = Config | LoopConfig
KINDS: dict[str, type[Known]] = {"vit": ViTConfig, "hybrid": HybridConfig, "resnet": ResNetConfig}


def build(config: Known) -> Vision:
    """An untrained module for a config."""
    if isinstance(config, LoopConfig):
        return config.build()
    if isinstance(config, HybridConfig):
        return Hybrid(config)
    return ViT(config) if isinstance(config, ViTConfig) else ResNet(config)


def config_of(module: Vision) -> Known:
    """The config that `build` would make this module from."""
    if isinstance(module, Looped):
        return module.loop
    return module.hybrid if isinstance(module, Hybrid) else module.config


def to_json(config: Known) -> dict[str, Any]:
    """Numbers and words only."""
    if isinstance(config, LoopConfig):
        return {"kind": config.kind, **values.to_json(config), "vit": to_json(config.vit)}
    kind = next(name for name, made in KINDS.items() if type(config) is made)
    return {"kind": kind, **values.to_json(config)}


def from_json(found: Mapping[str, Any], kinds: Mapping[str, type[Known]] = KINDS) -> Known:
    """The config that `to_json` wrote; anything else is refused in words.

    Args:
        kinds: which kinds there are; rooms above this one know more of them.
    """
    kind = found.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise ModelError(f"the model's kind is {kind!r}; expected one of {', '.join(kinds)}")
    fields = {name: value for name, value in found.items() if name != "kind"}
    if issubclass(kinds[kind], LoopConfig):
        inner = fields.get("vit")
        fields["vit"] = from_json(inner if isinstance(inner, Mapping) else {})
    try:
        return values.from_json(kinds[kind], fields)
    except ValueError as error:
        raise ModelError(f"the config of the model cannot work: {error}") from error
