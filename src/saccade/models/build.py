"""Build the module of a config, and convert configs to JSON and back: one table for all models."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, overload

import torch
from torch.overrides import TorchFunctionMode

from saccade import values
from saccade.errors import ModelError
from saccade.models.hybrid import Hybrid, HybridConfig
from saccade.models.looped import LoopConfig, Looped
from saccade.models.names import Config
from saccade.models.resnet import ResNet, ResNetConfig
from saccade.models.vit import ViT, ViTConfig

if TYPE_CHECKING:
    from saccade.models.text.names import Text, TextConfig

M = TypeVar("M")
Vision: TypeAlias = ViT | ResNet
Known: TypeAlias = Config | LoopConfig


class Kind(NamedTuple):
    """A config class and the function that builds its module."""

    config: type[Any]
    module: Callable[[Any], Any]


KINDS = {  # by the name in model.json
    "vit": Kind(ViTConfig, ViT),
    "hybrid": Kind(HybridConfig, Hybrid),
    "resnet": Kind(ResNetConfig, ResNet),
}


def text_kinds() -> dict[str, Kind]:
    """Return the kinds of text models; training on images never loads them."""
    from saccade.models.text.bert import BERT, BERTConfig
    from saccade.models.text.gpt import GPT, GPTConfig
    from saccade.models.text.seq2seq import Seq2Seq, Seq2SeqConfig
    from saccade.models.text.transformer import Captioner, CaptionerConfig, Transformer, TransformerConfig

    return {
        "seq2seq": Kind(Seq2SeqConfig, Seq2Seq),
        "transformer": Kind(TransformerConfig, Transformer),
        "captioner": Kind(CaptionerConfig, Captioner),
        "gpt": Kind(GPTConfig, GPT),
        "bert": Kind(BERTConfig, BERT),
    }


def _kind_of(config: Any) -> str:
    if isinstance(config, LoopConfig):
        return config.kind
    vision = isinstance(config, ViTConfig | HybridConfig | ResNetConfig)
    kinds = KINDS if vision else text_kinds()
    return next(name for name, kind in kinds.items() if type(config) is kind.config)


@overload
def build(config: Known) -> Vision: ...
@overload
def build(config: "TextConfig") -> "Text": ...
def build(config: Any) -> Any:
    """Build an untrained module."""
    if isinstance(config, LoopConfig):
        return config.build()
    kind = _kind_of(config)
    return (KINDS.get(kind) or text_kinds()[kind]).module(config)


class _Undrawn(TorchFunctionMode):
    """Skips random initialisation, for which torch on the meta device imports its compiler for a second."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(function, "__name__", "") in ("normal_", "uniform_", "trunc_normal_"):
            return args[0] if args else kwargs["tensor"]  # torch.nn.init passes it on by name
        return function(*args, **(kwargs or {}))


def undrawn(make: Callable[[], M]) -> M:
    """Return what `make` builds, on the meta device and without drawing random numbers."""
    with torch.device("meta"), _Undrawn():
        return make()


def blank(config: Known) -> Vision:
    """Build a module on the meta device: all of its shapes, none of its memory."""
    return undrawn(lambda: build(config))


def config_of(module: Vision) -> Known:
    """Return the config that `build` would make this module from."""
    if isinstance(module, Looped):
        return module.loop
    return module.hybrid if isinstance(module, Hybrid) else module.config


def build_like(module: Vision) -> Vision:
    """Return an untrained module of the same config."""
    return build(config_of(module))


def to_json(config: Any) -> dict[str, Any]:
    """Return a config as numbers and words."""
    if isinstance(config, LoopConfig):
        return {"kind": config.kind, **values.to_json(config), "vit": to_json(config.vit)}
    return {"kind": _kind_of(config), **values.to_json(config)}


def from_json(found: Mapping[str, Any], kinds: Mapping[str, Kind] = KINDS) -> Any:
    """Return the config that `to_json` wrote; refuse anything else.

    Args:
        kinds: Which kinds are accepted; `tokens.kinds` has more of them, and `text_kinds` others.
    """
    kind = found.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise ModelError(f"the model's kind is {kind!r}; expected one of {', '.join(kinds)}")
    fields = {name: value for name, value in found.items() if name != "kind"}
    if issubclass(kinds[kind].config, LoopConfig):
        inner = fields.get("vit")
        fields["vit"] = from_json(inner if isinstance(inner, Mapping) else {})
    try:
        return values.from_json(kinds[kind].config, fields)
    except ValueError as error:
        raise ModelError(f"the model's config cannot work: {error}") from error
