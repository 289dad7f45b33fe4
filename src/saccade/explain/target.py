"""Which class is to be explained, as a person says it."""

from collections.abc import Sequence
from difflib import get_close_matches

from saccade.errors import UsageError
from saccade.files.paths import shown

NEAR = 3
"""How many labels are offered for one that is not known."""


def class_index(target: str | int, labels: Sequence[str], classes: int) -> int:
    """The number of a class, from its label (capitals do not matter), its number, or its number as text."""
    if isinstance(target, int):
        if isinstance(target, bool) or not 0 <= target < classes:
            raise UsageError(f"the target is class {target}; expected a number from 0 to {classes - 1}")
        return target
    for fold in (str, str.casefold):
        found = [i for i, label in enumerate(labels) if fold(label) == fold(target)]
        if len(found) > 1:
            numbers = " and ".join(map(str, found))
            raise UsageError(f"{shown(target)!r} is the label of classes {numbers}; give one of the numbers")
        if found:
            return found[0]
    number = target.removeprefix("class ")
    if number.isdecimal():
        return class_index(int(number), labels, classes)
    raise UsageError(
        f"the target is {shown(target)!r}, which is no label of this model; {_hint(target, labels, classes)}"
    )


def _hint(target: str, labels: Sequence[str], classes: int) -> str:
    numbers = f"a number from 0 to {classes - 1}"
    if not labels:
        return f"its classes have no labels, so give {numbers}"
    near = nearest(target, labels)
    said = " or ".join(repr(shown(label, 60)) for label in near)
    return f"did you mean {said}?" if near else f"give one of its {classes:,} labels or {numbers}"


def nearest(target: str, labels: Sequence[str]) -> list[str]:
    """Labels that hold it as a word ("cat": "Egyptian cat"), then those that are spelt almost like it."""
    folded: dict[str, str] = {}
    for label in labels:
        folded.setdefault(label.casefold(), label)
    word = target.casefold().strip()
    alike = get_close_matches(word, folded, n=NEAR)
    holding = [fold for fold in folded if word and word in fold.replace(",", " ").split()]
    return [folded[fold] for fold in dict.fromkeys([*holding, *alike])][:NEAR]
