"""Load an image model from any library, and check what its files claim."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from saccade.data.image.preprocess import Preprocess, check_tokens, most_tokens, tokens
from saccade.errors import ModelError, ResourceError, SaccadeError, UsageError
from saccade.files.digest import claimed
from saccade.files.paths import refusal_at
from saccade.models.build import Known, Vision, blank, config_of, from_json
from saccade.models.hybrid import HybridConfig
from saccade.models.looped import LoopConfig, vit_of
from saccade.models.resnet import ResNetConfig
from saccade.models.vit import ViTConfig
from saccade.nn.patch import check_size
from saccade.tokens.kinds import KINDS
from saccade.weights.formats.tensors import SINGLE, read_tensors
from saccade.weights.identify import FORMAT, Identified, identify
from saccade.weights.layouts import dynamicvit, google, hf, infer, timm
from saccade.weights.layouts.rules import Layout, Rule, check_dtypes, examine, save, some_sorted, state
from saccade.weights.layouts.rules import load as renamed
from saccade.weights.resize import resize
from saccade.wording import printable

LAYOUTS: dict[str, Layout[Any]] = {
    layout.name: layout for layout in (google.LAYOUT, dynamicvit.LAYOUT, timm.LAYOUT, hf.LAYOUT)
}
"""The first that recognises a file reads it: DynamicViT's files are timm's with more tensors."""
NAMES = {  # Hugging Face's and timm's names for our fields
    "hidden_size": "width", "num_features": "width", "num_hidden_layers": "depth",
    "num_attention_heads": "heads", "intermediate_size": "hidden", "patch_size": "patch",
}  # fmt: skip
LARGER = 4
LARGE = 1024
ALIGNED = 64
"""Bytes: torch allocates memory at multiples of this."""
M = TypeVar("M", bound=nn.Module)


@dataclass(slots=True)
class Loaded:
    """A module in evaluation mode with everything it needs to predict."""

    module: Vision
    preprocess: Preprocess
    labels: list[str] = field(default_factory=list)
    layout: str = "saccade"
    unused: list[str] = field(default_factory=list)
    """Tensors of the file that the model does not need (a decoder, a mask token, an optimiser's state)."""
    task: str = ""
    """The task that model.json names; empty for other people's weights."""
    origin: Identified | None = None
    """The file or folder that it was read from; see `saccade.weights.lineage`."""


def check_config(side: Mapping[str, Any], vit: ViTConfig) -> None:
    """Refuse a config of another architecture, or of other sizes than the tensors have."""
    kind = side.get("model_type")
    if kind is not None and kind not in hf.TYPES:
        raise ModelError(
            f"config.json describes the architecture {printable(repr(kind), 60)}; "
            f"expected one of {', '.join(hf.TYPES)}"
        )
    if type(vit.heads) is not int:
        raise ModelError(f"the config says {printable(repr(vit.heads), 60)} heads; expected a whole number")
    if side.get("image_size") is not None and infer.pair(side["image_size"]) is None:
        raise ModelError(
            f"config.json says image_size {printable(repr(side['image_size']), 60)}; expected pixels"
        )
    for theirs, ours in NAMES.items():
        said, real = side.get(theirs), getattr(vit, ours)
        if theirs in side and (isinstance(said, bool) or said not in (real, [real, real])):
            raise ModelError(
                f"config.json says {theirs} {printable(repr(said), 60)}, but the tensors are those of "
                f"{real}; check that the file and its config belong together"
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


def _most_tokens(config: ViTConfig) -> int:
    return most_tokens(tokens(config.image, config.patch), config.position)


def check_input(preprocess: Preprocess, config: ViTConfig | ResNetConfig) -> None:
    """Refuse a preprocessing that the model cannot take, or that would take all memory."""
    for side, trained in zip(preprocess.size, config.image, strict=True):
        if side > max(LARGER * trained, LARGE):
            raise ModelError(
                f"the preprocessing asks for images of {side} pixels for a model of {trained}; "
                f"expected at most {max(LARGER * trained, LARGE)}"
            )
    try:
        if isinstance(config, ViTConfig):
            check_size(*preprocess.size, config.patch)
            check_tokens(preprocess.size, config.patch, _most_tokens(config))
    except UsageError as error:
        raise ModelError(f"the preprocessing does not fit the model: {error}") from error


def check_format(where: str, model: Mapping[str, Any]) -> None:
    """Refuse a model.json of another version."""
    if model.get("format") != FORMAT:
        raise ModelError(
            f"{where} is of format {printable(repr(model.get('format')), 60)}; this version reads {FORMAT}; "
            f"update saccade or save the model again"
        )


def fill(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Fill an empty module with numbers, in fp32."""
    empty = {name: torch.zeros(t.shape) for name, t in module.state_dict().items() if t.numel() == 0}
    # contiguous: a kernel that is transposed in memory is multiplied with different rounding
    numbers = {name: (t.float() if t.is_floating_point() else t).contiguous() for name, t in tensors.items()}
    module.load_state_dict({**numbers, **empty}, assign=True)
    module.requires_grad_(True)


def finite(where: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors; refuse NaN and infinite numbers."""
    # as fp32: a value that needs fp64 would be infinite in the model
    bad = [
        name
        for name, tensor in tensors.items()
        if not torch.isfinite(tensor.float() if tensor.dtype is torch.float64 else tensor).all()
    ]
    if bad:
        raise ModelError(
            f"{where}: {len(bad)} tensors hold NaN or infinite numbers ({some_sorted(bad)}); "
            "the file is damaged"
        )
    return tensors


def align(module: nn.Module) -> None:
    """Copy weights that a mapped file holds at addresses torch would not choose.

    How a matrix product rounds depends on where its factors lie in memory; at torch's own addresses, a loaded
    model gives the same answer as the saved one, to the last bit.
    """
    for parameter in module.parameters():
        if parameter.data_ptr() % ALIGNED:
            parameter.data = parameter.data.clone()


def fill_module(found: Identified, module: M, verify: bool = True) -> M:
    """Fill an empty module from a saccade folder; compare shapes and dtypes before reading any number."""
    assert found.model is not None
    where, expected = printable(found.path), state(module)
    shapes = {name: tuple(tensor.shape) for name, tensor in expected.items()}
    examine(where, shapes, {name: header.shape for name, header in found.headers.items()})
    check_dtypes(where, expected, found.headers)
    wanted = claimed(found.model, SINGLE) if verify else ""
    fill(module, finite(where, read_tensors(found.path, expected=found.headers, sha256=wanted)))
    return module


def _ours(found: Identified, verify: bool) -> Loaded:
    assert found.model is not None
    assert found.preprocess is not None
    where = printable(found.path)
    check_format(where, found.model)
    described = found.model.get("model")
    config: Known = from_json(described if isinstance(described, Mapping) else {}, KINDS)
    check_depth(config, len(found.headers))
    module = fill_module(found, blank(config), verify)
    try:
        preprocess = Preprocess.from_json(found.preprocess)
    except (ValueError, SaccadeError) as error:
        raise ModelError(f"{where}: {error}") from error
    return Loaded(module, preprocess, found.labels, task=found.task)


def layout_of(found: Identified) -> Layout[Any]:
    """Return the layout, recognised from the names of the tensors alone."""
    for layout in LAYOUTS.values():
        names = {layout.clean(name) for name in found.headers} - {None}
        if layout.recognise(name for name in names if name):
            return layout
    raise ModelError(
        f"{printable(found.path)} does not hold a known Vision Transformer (it has "
        f"{some_sorted(found.headers, 3)}); expected the tensors of one of saccade, {', '.join(LAYOUTS)}"
    )


def _theirs(found: Identified, image: tuple[int, int] | None) -> Loaded:
    layout, where = layout_of(found), printable(found.path)
    cleaned = {name: layout.clean(name) for name in found.headers}
    kept = {name: clean for name, clean in cleaned.items() if clean is not None}
    if len(set(kept.values())) < len(kept):
        raise ModelError(
            f"{where} holds the same weights twice under different prefixes; keep one set of them"
        )
    shapes = {clean: found.headers[name].shape for name, clean in kept.items()}
    config, rules = _config(where, layout, found.side, shapes, image)
    check_config(found.side, vit_of(config))
    module = blank(config)
    expected = save(rules, state(module))
    examine(where, {name: tuple(tensor.shape) for name, tensor in expected.items()}, shapes)
    check_dtypes(where, expected, {clean: found.headers[name] for name, clean in kept.items()})
    theirs = finite(where, read_tensors(found.path, names=list(kept), expected=found.headers))
    fill(module, renamed(rules, {kept[name]: tensor.float() for name, tensor in theirs.items()}))
    try:
        preprocess = layout.read_preprocess(found.side, config)
    except (ValueError, TypeError, KeyError, AttributeError, SaccadeError) as error:
        raise ModelError(f"{where}: the preprocessing described beside it cannot be used: {error}") from error
    unused = sorted(found.headers.keys() - kept.keys())
    return Loaded(module, preprocess, found.labels, layout.name, unused)


def _config(
    where: str,
    layout: Layout[Any],
    side: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    image: tuple[int, int] | None,
) -> tuple[Any, list[Rule]]:
    try:
        return layout.read_config(shapes, side, None)
    except ModelError:
        if image is None:
            raise
    except KeyError as error:
        raise ModelError(
            f"{where} looks like {layout.name}'s layout but has no tensor {error.args[0]!r}"
        ) from error
    except (ValueError, TypeError, IndexError, AttributeError) as error:
        raise ModelError(f"{where} describes a model that cannot work: {error}") from error
    return layout.read_config(shapes, side, image)  # a grid that is not square: the caller knows its size


def load(
    source: Path | Identified,
    image: tuple[int, int] | None = None,
    patch: int | None = None,
    verify: bool = True,
) -> Loaded:
    """Load an image model; `image` and `patch` resample it to other image and patch sizes.

    Args:
        source: What `identify` found, or a path to identify first.
        verify: Compare the weights with the digest in model.json, if there is one.
    """
    found = identify(source) if isinstance(source, Path) else source
    found.check_images()
    try:
        loaded = _ours(found, verify) if found.model is not None else _theirs(found, image)
        check_input(loaded.preprocess, loaded.module.config)
    except ResourceError:
        raise
    except (SaccadeError, ValueError, ArithmeticError) as error:
        raise refusal_at(printable(found.path), error) from error
    config = config_of(loaded.module)
    if (image or patch) and not isinstance(config, ResNetConfig):
        vit = loaded.module.config
        assert isinstance(vit, ViTConfig)
        check_tokens(image or vit.image, patch or vit.patch, _most_tokens(vit))
        loaded.module = resize(loaded.module, image, patch)
        loaded.preprocess = replace(loaded.preprocess, size=loaded.module.config.image)
    if loaded.labels and len(loaded.labels) != (classes := loaded.module.config.classes):
        raise ModelError(
            f"{printable(found.path)} has {len(loaded.labels)} labels for {classes} classes; "
            f"expected one label per class"
        )
    align(loaded.module)
    loaded.origin = found
    loaded.module.eval()
    return loaded
