"""A class as a person says it, or a sentence that helps to say it."""

import pytest

from saccade.errors import UsageError
from saccade.explain.target import class_index

NAMES = ["cat", "dog", "bird", "fish", "horse"]


@pytest.mark.parametrize("target", ["bird", "Bird", "BIRD", 2, "2", "class 2"])
def test_a_label_or_a_number(target: str | int) -> None:
    assert class_index(target, NAMES, 5) == 2


def test_a_label_comes_before_a_number_and_the_exact_one_before_another() -> None:
    assert class_index("1", ["3", "2", "1"], 3) == 2
    assert class_index("Crane", ["crane", "Crane"], 2) == 1
    assert class_index("class 1", [], 3) == 1


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("brid", "the target is 'brid', which is not a label of this model; did you mean 'bird'"),
        ("xyz", "which is not a label of this model; give one of its 5 labels or a number from 0 to 4"),
        ("", "the target is '', which is not a label of this model; give one of its 5 labels"),
        ("a\nb", "the target is 'a.*nb', which is not a label"),
        ("-1", "the target is '-1', which is not a label"),
        (5, "the target is class 5; expected a number from 0 to 4"),
        (-1, "the target is class -1; expected a number from 0 to 4"),
        ("7", "the target is class 7; expected"),
        (True, "the target is class True; expected"),
    ],
)
def test_a_class_that_does_not_exist_is_told_in_words(target: str | int, told: str) -> None:
    with pytest.raises(UsageError, match=told) as error:
        class_index(target, NAMES, 5)
    assert "\n" not in str(error.value)


def test_a_label_of_two_classes_is_told_in_words() -> None:
    with pytest.raises(UsageError, match="'crane' is the label of classes 0 and 2; give one of the numbers"):
        class_index("crane", ["crane", "dog", "crane"], 3)


def test_labels_that_hold_the_word_are_offered_first() -> None:
    labels = ["cab", "tabby, tabby cat", "siamese cat", "cattle"]
    with pytest.raises(UsageError, match="did you mean 'tabby, tabby cat' or 'siamese cat' or 'cattle'"):
        class_index("cat", labels, 4)


def test_a_model_without_labels_wants_a_number() -> None:
    with pytest.raises(UsageError, match="its classes have no labels, so give a number from 0 to 4"):
        class_index("cat", [], 5)
