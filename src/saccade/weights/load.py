"""From a path to a model that can answer, whoever wrote it; from a model to a folder in anyone's layout."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from saccade.data.image.preprocess import Preprocess
from saccade.errors import ModelError, ResourceError, SaccadeError, UsageError, check_word
from saccade.files.paths import shown
from saccade.models.blank import blank
from saccade.models.build import Known, Vision, config_of, from_json, to_json
from saccade.models.looped import LoopConfig, vit_of
from saccade.models.resnet import ResNetConfig
from saccade.tokens.kinds import KINDS
from saccade.weights.claims import check_config, check_depth, check_input
from saccade.weights.formats import tensors as files
from saccade.weights.identify import LABELS, OURS, PREPROCESS, Found, look, printable
from saccade.weights.known_answer import probe
from saccade.weights.layouts import dynamicvit, google, hf, timm
from saccade.weights.layouts.rules import Layout, Rule, examine, save, some, state
from saccade.weights.layouts.rules import load as renamed
from saccade.weights.resize import resize

LAYOUTS: dict[str, Layout[Any]] = {
    layout.name: layout for layout in (google.LAYOUT, dynamicvit.LAYOUT, timm.LAYOUT, hf.LAYOUT)
}
"""The first that recognises a file reads it: DynamicViT's are timm's and more."""
FORMAT = 1


@dataclass(slots=True)
class Loaded:
    """A module in eval mode with all that it needs to answer."""

    module: Vision
    preprocess: Preprocess
    labels: list[str] = field(default_factory=list)
    layout: str = "saccade"
    unused: list[str] = field(default_factory=list)
    """Tensors of the file that the model does not need (a decoder, a mask token, an optimiser's state)."""


def load(path: Path, image: tuple[int, int] | None = None, patch: int | None = None) -> Loaded:
    """Load whatever lies at a path; `image` and `patch` resample it to other sizes of picture and patch."""
    found = look(path)
    found.check_pictures()
    try:
        loaded = _ours(found) if found.model is not None else _theirs(found, image)
        check_input(loaded.preprocess, loaded.module.config)
    except ResourceError:
        raise
    except (SaccadeError, ValueError, ArithmeticError) as error:
        where = shown(found.path)
        raise ModelError(str(error) if where in str(error) else f"{where}: {error}") from error
    config = config_of(loaded.module)
    if (image or patch) and not isinstance(config, ResNetConfig):
        loaded.module = resize(loaded.module, image, patch)
        vit = loaded.module.config
        loaded.preprocess = replace(loaded.preprocess, size=vit.image)
    if loaded.labels and len(loaded.labels) != loaded.module.config.classes:
        raise ModelError(
            f"{shown(path)} has {len(loaded.labels)} labels for {loaded.module.config.classes} classes; "
            f"expected one label a class"
        )
    loaded.module.eval()
    return loaded


def check_format(where: str, model: Mapping[str, Any]) -> None:
    """Refuse a model.json of another version."""
    if model.get("format") != FORMAT:
        raise ModelError(
            f"{where} is of format {model.get('format')!r}; this version reads {FORMAT}; "
            f"update saccade or save the model again"
        )


def _ours(found: Found) -> Loaded:
    assert found.model is not None
    assert found.preprocess is not None
    where = shown(found.path)
    check_format(where, found.model)
    if (task := found.model.get("task")) != "classify":
        raise ModelError(f"{where} is a model for the task {task!r}; this version knows classify")
    described = found.model.get("model")
    config = from_json(described if isinstance(described, Mapping) else {}, KINDS)
    check_depth(config, len(found.headers))
    module = blank(config)
    expected = {name: tuple(tensor.shape) for name, tensor in state(module).items()}
    examine(where, expected, {name: header.shape for name, header in found.headers.items()})
    fill(module, finite(where, files.tensors(found.path)))
    try:
        preprocess = Preprocess.from_json(found.preprocess)
    except (ValueError, SaccadeError) as error:
        raise ModelError(f"{where}: {error}") from error
    return Loaded(module, preprocess, found.labels)


def layout_of(found: Found) -> Layout[Any]:
    """Whose layout it is, recognised from the names of the tensors alone."""
    for layout in LAYOUTS.values():
        names = {layout.clean(name) for name in found.headers} - {None}
        if layout.recognise(name for name in names if name):
            return layout
    raise ModelError(
        f"{shown(found.path)} holds no Vision Transformer known here (it has {some(found.headers, 3)}); "
        f"expected the tensors of one of saccade, {', '.join(LAYOUTS)}"
    )


def _theirs(found: Found, image: tuple[int, int] | None) -> Loaded:
    layout, where = layout_of(found), shown(found.path)
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
    theirs = finite(where, files.tensors(found.path, names=list(kept)))
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


def fill(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give an empty module its numbers, in fp32."""
    empty = {name: torch.zeros(t.shape) for name, t in module.state_dict().items() if t.numel() == 0}
    # contiguous: a kernel that lies transposed in memory is multiplied with other roundings
    numbers = {name: (t.float() if t.is_floating_point() else t).contiguous() for name, t in tensors.items()}
    module.load_state_dict({**numbers, **empty}, assign=True)
    module.requires_grad_(True)


def finite(where: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors themselves, if every number of theirs is one."""
    bad = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
    if bad:
        raise ModelError(
            f"{where}: {len(bad)} tensors hold NaN or infinite numbers ({some(bad)}); it was damaged"
        )
    return tensors


def write(
    folder: Path, module: Vision, preprocess: Preprocess, labels: list[str], layout: str = "saccade"
) -> None:
    """Write a model as a folder; `layout` is saccade, timm, hf, dynamicvit or google (one .npz)."""
    check_word("layout", layout, ("saccade", *LAYOUTS))
    tensors = {name: tensor.detach().cpu() for name, tensor in state(module).items()}
    if layout != "saccade":
        _write_theirs(folder, LAYOUTS[layout], config_of(module), tensors, preprocess, labels)
        return
    folder.mkdir(parents=True, exist_ok=True)
    files.write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
    files.write_text(folder / PREPROCESS, _text(preprocess.to_json()))
    files.write_text(folder / LABELS, "".join(f"{printable(label)}\n" for label in labels))
    described = {"format": FORMAT, "task": "classify", "model": to_json(config_of(module))}
    files.write_text(folder / OURS, _text({**described, "probe": probe(module, preprocess)}))


def _write_theirs(
    folder: Path,
    layout: Layout[Any],
    config: Known,
    tensors: Mapping[str, Tensor],
    preprocess: Preprocess,
    labels: list[str],
) -> None:
    if isinstance(config, ResNetConfig):
        raise UsageError(f"a ResNet has no place in {layout.name}'s layout of ViTs; write it as saccade")
    if isinstance(config, LoopConfig) and layout is not dynamicvit.LAYOUT:
        raise UsageError(
            f"{layout.name}'s readers would run a {config.kind} model as a plain one; write it as saccade"
        )
    rules = layout.rules(config)
    side = layout.write_side(config, preprocess, labels)
    if left := {name for rule in rules for name in rule.ours} ^ tensors.keys():
        raise UsageError(
            f"{layout.name}'s layout has no place for a model like this one (it differs in {some(left)}); "
            f"write it as saccade"
        )
    theirs = {name: tensor.contiguous() for name, tensor in save(rules, tensors).items()}
    folder.mkdir(parents=True, exist_ok=True)
    if layout.name == "google":
        google.write_npz(folder / "model.npz", theirs)
    else:
        files.write_safetensors(folder / "model.safetensors", theirs, {"format": "pt"})
    for name, content in side.items():
        files.write_text(folder / name, _text(content))


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
