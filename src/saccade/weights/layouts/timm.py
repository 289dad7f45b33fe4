"""The layout of timm's Vision Transformers (`blocks.0.attn.qkv.weight`): recognise, read, write.

Computed with the erf GELU and LayerNorm eps 1e-6. The number of heads is not in the file: it stands in the
config beside it, or is width / 64.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
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

SIZE_NAMES = {
    192: "tiny",
    384: "small",
    768: "base",
    1024: "large",
    1280: "huge",
    1408: "giant",
    1664: "gigantic",
}
BARE = "patch_embed.backbone.conv.weight"  # a stem without stages
STYLE = BlockStyle(gelu="erf", eps=1e-6)


def recognise(names: Iterable[str]) -> bool:
    """timm's fused `attn.qkv` is its own."""
    return {"blocks.0.attn.qkv.weight", "pos_embed"} <= set(names)


def clean(name: str) -> str | None:
    """Their name as the table below has it; None for a tensor that the model does not need."""
    name = name.removeprefix("module.").removeprefix("model.")
    return None if name == "mask_token" else name


def block_rules(i: int, scale: bool) -> list[Rule]:
    """One encoder block."""
    us, them = f"blocks.{i}", f"blocks.{i}"
    rules = [
        Rule(
            tuple(f"{us}.attention.{x}.{part}" for x in "qkv"),
            (f"{them}.attn.qkv.{part}",),
            lambda t: t.chunk(3),
            lambda *ts: (torch.cat(ts),),
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
    """The convolutional stem of a hybrid."""
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
    """The whole table for a model; files of models with registers keep no position for the class token."""
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
    """The config and the table for a file, from its shapes and the config.json of timm's hub folders."""
    given = side.get("model_args") or {}
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
        pool=_pool(shapes, tokens, side),
        prelogits=shapes["pre_logits.fc.weight"][0] if "pre_logits.fc.weight" in shapes else 0,
        registers=shapes["reg_token"][1] if "reg_token" in shapes else 0,
        block=replace(STYLE, layerscale=1e-5 if "blocks.0.ls1.gamma" in shapes else 0.0),
    )
    if units is None:
        return vit, rules(vit, embedded)
    factor = shapes["patch_embed.backbone.stem.conv.weight" if units else BARE][0] // 64
    config = HybridConfig(
        layers=units, factor=factor, eps=1e-5, vit=vit
    )  # timm's GroupNorm keeps torch's eps
    return config, rules(config, embedded)


def read_preprocess(side: Mapping[str, Any], config: Config) -> Preprocess:
    """What timm's `pretrained_cfg` says of resizing and normalising; its usual values where it is silent."""
    cfg = side.get("pretrained_cfg") or side
    vit = config.vit if isinstance(config, HybridConfig) else config
    known = {"mean": tuple, "std": tuple, "interpolation": str}
    given = {name: kind(cfg[name]) for name, kind in known.items() if name in cfg}
    return Preprocess(size=vit.image, crop=float(cfg.get("crop_pct", 0.9)), **given)


def write_side(config: Config, preprocess: Preprocess, labels: list[str]) -> dict[str, Any]:
    """The files beside the weights of a folder of timm's hub layout."""
    vit = config.vit if isinstance(config, HybridConfig) else config
    infer.check_style(vit, STYLE, "timm's")
    if vit.pool == "token+mean":
        raise UsageError(
            "timm's ViTs do not pool by 'token+mean' (DINOv2's classifier); write this model as hf"
        )
    size = SIZE_NAMES.get(vit.width, "custom")
    made = {
        "architecture": f"vit_{size}_patch{vit.patch}_{vit.image[0]}",
        "num_classes": vit.classes,
        "num_features": vit.width,
        "global_pool": {"mean_norm": "avg", "mean": "avg", "map": "map"}.get(vit.pool, "token"),
        "model_args": {"img_size": list(vit.image), "num_heads": vit.heads, "reg_tokens": vit.registers},
        "pretrained_cfg": {
            "input_size": [3, *vit.image],
            "interpolation": preprocess.interpolation,
            "crop_pct": preprocess.crop,
            "mean": list(preprocess.mean),
            "std": list(preprocess.std),
            "num_classes": vit.classes,
            "label_names": labels,
        },
    }
    return {"config.json": made}


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


def _pool(shapes: Shapes, tokens: int, side: Mapping[str, Any]) -> str:
    if tokens == 2:
        return "pair"
    if "fc_norm.weight" in shapes:
        return "mean_norm"
    if tokens and side.get("global_pool", "token") != "token":
        raise ModelError(
            "a class token beside a mean over normalised patches is not supported; expected one of them"
        )
    return "token" if tokens else "mean"


LAYOUT = Layout("timm", recognise, clean, rules, read_config, read_preprocess, write_side)
