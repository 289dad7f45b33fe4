"""From a config to a module, and from a config to JSON and back."""

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from types import UnionType
from typing import Any, TypeAlias, get_args, get_origin

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
    return {"kind": kind, **asdict(config)}


def from_json(found: Mapping[str, Any]) -> Config:
    """The config that `to_json` wrote; anything else is refused in words."""
    kind = found.get("kind")
    if kind not in KINDS:
        raise ModelError(f"the model's kind is {kind!r}; expected one of {', '.join(KINDS)}")
    try:
        config: Config = _read(KINDS[kind], {k: v for k, v in found.items() if k != "kind"})
    except ValueError as error:
        raise ModelError(f"the config of the model cannot work: {error}") from error
    return config


def _read(kind: Any, found: Any) -> Any:
    """Build the dataclass `kind` from parsed JSON, checking every name and type on the way."""
    if not isinstance(found, Mapping):
        raise ValueError(f"found {found!r} where {kind.__name__} has a set of fields")
    known = {field.name: field.type for field in fields(kind)}
    for name in found:
        if name not in known:
            raise ValueError(f"{kind.__name__} has no field {name!r}")
    return kind(**{name: _value(name, known[name], value) for name, value in found.items()})


def _value(name: str, wanted: Any, value: Any) -> Any:
    if is_dataclass(wanted):
        return _read(wanted, value)
    if get_origin(wanted) is tuple:
        inner = get_args(wanted)
        if isinstance(value, list | tuple) and (inner[-1] is Ellipsis or len(value) == len(inner)):
            return tuple(_value(name, inner[0], item) for item in value)
    elif wanted is float and type(value) is int:
        return float(value)
    elif type(value) is wanted:
        return value
    told = wanted.__name__ if isinstance(wanted, type) and not isinstance(wanted, UnionType) else str(wanted)
    raise ValueError(f"{name} is {value!r}; expected {told}")
