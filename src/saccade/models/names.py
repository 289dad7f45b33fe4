"""Names of models, read by a grammar: vit_b16, vit_b16_384, deit_s16_distilled, r50_vit_b16, resnet18."""

import re
from dataclasses import replace
from difflib import get_close_matches

from saccade.errors import UsageError, did_you_mean
from saccade.models.hybrid import HybridConfig
from saccade.models.resnet import ResNetConfig
from saccade.models.vit import ViTConfig
from saccade.nn import conv_stem
from saccade.nn.block import BlockStyle
from saccade.spellings import architecture

Config = ViTConfig | HybridConfig | ResNetConfig

SIZES = {  # width, depth, heads, hidden
    "xs": (64, 4, 4, 128),  # ours, for images of a few pixels
    "mini": (128, 4, 4, 256),  # ours, for few images or little time
    "ti": (192, 12, 3, 768),  # Touvron et al. 2021 (DeiT), Steiner et al. 2022 (AugReg)
    "s": (384, 12, 6, 1536),
    "b": (768, 12, 12, 3072),  # Dosovitskiy et al. 2021, table 1
    "l": (1024, 24, 16, 4096),
    "h": (1280, 32, 16, 5120),
    "g": (1408, 40, 16, 6144),  # Zhai et al. 2022, table 2
    "G": (1664, 48, 16, 8192),
}
OURS = ("xs", "mini")
"""Sizes that no published weights have."""
STEMS = {  # (name, total stride): units per stage
    # Dosovitskiy et al. 2021, appendix B: the fourth stage's units moved to the third
    ("r50", 16): (3, 4, 9),
    ("r50", 32): (3, 4, 6, 3),
    ("r26", 32): (2, 2, 2, 2),  # Steiner et al. 2022
    ("r", 32): (),
}
RESNETS = {"18": ((2, 2, 2, 2), False), "34": ((3, 4, 6, 3), False), "50": ((3, 4, 6, 3), True)}
EXAMPLES = (
    *(f"vit_{size}{patch}" for size, patches in
      {"ti": (16, 4), "s": (16, 32), "b": (16, 32), "l": (16, 32), "h": (14,), "g": (14,), "G": (14,)}.items()
      for patch in patches),
    *(f"deit_{size}16{suffix}" for size in ("ti", "s", "b") for suffix in ("", "_distilled")),
    *(f"dinov2_{size}14{suffix}" for size in ("s", "b", "l") for suffix in ("", "_reg")),
    "conv_vit_mini4_32", "conv_vit_mini16_128", "conv_vit_ti16",
    "r_vit_ti16", "r26_vit_s32", "r26_vit_b32", "r50_vit_b16", "r50_vit_l32",
    "resnet18", "resnet34", "resnet50",
)  # fmt: skip
"""Names for the table of models; the grammar reads many more."""

_SIZE = "|".join(SIZES)
GRAMMAR = re.compile(
    rf"(?:(?P<stem>r|r26|r50|conv)_)?(?P<kind>vit|deit|dinov2)_(?P<size>{_SIZE})(?P<patch>\d{{1,4}})"
    r"(?P<suffix>_distilled|_reg)?(?:_(?P<height>\d{1,5})(?:x(?P<width>\d{1,5}))?)?"
)
RESNET = re.compile(
    rf"resnet(?P<depth>{'|'.join(RESNETS)})(?P<small>_small)?"
    r"(?:_w(?P<width>\d{1,4}))?(?:_(?P<side>\d{1,5}))?"
)


def is_architecture(name: str) -> bool:
    """Return whether a name is an architecture's, of images or of text, rather than a path."""
    return bool(GRAMMAR.fullmatch(name) or RESNET.fullmatch(name) or is_text(name))


def is_text(name: str) -> bool:
    """Return whether a name is a text model's; the code of text models is loaded only if it may be."""
    if not name.startswith(("seq2seq", "transformer", "gpt", "bert")):
        return False
    from saccade.models.text.names import GRAMMAR

    return GRAMMAR.fullmatch(name) is not None


def config(name: str, classes: int = 1000) -> Config:
    """Read a name such as vit_b16, vit_b16_384 or vit_b16_384x512 (size, patch, height x width)."""
    if is_text(name):
        raise UsageError(f"{name!r} is a text model; expected a vision model, such as vit_b16")
    if match := RESNET.fullmatch(name):
        layers, bottleneck = RESNETS[match["depth"]]
        side = int(match["side"] or 224)
        return ResNetConfig(
            layers=layers,
            bottleneck=bottleneck,
            width=int(match["width"] or 64),
            classes=classes,
            image=(side, side),
            small=match["small"] is not None,
        )
    match = GRAMMAR.fullmatch(name)
    if match is None or (match["stem"] and match["kind"] != "vit"):
        raise _unknown(name)
    kind, patch, suffix = match["kind"], int(match["patch"]), match["suffix"] or ""
    if (suffix == "_distilled") > (kind == "deit") or (suffix == "_reg") > (kind == "dinov2"):
        raise _unknown(name)
    if match["stem"] == "r":  # published as R+Ti/16, but its stem has stride 4 and its patches 8 of that
        patch *= 2
    width, depth, heads, hidden = SIZES[match["size"]]
    height = int(match["height"] or (518 if kind == "dinov2" else 224))
    vit = ViTConfig(
        image=(height, int(match["width"] or height)),
        patch=patch,
        width=width,
        depth=depth,
        heads=heads,
        hidden=hidden,
        classes=classes,
        pool={"_distilled": "pair"}.get(suffix, "token+mean" if kind == "dinov2" else "token"),
        registers=4 if suffix == "_reg" else 0,
    )
    if kind == "dinov2":
        vit = replace(vit, block=BlockStyle(layerscale=1e-5))
    if match["stem"] == "conv":
        return replace(vit, convs=conv_stem.usual(width, patch), pool="mean")
    if not match["stem"]:
        return vit
    if (match["stem"], patch) not in STEMS:
        raise _unknown(name)
    return HybridConfig(layers=STEMS[match["stem"], patch], vit=vit)


def _unknown(name: str) -> UsageError:
    known = next(iter(get_close_matches(name, EXAMPLES, 1, 0.93)), "") or architecture(name)
    hint = f"; did you mean {known!r}?" if known not in ("", name) else did_you_mean(name, EXAMPLES, most=3)
    return UsageError(
        f"no model is named {name!r}{hint} (names look like vit_b16 or vit_b16_384; see `saccade models`)"
    )
