"""Hugging Face's layout of ViT, DeiT, DINOv2 and the MAE encoder: recognise, read, write.

The names are those of published files, which today's `transformers` still writes; its newer names in memory
are read too. GELU, eps and heads stand in config.json; without one, each kind's usual values are taken.
"""

import re
from collections.abc import Iterable, Mapping
from math import floor, nextafter
from typing import Any

import torch

from saccade.data.image.preprocess import Preprocess
from saccade.errors import ModelError, UsageError
from saccade.models.hybrid import HybridConfig
from saccade.models.vit import ViTConfig
from saccade.nn.block import BlockStyle
from saccade.nn.pool import KINDS
from saccade.weights.layouts import infer
from saccade.weights.layouts.front import front_rule
from saccade.weights.layouts.rules import Config, Layout, Rule, Shapes, renamed

PREFIXES = ("vit.", "deit.", "dinov2.", "dinov2_with_registers.")
NEWER = [  # transformers' names in memory since version 5, and those of the files
    (re.compile(r"^layers\.(\d+)\.mlp\.fc1\."), r"encoder.layer.\1.intermediate.dense."),
    (re.compile(r"^layers\.(\d+)\.mlp\.fc2\."), r"encoder.layer.\1.output.dense."),
    (re.compile(r"^layers\.(\d+)\."), r"encoder.layer.\1."),
    (re.compile(r"\.attention\.q_proj\."), ".attention.attention.query."),
    (re.compile(r"\.attention\.k_proj\."), ".attention.attention.key."),
    (re.compile(r"\.attention\.v_proj\."), ".attention.attention.value."),
    (re.compile(r"\.attention\.o_proj\."), ".attention.output.dense."),
]
PROJECTION = "embeddings.patch_embeddings.projection"
GELUS = {"gelu": "erf", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}


def recognise(names: Iterable[str]) -> bool:
    """The projection of the patches bears a name of its own."""
    return any(clean(name) == f"{PROJECTION}.weight" for name in names)


def clean(name: str) -> str | None:
    """Their name without the prefix of the model's class, as files have it."""
    if name.startswith("decoder.") or name.endswith("embeddings.mask_token"):
        return None  # for pre-training only
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    for newer, older in NEWER:
        name = newer.sub(older, name)
    return name


def block_rules(i: int, dino: bool) -> list[Rule]:
    """One encoder block; DINOv2 names its norms and its MLP otherwise."""
    us, them = f"blocks.{i}", f"encoder.layer.{i}"
    norms = ("norm1", "norm2") if dino else ("layernorm_before", "layernorm_after")
    mlp = ("mlp.fc1", "mlp.fc2") if dino else ("intermediate.dense", "output.dense")
    made = renamed(f"{us}.norm1", f"{them}.{norms[0]}") + renamed(f"{us}.norm2", f"{them}.{norms[1]}")
    for ours, theirs in (("q", "query"), ("k", "key"), ("v", "value")):
        made += renamed(f"{us}.attention.{ours}", f"{them}.attention.attention.{theirs}")
    made += renamed(f"{us}.attention.out", f"{them}.attention.output.dense")
    made += renamed(f"{us}.mlp.up", f"{them}.{mlp[0]}") + renamed(f"{us}.mlp.down", f"{them}.{mlp[1]}")
    if dino:
        made += [Rule((f"{us}.add{n}.scale",), (f"{them}.layer_scale{n}.lambda1",)) for n in (1, 2)]
    return made


def rules(config: Config, distilled: bool = False) -> list[Rule]:
    """The whole table for a model; `distilled`: the second token is one that the head does not read."""
    if isinstance(config, HybridConfig):
        raise UsageError("Hugging Face has no layout for a hybrid any more; write it as google or timm")
    infer.check_plain(config, "Hugging Face's")
    pair = config.pool == "pair"
    tokens = ["embeddings.cls_token", *["embeddings.distillation_token"] * (pair or distilled)]
    counts, embedded = [1] * len(tokens), len(tokens)
    if config.registers and not distilled:
        tokens, counts = [*tokens, "embeddings.register_tokens"], [*counts, config.registers]
    if KINDS[config.pool] == 0:
        raise UsageError(
            f"Hugging Face's ViTs have a class token; pool {config.pool!r} has none; write google or timm"
        )
    made = [front_rule(tokens, counts, embedded, config.grid, "embeddings.position_embeddings")]
    made += renamed("patches", PROJECTION)
    for i in range(config.depth):
        made += block_rules(i, dino=config.block.layerscale > 0)
    made += renamed("norm", "layernorm")
    made += renamed("prelogits.0", "pooler.dense") if config.prelogits else []
    if config.classes and pair:
        made += renamed("head.token", "cls_classifier") + renamed("head.teacher", "distillation_classifier")
    elif config.classes:
        made += renamed("head", "classifier")
    return made


def written(config: Config) -> list[Rule]:
    """The table for writing: DINOv2's classes want a mask token too, which only its pre-training used."""
    made = rules(config)
    if isinstance(config, ViTConfig) and config.block.layerscale > 0:
        mask = torch.zeros(1, config.width)
        made.append(Rule((), ("embeddings.mask_token",), lambda _: (), lambda: (mask,)))
    return made


def read_config(
    shapes: Shapes, side: Mapping[str, Any], image: tuple[int, int] | None
) -> tuple[Config, list[Rule]]:
    """The config and the table for a file and its config.json."""
    if "encoder.layer.0.mlp.weights_in.weight" in shapes:
        raise ModelError(
            "the file has SwiGLU blocks (DINOv2-giant), which are not supported; use a smaller DINOv2"
        )
    if "encoder.layer.0.lambda_1" in shapes or "embeddings.position_embeddings" not in shapes:
        raise ModelError("the file is a BEiT or a ViT without a table of positions, which are not supported")
    dino = "encoder.layer.0.layer_scale1.lambda1" in shapes
    teacher = "distillation_classifier.weight" in shapes
    second = "embeddings.distillation_token" in shapes
    registers = shapes["embeddings.register_tokens"][1] if "embeddings.register_tokens" in shapes else 0
    width, _, _, patch = shapes[f"{PROJECTION}.weight"]
    size = image or infer.pair(side.get("image_size"))
    (rows, cols), _ = infer.grid(shapes["embeddings.position_embeddings"][1], 1 + second, patch, size)
    act = side.get("hidden_act", "gelu")
    if act not in GELUS:
        raise ModelError(f"config.json asks for the activation {act!r}; expected one of {', '.join(GELUS)}")
    head = "cls_classifier.weight" if teacher else "classifier.weight"
    mlp = "encoder.layer.0.mlp.fc1.weight" if dino else "encoder.layer.0.intermediate.dense.weight"
    config = ViTConfig(
        image=(rows * patch, cols * patch),
        patch=patch,
        width=width,
        depth=infer.depth(shapes, "encoder.layer.{i}.attention.attention.query.weight"),
        heads=side.get("num_attention_heads") or infer.heads(width),
        hidden=shapes[mlp][0],
        classes=shapes[head][0] if head in shapes else 0,
        pool="pair" if teacher else "token+mean" if dino and head in shapes else "token",
        resample="antialias" if registers else "bicubic",
        prelogits=shapes["pooler.dense.weight"][0] if "pooler.dense.weight" in shapes else 0,
        registers=registers + (second and not teacher),
        block=BlockStyle(
            gelu=GELUS[act],
            eps=float(side.get("layer_norm_eps", 1e-6 if dino else 1e-12)),
            layerscale=1.0 if dino else 0.0,
        ),
    )
    return config, rules(config, distilled=second and not teacher)


def read_preprocess(side: Mapping[str, Any], config: Config) -> Preprocess:
    """What preprocessor_config.json says; without one, squashed to the size and scaled to -1..1."""
    assert isinstance(config, ViTConfig)
    if "image_mean" not in side and "size" not in side:
        return Preprocess(size=config.image, fit="squash", crop=1.0, interpolation="bilinear")
    crops = side.get("do_center_crop", "crop_size" in side)
    edge, final = side.get("size", config.image[0]), side.get("crop_size", config.image[0])
    whole = edge.get("shortest_edge") if isinstance(edge, Mapping) else edge
    target = (edge["height"], edge["width"]) if whole is None else (whole, whole)
    final = (final["height"], final["width"]) if isinstance(final, Mapping) else (final, final)
    fit = "crop" if whole is not None and crops else "squash+crop" if crops else "squash"
    plain = side.get("do_normalize", True) is False
    return Preprocess(
        size=final if crops else target,
        fit=fit,
        crop=_crop(final[0], target[0]) if crops else 1.0,
        interpolation=FILTERS.get(side.get("resample", 2), "bilinear"),
        mean=(0.0, 0.0, 0.0) if plain else tuple(side.get("image_mean", (0.5, 0.5, 0.5))),
        std=(1.0, 1.0, 1.0) if plain else tuple(side.get("image_std", (0.5, 0.5, 0.5))),
    )


def _crop(final: int, before: int) -> float:
    """The fraction that leads back to `before` when `final` is divided by it and cut to a whole number."""
    crop = min(1.0, final / before)
    return crop if floor(final / crop) >= before else nextafter(crop, 0)


def write_side(config: Config, preprocess: Preprocess, labels: list[str]) -> dict[str, Any]:
    """config.json and preprocessor_config.json."""
    assert isinstance(config, ViTConfig)
    style = config.block
    if (style.norm, style.placement) != ("layer", "pre"):
        raise UsageError(
            f"Hugging Face's ViTs are pre-norm with LayerNorm; this model is {style.placement}-{style.norm}"
        )
    dino, pair = style.layerscale > 0, config.pool == "pair"
    kind = "deit" if pair else "vit"
    if dino:
        kind = "dinov2_with_registers" if config.registers else "dinov2"
    if config.classes and config.pool != {"vit": "token", "deit": "pair"}.get(kind, "token+mean"):
        raise UsageError(f"Hugging Face's {kind} does not pool by {config.pool!r}; write this model as timm")
    stem = {"vit": "ViT", "deit": "DeiT", "dinov2": "Dinov2", "dinov2_with_registers": "Dinov2WithRegisters"}[
        kind
    ]
    ending = (
        "Model"
        if not config.classes
        else "ForImageClassificationWithTeacher"
        if pair
        else "ForImageClassification"
    )
    sizes = {
        "mlp_ratio": config.hidden // config.width,
        "layerscale_value": style.layerscale,
    }
    labels = labels or [f"LABEL_{i}" for i in range(config.classes)]
    height, width = config.image
    made = {
        "architectures": [stem + ending],
        "model_type": kind,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "hidden_act": "gelu" if style.gelu == "erf" else "gelu_pytorch_tanh",
        "layer_norm_eps": style.eps,
        "image_size": height if height == width else [height, width],
        "patch_size": config.patch,
        "qkv_bias": True,
        **(sizes if dino else {"intermediate_size": config.hidden}),
        **({"num_register_tokens": config.registers} if config.registers else {}),
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }
    return {"config.json": made, "preprocessor_config.json": _preprocessor(preprocess)}


def _preprocessor(preprocess: Preprocess) -> dict[str, Any]:
    height, width = preprocess.size
    crops = preprocess.fit in ("crop", "squash+crop")
    tall, wide = (floor(side / preprocess.crop) if crops else side for side in (height, width))
    shortest = {"shortest_edge": min(tall, wide)}
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": shortest if preprocess.fit == "crop" else {"height": tall, "width": wide},
        "do_center_crop": crops,
        "crop_size": {"height": height, "width": width},
        "resample": {name: number for number, name in FILTERS.items()}[preprocess.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocess.mean),
        "image_std": list(preprocess.std),
    }


LAYOUT = Layout("hf", recognise, clean, written, read_config, read_preprocess, write_side)
