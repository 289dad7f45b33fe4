"""What a config beside the weights claims, held against what the weights show."""

from collections.abc import Mapping
from typing import Any

from saccade.data.image.preprocess import Preprocess
from saccade.errors import ModelError, UsageError
from saccade.files.paths import shown
from saccade.models.build import Known
from saccade.models.hybrid import HybridConfig
from saccade.models.looped import LoopConfig, vit_of
from saccade.models.resnet import ResNetConfig
from saccade.models.vit import ViTConfig
from saccade.nn.patch import check_size
from saccade.weights.layouts.infer import pair

TYPES = ("vit", "deit", "dinov2", "dinov2_with_registers", "vit_mae", "vit_msn")
NAMES = {  # Hugging Face's and timm's names for fields of ours
    "hidden_size": "width",
    "num_features": "width",
    "num_hidden_layers": "depth",
    "num_attention_heads": "heads",
    "intermediate_size": "hidden",
    "patch_size": "patch",
}
LARGER = 4
LARGE = 1024


def check_config(side: Mapping[str, Any], vit: ViTConfig) -> None:
    """Refuse a config of another architecture, or of other sizes than the tensors have."""
    kind = side.get("model_type")
    if kind is not None and kind not in TYPES:
        raise ModelError(
            f"config.json describes the architecture {shown(repr(kind), 60)}; known are {', '.join(TYPES)}"
        )
    if type(vit.heads) is not int:
        raise ModelError(f"the config says {shown(repr(vit.heads), 60)} heads; expected a whole number")
    if side.get("image_size") is not None and pair(side["image_size"]) is None:
        raise ModelError(
            f"config.json says image_size {shown(repr(side['image_size']), 60)}; expected pixels"
        )
    for theirs, ours in NAMES.items():
        claimed, real = side.get(theirs), getattr(vit, ours)
        if theirs in side and (isinstance(claimed, bool) or claimed not in (real, [real, real])):
            raise ModelError(
                f"config.json says {theirs} {shown(repr(claimed), 60)}, but the tensors are those of {real}; "
                f"check that the file and its config belong together"
            )


def check_depth(config: Known, tensors: int) -> None:
    """Refuse more blocks than a file can hold, before time is spent on building them."""
    if isinstance(config, ResNetConfig):
        blocks = sum(config.layers)
    else:
        inner = config.vit if isinstance(config, LoopConfig) else config
        blocks = vit_of(inner).depth + (sum(inner.layers) if isinstance(inner, HybridConfig) else 0)
    if blocks > tensors:
        raise ModelError(f"the config describes {blocks:,} blocks, but the file has {tensors:,} tensors")


def check_input(preprocess: Preprocess, config: ViTConfig | ResNetConfig) -> None:
    """Refuse a preprocessing that the model cannot take, or that would take all memory."""
    for side, trained in zip(preprocess.size, config.image, strict=True):
        if side > max(LARGER * trained, LARGE):
            raise ModelError(
                f"the preprocessing asks for pictures of {side} pixels for a model of {trained}; "
                f"expected at most {max(LARGER * trained, LARGE)}"
            )
    try:
        if isinstance(config, ViTConfig):
            check_size(*preprocess.size, config.patch)
    except UsageError as error:
        raise ModelError(f"the preprocessing does not fit the model: {error}") from error
