"""Convert a checkpoint of any layout to a model folder, or to another layout; fetch models from the hub."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from saccade.api.inputs import Say, check_free, identify_model
from saccade.errors import SaccadeError, UsageError, check_number, check_word
from saccade.weights.identify import locate
from saccade.wording import printable

if TYPE_CHECKING:
    from saccade.api.models import Model
    from saccade.api.text_models import TextModel

LAYOUTS = ("saccade", "timm", "hf", "google")
Triple = tuple[float, float, float]


def convert(
    source: str,
    out: Path,
    say: Say,
    to: str = "saccade",
    image: tuple[int, int] | None = None,
    patch: int | None = None,
    labels: Sequence[str] | None = None,
    normalise: tuple[Triple, Triple] | None = None,
) -> "Model | TextModel":
    """Write a checkpoint as a model folder in the layout `to`; return the model.

    Args:
        image, patch: Sizes to resample the positions and the kernel to.
        normalise: Mean and standard deviation of each channel.
    """
    check_word("layout", to, LAYOUTS)
    if patch is not None:
        check_number("patch", patch, 1, 1024)
    check_free(out)
    given = locate(source)
    with TemporaryDirectory() as scratch:
        path = _without_pickle(given, Path(scratch), say)
        try:
            found = identify_model(path, "weights")
            if found.text and any(value is not None for value in (normalise, labels, image, patch)):
                raise UsageError(
                    f"{printable(given)} is a text model; --image, --patch, --labels and --normalise are for "
                    "image models; leave them out"
                )
            from saccade.api.load import load
            from saccade.api.models import Model

            model = (
                load(found, device="cpu", text=True)
                if found.text
                else load(found, image=image, patch=patch, labels=labels, device="cpu")
            )
        except SaccadeError as error:  # name the user's checkpoint, not our copy of it
            raise type(error)(str(error).replace(str(path), printable(given))) from error
        if normalise is not None and isinstance(model, Model):
            model.preprocess = replace(model.preprocess, mean=normalise[0], std=normalise[1])
        model.save(out, to)
    return model


def _without_pickle(path: Path, scratch: Path, say: Say) -> Path:
    """Return the path itself, or for a pickle a folder with the tensors that a restricted process read."""
    from saccade.weights.formats.tensors import PICKLES, kind
    from saccade.weights.identify import THEIRS, TOKENIZER_FILES, weights_in

    weights = weights_in(path)
    if kind(weights) not in PICKLES:
        return path
    from saccade.weights.formats.pickle.convert import unpickle

    report = unpickle(weights, scratch / "model.safetensors")
    for name in (*THEIRS, *TOKENIZER_FILES):
        if (weights.parent / name).exists():
            (scratch / name).symlink_to((weights.parent / name).absolute())
    dropped = f", left out {len(report.dropped)} other entries" if report.dropped else ""
    say(f"{weights.name}: took {report.tensors} tensors of {report.chosen!r}{dropped}")
    return scratch


def pull(name: str, revision: str | None = None, out: Path | None = None) -> Path:
    """Fetch a model from the hub into the cache and check it; return its folder, or `out` with a copy."""
    from saccade.hub.fetch import fetch
    from saccade.weights.pretrained import PRETRAINED, suggest_pretrained

    check_free(out)
    if name not in PRETRAINED and (hint := suggest_pretrained(name)):
        raise UsageError(
            f"no pretrained weights are named {name!r}{hint} (see `saccade models --pretrained`)"
        )
    hub = PRETRAINED[name].hub if name in PRETRAINED else name
    folder = fetch(hub, revision=revision)
    identify_model(folder, "weights")
    if out is None:
        return folder
    from saccade.api.load import load

    return load(folder, device="cpu").save(out)
