"""Strategies that turn a good file into thousands of bad ones."""

import json
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

NUMBERS = (0, 1, -1, 2, 255, 256, 65_535, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 10**30)
NASTY: tuple[Any, ...] = (
    None, True, False, *NUMBERS, 0.5, -0.0, 1e308, "", " ", "²", "0", "-1", "1e400", "../x", "/etc/passwd",
    "a\x00b", "a\x1b[31mb", "\u202e", "x" * 3000, "9" * 5000, [], {}, [[]], [None], {"": ""},
    [[[[[[[[[[0]]]]]]]]]],
)  # fmt: skip


@st.composite
def mutated_bytes(draw: DrawFn, seed: bytes, most: int = 4) -> bytes:
    """A few flips, cuts, insertions, repeats and overwritten numbers of a good file."""
    data = bytearray(seed)
    for _ in range(draw(st.integers(1, most))):
        place = draw(st.integers(0, max(len(data) - 1, 0)))
        kind = draw(st.sampled_from(("flip", "byte", "cut", "insert", "remove", "repeat", "number")))
        if kind == "flip" and data:
            data[place] ^= 1 << draw(st.integers(0, 7))
        elif kind == "byte" and data:
            data[place] = draw(st.integers(0, 255))
        elif kind == "cut":
            del data[place:]
        elif kind == "insert":
            data[place:place] = draw(st.binary(min_size=1, max_size=16))
        elif kind == "remove":
            del data[place : place + draw(st.integers(1, 64))]
        elif kind == "repeat":
            data[place:place] = data[place : place + draw(st.integers(1, 64))] * draw(st.integers(1, 50))
        elif kind == "number":
            size = draw(st.sampled_from((1, 2, 4, 8)))
            value = draw(st.sampled_from(NUMBERS)) % 256**size
            data[place : place + size] = value.to_bytes(size, draw(st.sampled_from(("little", "big"))))
    return bytes(data)


def _paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [here]
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        found += _paths(child, (*here, key))
    return found


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


@st.composite
def mutated_json(draw: DrawFn, seed: Any, most: int = 3) -> Any:
    """A good JSON value with some parts replaced, removed, added, nested or copied from another part."""
    value = deepcopy(seed)
    for _ in range(draw(st.integers(1, most))):
        paths = [path for path in _paths(value) if path]
        if not paths:
            return value
        path = draw(st.sampled_from(paths))
        parent, key = _at(value, path[:-1]), path[-1]
        kind = draw(st.sampled_from(("nasty", "nasty", "remove", "add", "nest", "copy")))
        nasty = deepcopy(draw(st.sampled_from(NASTY)))
        if kind == "nasty":
            parent[key] = nasty
        elif kind == "remove":
            del parent[key]
        elif kind == "nest":
            parent[key] = [parent[key]]
        elif kind == "copy":
            parent[key] = deepcopy(_at(value, draw(st.sampled_from(paths))))
        elif isinstance(parent, dict):
            parent[draw(st.sampled_from(("", "extra", "../x", "shape", "type", "\x1b", "__class__")))] = nasty
        else:
            parent.insert(key, nasty)
    return value


def mutated_json_bytes(seed: Any) -> SearchStrategy[bytes]:
    """The same as text, sometimes damaged as text too."""
    text = mutated_json(seed).map(lambda value: json.dumps(value).encode())
    return st.one_of(text, text, mutated_bytes(json.dumps(seed).encode()))
