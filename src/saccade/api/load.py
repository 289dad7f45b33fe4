"""Load a model of any kind, or create an untrained one."""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from saccade.api.models import Model
from saccade.data.image.preprocess import Preprocess
from saccade.errors import UsageError, check_number, check_word
from saccade.models import names
from saccade.models.build import Vision, build
from saccade.processes import find_device
from saccade.tasks import task_of
from saccade.weights.identify import Identified, identify, locate
from saccade.weights.load import load as load_path
from saccade.wording import printable

if TYPE_CHECKING:  # training on images never loads them
    from saccade.api.text_models import TextModel
    from saccade.models.text.names import Text


@overload
def load(
    source: str | Path | Identified,
    *,
    image: int | tuple[int, int] | None = None,
    patch: int | None = None,
    preprocess: Preprocess | None = None,
    labels: Sequence[str] | None = None,
    device: str | torch.device = "auto",
    text: Literal[False] = False,
) -> Model: ...
@overload
def load(
    source: str | Path | Identified, *, device: str | torch.device = "auto", text: Literal[True]
) -> "TextModel": ...
def load(
    source: str | Path | Identified,
    *,
    image: int | tuple[int, int] | None = None,
    patch: int | None = None,
    preprocess: Preprocess | None = None,
    labels: Sequence[str] | None = None,
    device: str | torch.device = "auto",
    text: bool = False,
) -> "Model | TextModel":
    """Load a model folder, a .safetensors or .npz file, a timm or Hugging Face folder, or a hub id.

    Args:
        image: another image size; the positions are resampled.
        patch: another patch size; the kernel is resampled.
        preprocess, labels: replace those that are stored with the weights.
        device: auto (the accelerator if there is one, else the CPU), cpu, cuda, mps, ...
        text: tells a type checker to expect a text model.
    """
    if patch is not None:
        check_number("patch", patch, 1, 1024)
    where = find_device(str(device))
    found = source if isinstance(source, Identified) else identify(locate(source))
    if found.text or text:
        if any(given is not None for given in (image, patch, preprocess, labels)):
            raise UsageError(
                f"{printable(found.path)} is a text model; image, patch, preprocess and labels "
                "are for image models"
            )
        found.check_text()
        from saccade.api.text_models import TextModel

        text_model = task_of(found).load(found)
        text_model.module.to(where)
        return TextModel(text_model)
    task = task_of(found)
    loaded = load_path(found, _pair(image), patch)
    if labels is not None and len(labels) != loaded.module.config.classes:
        raise UsageError(
            f"{len(labels)} labels for {loaded.module.config.classes} classes; give one for each"
        )
    model = Model(loaded.module, preprocess or loaded.preprocess, labels or loaded.labels, task.name)
    model.layout, model.origin = loaded.layout, found
    model.folder = found.folder if (found.folder / "recipe.json").is_file() else None
    model.module.to(where)
    return model


def _pair(image: int | tuple[int, int] | None) -> tuple[int, int] | None:
    return (image, image) if isinstance(image, int) else image


@overload
def create(name: str, *, classes: int = 1000, **changes: object) -> Vision: ...
@overload
def create(name: str, *, vocabulary: int, **changes: object) -> "Text": ...
def create(name: str, *, classes: Any = 1000, vocabulary: Any = 0, **changes: object) -> "Vision | Text":
    """Return an untrained network by name (`saccade models` lists some); `changes` replace config fields.

    Args:
        classes, vocabulary: the number of outputs of an image model and of a text model.
    """
    config: Any
    if names.is_text(name):
        from saccade.models.text.names import text_config

        config = text_config(name, vocabulary or None)
    else:
        config = names.config(name, classes)
    for change in changes:
        check_word(f"a field of {name}", change, [field.name for field in fields(config)])
    if isinstance(side := changes.get("image"), int):
        changes["image"] = side, side
    try:
        made = replace(config, **changes)
        return build(made)
    except (TypeError, AttributeError) as error:
        found = ", ".join(f"{field}={value!r}" for field, value in changes.items())
        raise UsageError(f"cannot make {name} with {found}: {error}") from error
