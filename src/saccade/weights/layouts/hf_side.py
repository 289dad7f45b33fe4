"""The two JSON files beside Hugging Face's weights: config.json and preprocessor_config.json.

A model is written for the `transformers` class that computes it, and refused if there is none.
"""

from collections.abc import Mapping
from math import floor, nextafter
from typing import Any

from saccade.data.image.preprocess import HALF, Preprocess
from saccade.errors import ModelError, UsageError
from saccade.models.vit import ViTConfig
from saccade.weights.layouts import infer
from saccade.weights.layouts.rules import Config
from saccade.wording import printable

GELUS = {
    "gelu": "erf", "gelu_python": "erf",
    "gelu_pytorch_tanh": "tanh", "gelu_new": "tanh", "gelu_fast": "tanh", "gelu_accurate": "tanh",
}  # fmt: skip
FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
STEMS = {"vit": "ViT", "deit": "DeiT", "dinov2": "Dinov2", "dinov2_with_registers": "Dinov2WithRegisters"}
RESAMPLE = {"dinov2_with_registers": "antialias"}
"""How a kind resamples its positions to another size; all others use "bicubic"."""
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
PROCESSORS: dict[str, dict[str, Any]] = {  # the defaults of each class of transformers
    "ViT": {"size": {"height": 224, "width": 224}, "resample": 2, "stats": HALF},
    "DeiT": {"size": {"height": 256, "width": 256}, "crop_size": 224, "resample": 3, "stats": HALF},
    "Bit": {"size": {"shortest_edge": 224}, "crop_size": 224, "resample": 3, "stats": CLIP},
    "CLIP": {"size": {"shortest_edge": 224}, "crop_size": 224, "resample": 3, "stats": CLIP},
}
USUAL = {"deit": "DeiT", "dinov2": "Bit", "dinov2_with_registers": "Bit"}
"""The class that transformers uses if the file names none; ViT for all other models."""
MOST = 16_384
STEPS = ("do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb", "do_reduce_labels")
KEYS = ("size", "crop_size", "resample", "image_mean", "image_std", "rescale_factor",
        "image_processor_type", "feature_extractor_type", *STEPS)  # fmt: skip


def kind_of(config: ViTConfig) -> str:
    """Return the `model_type` whose class computes this model; refuse a model without one."""
    style = config.block
    infer.check_plain(config, "Hugging Face's")
    if (style.norm, style.placement) != ("layer", "pre"):
        raise UsageError(
            f"Hugging Face's ViTs are pre-norm with LayerNorm; this model is {style.placement}-{style.norm}"
        )
    if config.position != "learned":
        raise UsageError(f"Hugging Face's ViTs learn their positions; this model has {config.position!r}")
    scaled, front = style.layerscale > 0, config.registers
    if scaled:
        kind = "dinov2_with_registers" if front else "dinov2"
    else:
        kind = "deit" if config.pool == "pair" or (config.pool == "token" and front == 1) else "vit"
    _check_pool(config, kind)
    if front > (kind == "deit" and config.pool == "token") and not scaled:
        raise UsageError(
            f"Hugging Face's {STEMS[kind]} has no registers; this model has {front}, and "
            f"transformers would drop them"
        )
    if config.prelogits and (config.classes or kind.startswith("dinov2") or config.pool == "pair"):
        raise UsageError(
            f"Hugging Face's {STEMS[kind]} has no layer between features and classes; this model has "
            f"{config.prelogits} pre-logits"
        )
    if kind.startswith("dinov2"):
        _check_dinov2(config)
    return kind


def _check_pool(config: ViTConfig, kind: str) -> None:
    theirs = {"vit": ("token",), "deit": ("token", "pair")}.get(
        kind, ("token+mean",) if config.classes else ("token",)
    )
    if config.pool not in theirs or (config.pool == "pair" and not config.classes):
        heads = f"{config.classes} classes" if config.classes else "no head"
        raise UsageError(f"Hugging Face's {STEMS[kind]} with {heads} does not pool by {config.pool!r}")


def _check_dinov2(config: ViTConfig) -> None:
    if config.hidden % config.width:
        raise UsageError(
            f"Hugging Face's DINOv2 has a hidden width that is a multiple of its width; this model has "
            f"{config.hidden} and {config.width}"
        )
    if config.grid[0] != config.grid[1]:
        raise UsageError(
            f"Hugging Face's DINOv2 resamples positions from a square grid; this model has "
            f"{config.grid[0]}x{config.grid[1]} patches"
        )


def write_side(config: Config, preprocess: Preprocess, labels: list[str]) -> dict[str, Any]:
    """Return config.json and preprocessor_config.json."""
    assert isinstance(config, ViTConfig)
    style, kind = config.block, kind_of(config)
    resample = RESAMPLE.get(kind, "bicubic")
    if preprocess.size != config.image and config.resample != resample:
        raise UsageError(
            f"this model was trained on images of {_by(config.image)} and resamples its positions to "
            f"{_by(preprocess.size)} by {config.resample!r}, Hugging Face's {STEMS[kind]} by {resample!r} "
            f"(--image {_by(preprocess.size)} resamples them permanently)"
        )
    ending = "" if config.pool != "pair" else "WithTeacher"
    height, width = config.image
    made = {
        "architectures": [STEMS[kind] + (f"ForImageClassification{ending}" if config.classes else "Model")],
        "model_type": kind,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "hidden_act": "gelu" if style.gelu == "erf" else "gelu_pytorch_tanh",
        "layer_norm_eps": style.eps,
        "image_size": height if height == width else [height, width],
        "patch_size": config.patch,
        "qkv_bias": True,
    }
    if kind.startswith("dinov2"):
        made |= {"mlp_ratio": config.hidden // config.width, "layerscale_value": style.layerscale}
        made |= {"num_register_tokens": config.registers} if config.registers else {}
    else:
        made["intermediate_size"] = config.hidden
        made |= {"pooler_output_size": config.prelogits, "pooler_act": "tanh"} if config.prelogits else {}
    names = labels or [f"LABEL_{i}" for i in range(config.classes)]
    made["id2label"] = {str(i): label for i, label in enumerate(names)}
    made["label2id"] = {label: i for i, label in enumerate(names)}
    return {"config.json": made, "preprocessor_config.json": _write_preprocess(preprocess)}


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def _write_preprocess(preprocess: Preprocess) -> dict[str, Any]:
    height, width = preprocess.size
    if preprocess.fit == "pad":
        raise UsageError("Hugging Face's preprocessing for ViTs does not pad; this model needs padded images")
    if preprocess.fit == "crop" and height != width:
        raise UsageError(
            f"Hugging Face's preprocessing resizes by the shorter side; this model crops {height}x{width}, "
            f"which is not square"
        )
    crops = preprocess.fit != "squash"
    tall, wide = (floor(side / preprocess.crop) if crops else side for side in (height, width))
    kind = {"crop": "Bit", "squash": "ViT"}.get(preprocess.fit, "DeiT")
    return {
        "image_processor_type": f"{kind}ImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": tall} if preprocess.fit == "crop" else {"height": tall, "width": wide},
        "do_center_crop": crops,
        "crop_size": {"height": height, "width": width},
        "resample": {name: number for number, name in FILTERS.items()}[preprocess.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocess.mean),
        "image_std": list(preprocess.std),
    }


def read_preprocess(side: Mapping[str, Any], config: Config) -> Preprocess:
    """Read preprocessor_config.json; without one, squash to the size and scale to -1..1."""
    assert isinstance(config, ViTConfig)
    if not any(name in side for name in KEYS):
        return Preprocess(size=config.image, fit="squash", crop=1.0, interpolation="bilinear")
    name = side.get("image_processor_type") or side.get("feature_extractor_type") or "usual"
    kind = USUAL.get(side.get("model_type", ""), "ViT") if name == "usual" else _stem(name)
    usual = PROCESSORS[kind]
    for step, value in side.items():
        if step.startswith("do_") and value and step not in STEPS:
            raise ModelError(f"{printable(step, 60)} is {printable(repr(value), 60)}; expected false")
    if side.get("do_resize", True) is False:
        raise ModelError("do_resize is false; expected true: images of any size are resized here")
    crops = side.get("do_center_crop", "crop_size" in usual)
    size = side.get("size", usual["size"])
    if not isinstance(size, Mapping):  # an old file: one number means both sides for ViT and DeiT only
        size = (
            {"shortest_edge": size} if "shortest_edge" in usual["size"] else {"height": size, "width": size}
        )
    given: Any = side.get("crop_size", usual.get("crop_size", 224))
    final = _sides("crop_size", given if isinstance(given, Mapping) else {"height": given, "width": given})
    number = side.get("resample", usual["resample"])
    if type(number) is not int or number not in FILTERS:
        raise ModelError(
            f"resample is {printable(repr(number), 60)}; expected 0 to 3 ({', '.join(FILTERS.values())})"
        )
    mean, std = _statistics(side, usual["stats"])
    fit, before = _fit(size, crops, final)
    return Preprocess(
        size=final if crops else before,
        fit=fit,
        crop=_crop(final, before) if crops else 1.0,
        interpolation=FILTERS[number],
        mean=mean,
        std=std,
    )


def _stem(name: Any) -> str:
    """Return "ViT" for "ViTImageProcessorFast" and for "ViTFeatureExtractor"."""
    for ending in ("Fast", "Pil", "ImageProcessor", "FeatureExtractor"):
        name = name.removesuffix(ending)
    if name not in PROCESSORS:
        raise ModelError(f"its class is {printable(repr(name), 60)}; expected one of {', '.join(PROCESSORS)}")
    return str(name)


def _fit(size: Mapping[str, Any], crops: bool, final: tuple[Any, Any]) -> tuple[str, tuple[Any, Any]]:
    """Return how images are resized, and to what size before a crop."""
    if size.keys() == {"height", "width"}:
        return "squash+crop" if crops else "squash", _sides("size", size)
    if size.keys() != {"shortest_edge"} or not crops or final[0] != final[1]:
        raise ModelError(
            f"size is {printable(repr(dict(size)), 80)}; expected height and width, "
            "or shortest_edge and a square crop"
        )
    return "crop", _sides("size", {"height": size["shortest_edge"], "width": size["shortest_edge"]})


def _sides(name: str, found: Mapping[str, Any]) -> tuple[int, int]:
    sides = found.get("height"), found.get("width")
    if not all(type(side) is int and 0 < side <= MOST for side in sides):
        raise ModelError(f"{name} is {printable(repr(dict(found)), 80)}; expected 1 to {MOST} pixels")
    return sides  # type: ignore[return-value]


def _crop(final: tuple[int, int], before: tuple[int, int]) -> float:
    """Return the fraction f for which `final` / f, truncated, is `before`."""
    for crop in (final[0] / before[0], final[1] / before[1]):
        for near in (crop, nextafter(crop, 0), nextafter(crop, 1)):
            if 0 < near <= 1 and all(floor(f / near) == b for f, b in zip(final, before, strict=True)):
                return near
    raise ModelError(
        f"crop_size is {_by(final)} of size {_by(before)}; expected one fraction of both sides, at most 1"
    )


def _statistics(side: Mapping[str, Any], usual: Any) -> tuple[Any, Any]:
    """Return mean and deviation for pixels from 0 to 1, for any range that the file rescales to."""
    given = side.get("rescale_factor", 1 / 255)
    factor = (255 * given if isinstance(given, int | float) else 0) if side.get("do_rescale", True) else 255.0
    if not 1e-3 <= factor <= 1e3:
        raise ModelError(f"rescale_factor is {printable(repr(given), 60)}; expected about 1 / 255")
    mean, std = (
        side.get(name, value) for name, value in zip(("image_mean", "image_std"), usual, strict=True)
    )
    if side.get("do_normalize", True) is False:
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    factor = 1.0 if abs(factor - 1) < 1e-6 else factor  # files write 1 / 255 as 0.00392156862745098
    return tuple(n / factor for n in _three("image_mean", mean)), tuple(
        n / factor for n in _three("image_std", std)
    )


def _three(name: str, value: Any) -> list[float]:
    numbers = [value] * 3 if isinstance(value, int | float) else value
    plain = isinstance(numbers, list | tuple) and all(type(n) in (int, float) for n in numbers)
    if not plain or len(numbers) != 3 or not all(abs(n) <= 1e6 for n in numbers):
        raise ModelError(f"{name} is {printable(repr(value), 80)}; expected 3 numbers")
    return [float(n) for n in numbers]
