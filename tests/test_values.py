"""Frozen dataclasses as JSON, and changed by name."""

import re
from dataclasses import dataclass, field

import pytest

from saccade.values import change, from_json, one_of, to_json, validate, within


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner:
    lr: float = 0.1
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer:
    seed: int = 0
    fast: bool = False
    word: str = "a"
    size: tuple[int, int] = (2, 3)
    optim: Inner = field(default_factory=Inner)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    sides: tuple[int, ...] = within(1, 9)
    lr: float = within(0, 1, default=0.5)
    kind: str = one_of("grey", "green", default="grey", name="colour")
    free: int = -1

    def __post_init__(self):
        validate(self, "look.")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lr": 2.0}, "look.lr is 2.0; expected a number from 0 to 1"),
        ({"lr": float("nan")}, "look.lr is nan; expected a number from 0 to 1"),
        ({"sides": (3, 10)}, "look.sides is 10; expected a number from 1 to 9"),
        ({"kind": "gren"}, "look.colour is 'gren', which is not known; did you mean 'green'?"),
    ],
)
def test_a_field_is_held_to_what_it_declares(changes, words):
    assert Checked(sides=(1, 9), free=-5).lr == 0.5
    with pytest.raises(ValueError, match=re.escape(words)):
        Checked(**{"sides": (), **changes})


def test_a_value_survives_json():
    value = Outer(seed=3, optim=Inner(lr=1.0, names=("x", "y")))
    assert from_json(Outer, to_json(value)) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed=4", Outer(seed=4)),
        ("fast=yes", Outer(fast=True)),
        ("optim.lr=3e-4", Outer(optim=Inner(lr=3e-4))),
        ("size=5,6", Outer(size=(5, 6))),
        ("word=b=c", Outer(word="b=c")),
    ],
)
def test_a_field_is_set_from_text(text, expected):
    name, _, value = text.partition("=")
    assert change(Outer(), name, value) == expected


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("sed", "1", "Outer has no field 'sed'; did you mean 'seed'"),
        ("optim.name", "1", "Inner has no field 'name'; did you mean 'names'"),
        ("seed", "1.5", r"seed is int \(now 0\), so it cannot become '1.5'"),
        ("fast", "maybe", r"fast is bool \(now False\), so it cannot become 'maybe'"),
        ("optim", "1", "optim is a group of fields; set one of optim.lr, optim.names"),
        ("seed.x", "1", "seed of Outer is 0 and has no field 'x'"),
    ],
)
def test_what_cannot_be_set_is_refused_in_words(name, text, words):
    with pytest.raises(ValueError, match=words):
        change(Outer(), name, text)
