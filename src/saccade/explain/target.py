"""What is explained: a class by name or index, its score, and the contract that every method follows.

Shapes: b batch; rows and columns of a map.
"""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import wraps
from typing import TypeAlias

from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from saccade.data.class_names import class_name
from saccade.errors import UsageError
from saccade.explain.replay import Grid, grid_of
from saccade.models.build import Vision
from saccade.models.modules import evaluating
from saccade.models.resnet import ResNet
from saccade.nn.patch import Image
from saccade.wording import printable

NEAR = 3
"""Labels to suggest for an unknown one."""

Target: TypeAlias = Int[Tensor, "b"]
Maps: TypeAlias = Float[Tensor, "b rows columns"]
MethodFunction: TypeAlias = Callable[[Vision, Image, Target], Maps]
"""An explanation method: one map per image, higher where there is more evidence for its target."""


def target_score(logits: Float[Tensor, "b classes"], target: Target) -> Float[Tensor, "b"]:
    """Return each target's logit: unlike a probability near 1, it does not saturate."""
    return rearrange(logits.gather(1, target[:, None]), "b 1 -> b")


def confidence(logits: Float[Tensor, "*b classes"]) -> Float[Tensor, "*b classes"]:
    """Return probabilities: softmax over classes; of a single output, such as a count, its sigmoid.

    The sigmoid turns differences of a single output into differences of log-odds, which is what the
    faithfulness meter compares.
    """
    return logits.sigmoid() if logits.shape[-1] == 1 else logits.softmax(-1)


def map_grid(module: Vision, image: Image) -> Grid:
    """Return rows and columns of a ViT's patches, or of a CNN's last feature map."""
    if not isinstance(module, ResNet):
        return grid_of(module, image)
    halvings = len(module.config.layers) - 1 + (0 if module.config.small else 2)
    rows, columns = (-(-side // 2**halvings) for side in image.shape[-2:])
    return rows, columns


def evaluation_mode(function: MethodFunction) -> MethodFunction:
    """Make a method safe to call from anywhere: the model is in evaluation mode, the maps have no graph."""

    @wraps(function)
    def explain(module: Vision, image: Image, target: Target) -> Maps:
        with evaluating(module, gradients=True):
            return function(module, image.detach().clone(), target.clone()).detach().float()

    return explain


def class_index(target: str | int, labels: Sequence[str], classes: int) -> int:
    """Return the index of a class from its label (case is ignored), its index, or its index as text."""
    if isinstance(target, int):
        if isinstance(target, bool) or not 0 <= target < classes:
            raise UsageError(f"the target is class {target}; expected a number from 0 to {classes - 1}")
        return target
    name = class_name(target)
    for fold in (str, str.casefold):
        found = [i for i, label in enumerate(labels) if fold(label) == fold(name)]
        if len(found) > 1:
            numbers = " and ".join(map(str, found))
            raise UsageError(
                f"{printable(target)!r} is the label of classes {numbers}; give one of the numbers"
            )
        if found:
            return found[0]
    number = target.removeprefix("class ")
    if number.isascii() and number.isdecimal() and len(number) < 10:
        return class_index(int(number), labels, classes)
    raise UsageError(
        f"the target is {printable(target)!r}, which is not a label of this model; "
        f"{_hint(target, labels, classes)}"
    )


def _hint(target: str, labels: Sequence[str], classes: int) -> str:
    numbers = f"a number from 0 to {classes - 1}"
    if not labels:
        return f"its classes have no labels, so give {numbers}"
    near = nearest(target, labels)
    said = " or ".join(repr(printable(label, 60)) for label in near)
    return f"did you mean {said}?" if near else f"give one of its {classes:,} labels or {numbers}"


def nearest(target: str, labels: Sequence[str]) -> list[str]:
    """Return labels that contain the target as a word ("cat": "Egyptian cat"), then similar spellings."""
    folded: dict[str, str] = {}
    for label in labels:
        folded.setdefault(label.casefold(), label)
    word = target.casefold().strip()
    alike = get_close_matches(word, folded, n=NEAR)
    holding = [fold for fold in folded if word and word in fold.replace(",", " ").split()]
    return [folded[fold] for fold in dict.fromkeys([*holding, *alike])][:NEAR]
