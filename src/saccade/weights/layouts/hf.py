"""Hugging Face's layout of ViT, DeiT, DINOv2 and the MAE encoder: recognise, read, write.

The names are those of published files, which today's `transformers` still writes; its newer names in memory
are read too. GELU, eps and heads are in config.json; without one, each kind's usual values apply.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from saccade.errors import ModelError, UsageError
from saccade.models.hybrid import HybridConfig
from saccade.models.vit import ViTConfig
from saccade.nn.block import BlockStyle
from saccade.weights.layouts import infer
from saccade.weights.layouts.hf_side import GELUS, kind_of, read_preprocess, write_side
from saccade.weights.layouts.rules import Config, Layout, Rule, Shapes, front_rule, renamed
from saccade.wording import printable

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
TYPES = ("vit", "deit", "dinov2", "dinov2_with_registers", "vit_mae", "vit_msn")
HEADS = 12
"""The number of heads that transformers assumes where config.json names the model but not the heads."""
PLAIN: dict[str, tuple[Any, str]] = {
    "num_attention_heads": (int, "a whole number"),
    "layer_norm_eps": (int | float, "a number"),
    "hidden_act": (str, "the name of an activation"),
}
TASKS = (None, "single_label_classification")
PROJECTION = "embeddings.patch_embeddings.projection"


def recognise(names: Iterable[str]) -> bool:
    """Return whether the patch projection has Hugging Face's name."""
    return any(clean(name) == f"{PROJECTION}.weight" for name in names)


def clean(name: str) -> str | None:
    """Return their name without the prefix of the model's class, as files have it."""
    if name.startswith("decoder.") or name.endswith("embeddings.mask_token"):
        return None  # for pre-training only
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    for newer, older in NEWER:
        name = newer.sub(older, name)
    return name


def _no_bias(ours: str, width: int) -> Rule:
    """Return zeros for a bias that is not in the file (qkv_bias false)."""
    return Rule((ours,), (), lambda: (torch.zeros(width),), lambda _: ())


def block_rules(i: int, dino: bool, width: int = 0) -> list[Rule]:
    """Return the rules of one encoder block; DINOv2 has other names for its norms and its MLP.

    Args:
        width: The model's width if its queries, keys and values have no bias, else 0.
    """
    us, them = f"blocks.{i}", f"encoder.layer.{i}"
    norms = ("norm1", "norm2") if dino else ("layernorm_before", "layernorm_after")
    mlp = ("mlp.fc1", "mlp.fc2") if dino else ("intermediate.dense", "output.dense")
    made = renamed(f"{us}.norm1", f"{them}.{norms[0]}") + renamed(f"{us}.norm2", f"{them}.{norms[1]}")
    for ours, theirs in (("q", "query"), ("k", "key"), ("v", "value")):
        parts = ("weight",) if width else ("weight", "bias")
        made += renamed(f"{us}.attention.{ours}", f"{them}.attention.attention.{theirs}", parts)
        made += [_no_bias(f"{us}.attention.{ours}.bias", width)] if width else []
    made += renamed(f"{us}.attention.out", f"{them}.attention.output.dense")
    made += renamed(f"{us}.mlp.up", f"{them}.{mlp[0]}") + renamed(f"{us}.mlp.down", f"{them}.{mlp[1]}")
    if dino:
        made += [Rule((f"{us}.add{n}.scale",), (f"{them}.layer_scale{n}.lambda1",)) for n in (1, 2)]
    return made


def rules(config: ViTConfig, kind: str, bias: bool = True) -> list[Rule]:
    """Return all rules for a model of Hugging Face's `kind`.

    Args:
        bias: Whether queries, keys and values have one.
    """
    tokens = ["embeddings.cls_token", *["embeddings.distillation_token"] * (kind == "deit")]
    counts, embedded = [1] * len(tokens), len(tokens)
    if config.registers and kind != "deit":  # DeiT's second token is a register if no head reads it
        tokens, counts = [*tokens, "embeddings.register_tokens"], [*counts, config.registers]
    made = [front_rule(tokens, counts, embedded, config.grid, "embeddings.position_embeddings")]
    made += renamed("patches", PROJECTION)
    for i in range(config.depth):
        made += block_rules(i, config.block.layerscale > 0, 0 if bias else config.width)
    made += renamed("norm", "layernorm")
    made += renamed("prelogits.0", "pooler.dense") if config.prelogits else []
    if config.classes and config.pool == "pair":
        made += renamed("head.token", "cls_classifier") + renamed("head.teacher", "distillation_classifier")
    elif config.classes:
        made += renamed("head", "classifier")
    return made


def written(config: Config) -> list[Rule]:
    """Return the rules for writing: DINOv2's classes need a mask token too, which only pre-training used."""
    if isinstance(config, HybridConfig):
        raise UsageError("Hugging Face no longer has a layout for hybrids")
    kind = kind_of(config)
    made = rules(config, kind)
    if kind.startswith("dinov2"):
        mask = torch.zeros(1, config.width)
        made.append(Rule((), ("embeddings.mask_token",), lambda _: (), lambda: (mask,)))
    return made


def check_hf(shapes: Shapes, side: Mapping[str, Any]) -> None:
    """Refuse a config.json with which transformers would compute something else from these tensors."""
    kind, width = side.get("model_type"), shapes["embeddings.cls_token"][-1]
    known = _kinds(shapes)
    for name, (types, words) in PLAIN.items():
        if name in side and (isinstance(side[name], bool) or not isinstance(side[name], types)):
            raise ModelError(f"config.json says {name} {printable(repr(side[name]), 60)}; expected {words}")
    if kind in TYPES and kind not in known:
        raise ModelError(
            f"config.json says model_type {kind!r}, whose class in transformers leaves out "
            f"or misses some of these tensors (those of {' or '.join(known) or 'no class'}); "
            f"check that the file and its config belong together"
        )
    if side.get("problem_type") not in TASKS:
        raise ModelError(
            f"config.json says problem_type {printable(repr(side['problem_type']), 60)}; expected "
            f"single_label_classification; remove the line if each image has one class"
        )
    for name, value in _supported(shapes, side, width).items():
        claimed = side.get(name)
        same = claimed == value and isinstance(claimed, bool) == isinstance(value, bool)
        if claimed is not None and not same:
            raise ModelError(
                f"config.json says {name} {printable(repr(claimed), 60)}; expected {value!r}; either the "
                f"model is not supported, or the file and its config do not belong together"
            )


def _supported(shapes: Shapes, side: Mapping[str, Any], width: int) -> dict[str, Any]:
    """Return the fields that change the answer, each with the one value supported for these tensors."""
    heads = side.get("num_attention_heads", HEADS if "model_type" in side else 0)
    usual: dict[str, Any] = {"num_channels": 3, "use_swiglu_ffn": False, "is_causal": False}
    usual |= {"pruned_heads": {}, "quantization_config": None}
    if "pooler.dense.weight" in shapes:
        usual["pooler_act"] = "tanh"
    if heads > 0:
        usual["head_dim"] = width // heads
    if "encoder.layer.0.attention.attention.query.bias" in shapes:
        usual["qkv_bias"] = True
    if side.get("model_type") == "dinov2_with_registers":
        usual["num_register_tokens"] = shapes["embeddings.register_tokens"][1]
    if "encoder.layer.0.mlp.fc1.weight" in shapes:
        hidden = shapes["encoder.layer.0.mlp.fc1.weight"][0]
        usual["mlp_ratio"] = _ratio(hidden, width, side.get("mlp_ratio"))
    return usual


def _ratio(hidden: int, width: int, claimed: Any) -> Any:
    """Return the claimed ratio if `width` times it truncates to `hidden`, else the exact ratio."""
    plain = isinstance(claimed, int | float) and not isinstance(claimed, bool)
    return claimed if plain and int(width * claimed) == hidden else hidden / width


def _kinds(shapes: Shapes) -> tuple[str, ...]:
    """Return the `model_type`s whose classes use all of these tensors."""
    registers = "embeddings.register_tokens" in shapes
    if "encoder.layer.0.layer_scale1.lambda1" in shapes:
        return ("dinov2_with_registers",) if registers else ("dinov2",)
    if "embeddings.distillation_token" in shapes:
        return () if registers else ("deit",)
    return () if registers else ("vit", "vit_mae", "vit_msn")


def read_config(
    shapes: Shapes, side: Mapping[str, Any], image: tuple[int, int] | None
) -> tuple[Config, list[Rule]]:
    """Return config and rules for a file and its config.json."""
    if "encoder.layer.0.mlp.weights_in.weight" in shapes:
        raise ModelError(
            "the file has SwiGLU blocks (DINOv2-giant), which are not supported; use a smaller DINOv2"
        )
    if "encoder.layer.0.lambda_1" in shapes or "embeddings.position_embeddings" not in shapes:
        raise ModelError("the file is a BEiT or a ViT without position embeddings; neither is supported")
    check_hf(shapes, side)
    dino = "encoder.layer.0.layer_scale1.lambda1" in shapes
    teacher = "distillation_classifier.weight" in shapes
    second = "embeddings.distillation_token" in shapes
    bias = "encoder.layer.0.attention.attention.query.bias" in shapes or side.get("qkv_bias", True)
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
        heads=side.get("num_attention_heads", HEADS) if "model_type" in side else _heads(side, width),
        hidden=shapes[mlp][0],
        classes=shapes[head][0] if head in shapes else 0,
        pool="pair" if teacher else "token+mean" if dino and head in shapes else "token",
        resample="antialias" if registers else "bicubic",
        prelogits=shapes["pooler.dense.weight"][0] if "pooler.dense.weight" in shapes else 0,
        registers=registers + (second and not teacher),
        block=BlockStyle(
            gelu=GELUS[act],
            eps=float(
                side.get("layer_norm_eps", 1e-6 if dino or side.get("model_type") == "vit_msn" else 1e-12)
            ),
            layerscale=1.0 if dino else 0.0,
        ),
    )
    kind = "deit" if second else "dinov2" if dino else "vit"
    return config, rules(config, kind, bool(bias))


def _heads(side: Mapping[str, Any], width: int) -> Any:
    return side.get("num_attention_heads") or infer.heads(width)


LAYOUT = Layout("hf", recognise, clean, written, read_config, read_preprocess, write_side)
