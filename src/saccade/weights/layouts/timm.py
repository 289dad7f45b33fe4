"""The layout of timm's Vision Transformers (`blocks.0.attn.qkv.weight`): recognise, read, write.

Computed with the erf GELU and LayerNorm eps 1e-6. The number of heads is not in the file: it is in the
config beside it, or else width / 64.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf, nextafter
from typing import Any

from saccade.data.image.preprocess import Preprocess
from saccade.errors import ModelError, UsageError
from saccade.models.hybrid import HybridConfig, factor_of
from saccade.models.vit import ViTConfig
from saccade.nn.block import BlockStyle
from saccade.nn.pool import KINDS
from saccade.weights.layouts import infer
from saccade.weights.layouts.rules import Config, Layout, Rule, Shapes, front_rule, join, renamed
from saccade.wording import printable

SIZE_NAMES = {
    192: "tiny",
    384: "small",
    768: "base",
    1024: "large",
    1280: "huge",
    1408: "giant",
    1664: "gigantic",
}
BUILT = {
    "tiny": (16,),
    "small": (16, 32),
    "base": (8, 16, 32),
    "large": (14, 16, 32),
    "huge": (14,),
    "giant": (14,),
    "gigantic": (14,),
}
"""Patch sizes of the models that timm builds by name."""
HYBRIDS = {
    (192, ()): "vit_tiny_r_s16_p8_224",
    (384, (2, 2, 2, 2)): "vit_small_r26_s32_224",
    (768, (2, 2, 2, 2)): "vit_base_r26_s32_224",
    (768, (3, 4, 9)): "vit_base_r50_s16_224",
    (1024, (3, 4, 6, 3)): "vit_large_r50_s32_224",
}
BARE = "patch_embed.backbone.conv.weight"  # a stem without stages
STYLE = BlockStyle(gelu="erf", eps=1e-6)
EPS = 1e-5  # for the GroupNorm in a hybrid's stem
VARIANCE_EPS = 1e-8  # for its kernels
POOLS = {"token": "token", "pair": "token", "mean": "avg", "mean_norm": "avg"}
MODES = {"crop": "center", "squash": "squash", "squash+crop": "squash"}
ARGUMENTS = {  # of timm's VisionTransformer that change the answer, with the supported value
    "qkv_bias": True, "proj_bias": True, "qk_norm": False, "scale_attn_norm": False, "scale_mlp_norm": False,
    "pos_embed": "learn", "pre_norm": False, "final_norm": True, "pool_include_prefix": False, "in_chans": 3,
    "embed_norm_layer": None, "norm_layer": None, "act_layer": None, "block_fn": None, "mlp_layer": None,
    "attn_layer": None, "embed_layer": None,
}  # fmt: skip


def recognise(names: Iterable[str]) -> bool:
    """Return whether a block has timm's fused `attn.qkv`."""
    return {"blocks.0.attn.qkv.weight", "pos_embed"} <= set(names)


def clean(name: str) -> str | None:
    """Return their name as the rules below have it; None for a tensor that the model does not need."""
    name = name.removeprefix("module.").removeprefix("model.")
    return None if name == "mask_token" else name


def block_rules(i: int, scale: bool) -> list[Rule]:
    """Return the rules of one encoder block."""
    us, them = f"blocks.{i}", f"blocks.{i}"
    rules = [
        Rule(
            tuple(f"{us}.attention.{x}.{part}" for x in "qkv"),
            (f"{them}.attn.qkv.{part}",),
            lambda t: t.chunk(3),
            lambda *ts: (join(ts),),
        )
        for part in ("weight", "bias")
    ]
    rules += renamed(f"{us}.norm1", f"{them}.norm1") + renamed(f"{us}.norm2", f"{them}.norm2")
    rules += renamed(f"{us}.attention.out", f"{them}.attn.proj")
    rules += renamed(f"{us}.mlp.up", f"{them}.mlp.fc1") + renamed(f"{us}.mlp.down", f"{them}.mlp.fc2")
    if scale:
        rules += [Rule((f"{us}.add{n}.scale",), (f"{them}.ls{n}.gamma",)) for n in (1, 2)]
    return rules


def stem_rules(config: HybridConfig) -> list[Rule]:
    """Return the rules of a hybrid's stem."""
    them = "patch_embed.backbone"
    rules = renamed("patches.embedding", "patch_embed.proj")
    root = f"{them}.stem" if config.layers else them
    rules += renamed("patches.root", f"{root}.conv", ("weight",)) + renamed("patches.norm", f"{root}.norm")
    for b, units in enumerate(config.layers):
        for u in range(units):
            us, it = f"patches.stages.{b}.{u}", f"{them}.stages.{b}.blocks.{u}"
            for n in (1, 2, 3):
                rules += renamed(f"{us}.conv{n}", f"{it}.conv{n}", ("weight",))
                rules += renamed(f"{us}.norm{n}", f"{it}.norm{n}")
            if u == 0:
                rules += renamed(f"{us}.project", f"{it}.downsample.conv", ("weight",))
                rules += renamed(f"{us}.norm_project", f"{it}.downsample.norm")
    return rules


def rules(config: Config, embedded: int | None = None) -> list[Rule]:
    """Return all rules for a model; files with registers keep no position for the class token."""
    vit = config.vit if isinstance(config, HybridConfig) else config
    tokens = [("cls_token", 1), ("dist_token", 1)][: KINDS[vit.pool]]
    tokens += [("reg_token", vit.registers)] if vit.registers else []
    if embedded is None:
        embedded = 0 if vit.registers else KINDS[vit.pool]
    names, counts = [name for name, _ in tokens], [count for _, count in tokens]
    made = [front_rule(names, counts, embedded, vit.grid, "pos_embed")]
    made += stem_rules(config) if isinstance(config, HybridConfig) else renamed("patches", "patch_embed.proj")
    for i in range(vit.depth):
        made += block_rules(i, scale=vit.block.layerscale > 0)
    made += renamed("norm", "fc_norm" if vit.pool == "mean_norm" else "norm")
    if vit.prelogits:
        made += renamed("prelogits.0", "pre_logits.fc")
    if vit.classes and vit.pool == "pair":
        made += renamed("head.token", "head") + renamed("head.teacher", "head_dist")
    elif vit.classes:
        made += renamed("head", "head")
    return made


def read_config(
    shapes: Shapes, side: Mapping[str, Any], image: tuple[int, int] | None
) -> tuple[Config, list[Rule]]:
    """Return config and rules for a file, from its shapes and the config.json of timm's hub folders."""
    given = side.get("model_args") or {}
    _check_arguments(given)
    cfg = side.get("pretrained_cfg") or side
    size = image or infer.pair(given.get("img_size")) or infer.pair(cfg.get("input_size"))
    width = shapes["pos_embed"][-1]
    units = _units(shapes)
    patch = shapes["patch_embed.proj.weight"][-1]
    patch *= 1 if units is None else 4 * 2 ** max(len(units) - 1, 0)
    tokens = sum(name in shapes for name in ("cls_token", "dist_token"))
    (rows, cols), embedded = infer.grid(shapes["pos_embed"][1], tokens, patch, size)
    vit = ViTConfig(
        image=(rows * patch, cols * patch),
        patch=patch,
        width=width,
        depth=infer.depth(shapes, "blocks.{i}.norm1.weight"),
        heads=given.get("num_heads") or infer.heads(width),
        hidden=shapes["blocks.0.mlp.fc1.weight"][0],
        classes=shapes["head.weight"][0] if "head.weight" in shapes else 0,
        pool=_pool(shapes, tokens, side, given),
        prelogits=shapes["pre_logits.fc.weight"][0] if "pre_logits.fc.weight" in shapes else 0,
        registers=shapes["reg_token"][1] if "reg_token" in shapes else 0,
        block=replace(STYLE, layerscale=1e-5 if "blocks.0.ls1.gamma" in shapes else 0.0),
    )
    if units is None:
        return vit, rules(vit, embedded)
    factor = factor_of(shapes["patch_embed.backbone.stem.conv.weight" if units else BARE][0])
    config = HybridConfig(layers=units, factor=factor, eps=EPS, variance_eps=VARIANCE_EPS, vit=vit)
    return config, rules(config, embedded)


def read_preprocess(side: Mapping[str, Any], config: Config) -> Preprocess:
    """Return the preprocessing in timm's `pretrained_cfg`, with timm's defaults for missing fields."""
    cfg = side.get("pretrained_cfg") or side
    vit = config.vit if isinstance(config, HybridConfig) else config
    known = {"mean": tuple, "std": tuple, "interpolation": str}
    given = {name: kind(cfg[name]) for name, kind in known.items() if name in cfg}
    crop, mode = float(cfg.get("crop_pct", 0.9)), cfg.get("crop_mode") or "center"
    if mode not in MODES.values():
        raise ModelError(f"crop_mode is {printable(repr(mode), 60)}; expected one of center, squash")
    fit = "crop" if mode == "center" else "squash" if crop == 1 else "squash+crop"
    return Preprocess(size=vit.image, fit=fit, crop=crop, **given)


def _check(config: Config) -> None:
    """Refuse what timm's classes would leave out or compute differently."""
    vit = config.vit if isinstance(config, HybridConfig) else config
    infer.check_style(vit, STYLE, "timm's")
    if isinstance(config, HybridConfig):
        infer.check_stem(config, EPS, VARIANCE_EPS, "timm's")
    if vit.pool not in POOLS:
        raise UsageError(f"timm's ViTs pool by {', '.join(POOLS)} here; this model pools by {vit.pool!r}")
    if vit.pool == "pair" and vit.registers:
        raise UsageError(f"timm's distilled ViT has no registers; this model has {vit.registers}")
    if vit.prelogits:
        raise UsageError(f"timm's ViTs no longer have pre-logits; this model has {vit.prelogits}")


def _architecture(config: Config) -> str:
    """Return a name that timm builds; `model_args` sets all sizes, except that a hybrid's stem has none."""
    vit = config.vit if isinstance(config, HybridConfig) else config
    if isinstance(config, HybridConfig):
        published = HYBRIDS.get((vit.width, config.layers)) if config.factor == 1 else None
        return published or "vit_custom_hybrid"
    if vit.pool == "pair":
        return "deit_base_distilled_patch16_224"
    size = SIZE_NAMES.get(vit.width, "custom")
    return f"vit_{size}_patch{vit.patch}_224" if vit.patch in BUILT.get(size, ()) else "vit_base_patch16_224"


def _arguments(config: Config) -> dict[str, Any]:
    """Return the arguments with which timm builds exactly this model."""
    vit = config.vit if isinstance(config, HybridConfig) else config
    ratio = vit.hidden / vit.width
    sizes = {} if isinstance(config, HybridConfig) else {"patch_size": vit.patch}
    return sizes | {
        "img_size": list(vit.image),
        "embed_dim": vit.width,
        "depth": vit.depth,
        "num_heads": vit.heads,
        "mlp_ratio": ratio if int(vit.width * ratio) == vit.hidden else nextafter(ratio, inf),
        "init_values": vit.block.layerscale or None,
        "class_token": KINDS[vit.pool] > 0,
        "no_embed_class": vit.registers > 0,
        "reg_tokens": vit.registers,
        "global_pool": POOLS[vit.pool],
        "fc_norm": vit.pool == "mean_norm",
    }


def write_side(config: Config, preprocess: Preprocess, labels: list[str]) -> dict[str, Any]:
    """Return the files beside the weights in timm's hub layout."""
    vit = config.vit if isinstance(config, HybridConfig) else config
    _check(config)
    infer.check_input(preprocess.size, vit, "timm's")
    if preprocess.fit not in MODES:
        raise UsageError(f"timm's ViTs do not pad images as this model does (fit {preprocess.fit!r})")
    made = {
        "architecture": _architecture(config),
        "num_classes": vit.classes,
        "num_features": vit.width,
        "global_pool": POOLS[vit.pool],
        "model_args": _arguments(config),
        "pretrained_cfg": {
            "input_size": [3, *vit.image],
            "interpolation": preprocess.interpolation,
            "crop_pct": 1.0 if preprocess.fit == "squash" else preprocess.crop,
            "crop_mode": MODES[preprocess.fit],
            "mean": list(preprocess.mean),
            "std": list(preprocess.std),
            "num_classes": vit.classes,
            "label_names": labels,
        },
    }
    return {"config.json": made}


def _check_arguments(given: Mapping[str, Any]) -> None:
    for name, value in ARGUMENTS.items():
        if given.get(name, value) != value:
            raise ModelError(
                f"config.json says {name} {printable(repr(given[name]), 60)} in model_args; expected "
                f"{value!r}; no other value is supported"
            )


def _units(shapes: Shapes) -> tuple[int, ...] | None:
    if BARE in shapes:
        return ()
    if "patch_embed.backbone.stem.conv.weight" not in shapes:
        return None
    stages: list[int] = []
    while f"patch_embed.backbone.stages.{len(stages)}.blocks.0.conv1.weight" in shapes:
        stages.append(
            infer.depth(shapes, f"patch_embed.backbone.stages.{len(stages)}.blocks.{{i}}.conv1.weight")
        )
    return tuple(stages)


def _pool(shapes: Shapes, tokens: int, side: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Return our name for timm's pooling: the mean if a norm follows the pool, else the class token."""
    normed = "fc_norm.weight" in shapes
    theirs = "avg" if normed or not tokens else "token"
    other = [
        found for place in (given, side) if (found := place.get("global_pool")) not in (theirs, "", None)
    ]
    if other:
        raise ModelError(
            f"config.json says global_pool {printable(repr(other[0]), 60)}, but a model with these tensors "
            f"pools by {theirs!r} here; no other pooling is supported"
        )
    if tokens == 2:
        return "pair"
    return "mean_norm" if normed else "token" if tokens else "mean"


LAYOUT = Layout("timm", recognise, clean, rules, read_config, read_preprocess, write_side)
