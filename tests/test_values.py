"""Frozen dataclasses as JSON, and changed by name."""

from dataclasses import dataclass, field

import pytest

from saccade.values import change, from_json, to_json


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
