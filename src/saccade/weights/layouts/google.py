"""Google's `.npz` layout (google-research/vision_transformer, AugReg, big_vision): recognise, read, write.

Computed with the tanh GELU and LayerNorm eps 1e-6. Dense kernels are (in, out), convolutions (height, width,
in, out), attention kernels carry an axis of heads.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from saccade.data.image.preprocess import HALF, Preprocess
from saccade.errors import ModelError, UsageError
from saccade.files.atomic import replacing
from saccade.models.hybrid import HybridConfig, factor_of
from saccade.models.vit import ViTConfig
from saccade.nn.block import BlockStyle
from saccade.nn.pool import KINDS
from saccade.weights.layouts import infer
from saccade.weights.layouts.rules import Config, Layout, Rule, Shapes, front_rule, reshaped

STYLE = BlockStyle(gelu="tanh", eps=1e-6)
EPS = 1e-6  # for the GroupNorm in a hybrid's stem
POOLS = ("token", "mean", "map")
POSITIONS = "Transformer/posembed_input/pos_embedding"
ATTENTION = "MultiHeadDotProductAttention"
NUMBERS = {  # published files count all modules together, later ones per class: both become the former
    f"{ATTENTION}_0": f"{ATTENTION}_1",
    "LayerNorm_1": "LayerNorm_2",
    "MlpBlock_0": "MlpBlock_3",
}


def recognise(names: Iterable[str]) -> bool:
    """Return whether a tensor has Flax's path of the first block."""
    return any("Transformer/encoderblock_0/" in name for name in names)


def clean(name: str) -> str | None:
    """Return their name without prefixes, with the published numbers and the older name of the positions."""
    if "/" in name and name.split("/")[0] == "opt" and not name.startswith("opt/target/"):
        return None  # the optimiser's own state
    name = name.removeprefix("opt/target/").removeprefix("params/")
    if name == "pos_embedding":
        return POSITIONS
    if name.startswith("Transformer/encoderblock_"):
        return "/".join(NUMBERS.get(part, part) for part in name.split("/"))
    return name


def dense(ours: str, theirs: str) -> list[Rule]:
    """Return the rules of a linear layer."""
    weight = reshaped(f"{ours}.weight", f"{theirs}/kernel", "i o -> o i")
    return [weight, Rule((f"{ours}.bias",), (f"{theirs}/bias",))]


def norm(ours: str, theirs: str) -> list[Rule]:
    """Return the rules of a LayerNorm."""
    return [Rule((f"{ours}.weight",), (f"{theirs}/scale",)), Rule((f"{ours}.bias",), (f"{theirs}/bias",))]


def group_norm(ours: str, theirs: str, flat: bool) -> list[Rule]:
    """Return the rules of a GroupNorm: (1, 1, 1, channels) in published files, `flat` in later ones."""
    pairs = (("weight", "scale"), ("bias", "bias"))
    pattern = "c -> c" if flat else "1 1 1 c -> c"
    return [reshaped(f"{ours}.{us}", f"{theirs}/{them}", pattern) for us, them in pairs]


def conv(ours: str, theirs: str) -> Rule:
    """Return the rule of a convolution's kernel."""
    return reshaped(f"{ours}.weight", f"{theirs}/kernel", "h w i o -> o i h w")


def attention(ours: str, theirs: str, heads: int) -> list[Rule]:
    """Return the rules of queries, keys, values and the output matrix."""
    rules = []
    for us, them in (("q", "query"), ("k", "key"), ("v", "value")):
        rules.append(reshaped(f"{ours}.{us}.weight", f"{theirs}/{them}/kernel", "d h k -> (h k) d", h=heads))
        rules.append(reshaped(f"{ours}.{us}.bias", f"{theirs}/{them}/bias", "h k -> (h k)", h=heads))
    rules.append(reshaped(f"{ours}.out.weight", f"{theirs}/out/kernel", "h k d -> d (h k)", h=heads))
    return [*rules, Rule((f"{ours}.out.bias",), (f"{theirs}/out/bias",))]


def stem_rules(config: HybridConfig, flat: bool) -> list[Rule]:
    """Return the rules of a hybrid's stem."""
    rules = [conv("patches.root", "conv_root"), *group_norm("patches.norm", "gn_root", flat)]
    rules += [conv("patches.embedding", "embedding"), Rule(("patches.embedding.bias",), ("embedding/bias",))]
    for b, units in enumerate(config.layers):
        for u in range(units):
            us, them = f"patches.stages.{b}.{u}", f"block{b + 1}/unit{u + 1}"
            for n in (1, 2, 3):
                rules += [conv(f"{us}.conv{n}", f"{them}/conv{n}")]
                rules += group_norm(f"{us}.norm{n}", f"{them}/gn{n}", flat)
            if u == 0:
                rules += [conv(f"{us}.project", f"{them}/conv_proj")]
                rules += group_norm(f"{us}.norm_project", f"{them}/gn_proj", flat)
    return rules


def rules(config: Config, embedded: int | None = None, flat: bool = False) -> list[Rule]:
    """Return all rules for a model."""
    vit = config.vit if isinstance(config, HybridConfig) else config
    _check(vit)
    tokens = KINDS[vit.pool]
    embedded = tokens if embedded is None else embedded
    made = [front_rule(["cls"][:tokens], [1][:tokens], embedded, vit.grid, POSITIONS)]
    if isinstance(config, HybridConfig):
        made += stem_rules(config, flat)
    else:
        made += [conv("patches", "embedding"), Rule(("patches.bias",), ("embedding/bias",))]
    for i in range(vit.depth):
        us, them = f"blocks.{i}", f"Transformer/encoderblock_{i}"
        made += norm(f"{us}.norm1", f"{them}/LayerNorm_0") + norm(f"{us}.norm2", f"{them}/LayerNorm_2")
        made += attention(f"{us}.attention", f"{them}/{ATTENTION}_1", vit.heads)
        made += dense(f"{us}.mlp.up", f"{them}/MlpBlock_3/Dense_0") + dense(
            f"{us}.mlp.down", f"{them}/MlpBlock_3/Dense_1"
        )
    made += norm("norm", "Transformer/encoder_norm")
    if vit.pool == "map":
        made += [
            reshaped("pool.probe", "MAPHead_0/probe", "1 1 d -> d"),
            *norm("pool.norm", "MAPHead_0/LayerNorm_0"),
        ]
        made += attention("pool.attention", f"MAPHead_0/{ATTENTION}_0", vit.heads)
        made += dense("pool.mlp.up", "MAPHead_0/MlpBlock_0/Dense_0") + dense(
            "pool.mlp.down", "MAPHead_0/MlpBlock_0/Dense_1"
        )
    made += dense("prelogits.0", "pre_logits") if vit.prelogits else []
    made += dense("head", "head") if vit.classes else []
    return made


def read_config(
    shapes: Shapes, side: Mapping[str, Any], image: tuple[int, int] | None
) -> tuple[Config, list[Rule]]:
    """Return config and rules for a file; the shapes give everything but a grid that is not square."""
    if POSITIONS not in shapes:
        raise ModelError(
            "the file has no table of positions (pos_embedding); big_vision's fixed ones are not read"
        )
    block = "Transformer/encoderblock_0"
    units = _units(shapes) if "conv_root/kernel" in shapes else None
    patch = shapes["embedding/kernel"][0] * (1 if units is None else 4 * 2 ** max(len(units) - 1, 0))
    width, heads, _ = shapes[f"{block}/{ATTENTION}_1/query/kernel"]
    tokens = int("cls" in shapes)
    (rows, cols), embedded = infer.grid(shapes[POSITIONS][1], tokens, patch, image)
    vit = ViTConfig(
        image=(rows * patch, cols * patch),
        patch=patch,
        width=width,
        depth=infer.depth(shapes, "Transformer/encoderblock_{i}/LayerNorm_0/scale"),
        heads=heads,
        hidden=shapes[f"{block}/MlpBlock_3/Dense_0/kernel"][1],
        classes=shapes["head/kernel"][1] if "head/kernel" in shapes else 0,
        pool="token" if tokens else "map" if "MAPHead_0/probe" in shapes else "mean",
        resample="bilinear",
        prelogits=shapes["pre_logits/kernel"][1] if "pre_logits/kernel" in shapes else 0,
        block=STYLE,
    )
    if units is None:
        return vit, rules(vit, embedded)
    config = HybridConfig(layers=units, factor=factor_of(shapes["conv_root/kernel"][3]), vit=vit)
    return config, rules(config, embedded, flat=len(shapes["gn_root/scale"]) == 1)


def read_preprocess(side: Mapping[str, Any], config: Config) -> Preprocess:
    """Return pixels from -1 to 1 and the usual crop, as Google's files do not say."""
    vit = config.vit if isinstance(config, HybridConfig) else config
    return Preprocess(size=vit.image)


def write_side(config: Config, preprocess: Preprocess, labels: list[str]) -> dict[str, Any]:
    """Return no files; refuse a model that computes anything but what the layout implies."""
    vit = config.vit if isinstance(config, HybridConfig) else config
    infer.check_style(vit, STYLE, "Google's")
    if isinstance(config, HybridConfig):
        infer.check_stem(config, EPS, 0.0, "Google's")
    if vit.grid[0] != vit.grid[1]:
        raise UsageError(
            f"Google's layout does not store the image size, and its readers assume a square grid; "
            f"this model has {vit.grid[0]}x{vit.grid[1]} patches"
        )
    infer.check_input(preprocess.size, vit, "Google's")
    if (preprocess.mean, preprocess.std) != HALF:
        raise UsageError(
            f"Google's layout assumes pixels from -1 to 1; this model normalises by mean {preprocess.mean} "
            f"and std {preprocess.std}"
        )
    return {}


def _check(vit: ViTConfig) -> None:
    """Refuse what Google's classes cannot represent."""
    if vit.pool not in POOLS:
        raise UsageError(f"Google's ViTs pool by {', '.join(POOLS)}; this model pools by {vit.pool!r}")
    if vit.registers:
        raise UsageError(f"Google's ViTs have no registers; this model has {vit.registers}")
    if vit.block.layerscale:
        raise UsageError("Google's ViTs have no layer scale; this model has one")


def write_npz(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write arrays as NumPy stores them, whole or not at all, the same bytes for the same arrays."""
    arrays = {name: tensor.numpy() for name, tensor in sorted(tensors.items())}
    with replacing(path, sum(array.nbytes for array in arrays.values())) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # NumPy's stub takes the names for its own options


def _units(shapes: Shapes) -> tuple[int, ...]:
    stages: list[int] = []
    while f"block{len(stages) + 1}/unit1/conv1/kernel" in shapes:
        prefix = f"block{len(stages) + 1}/unit"
        stages.append(sum(name.startswith(prefix) and name.endswith("/conv1/kernel") for name in shapes))
    return tuple(stages)


LAYOUT = Layout("google", recognise, clean, rules, read_config, read_preprocess, write_side)
