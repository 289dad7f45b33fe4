"""JSON files: read strictly and within limits, as they are untrusted; written whole or not at all."""

import json
import math
import re
from pathlib import Path
from typing import Any

from saccade.files.atomic import write_text
from saccade.files.paths import Flaw, open_file, refusal
from saccade.wording import printable

LIMIT = 10_000_000
DEPTH = 100
CONTAINERS = 1_000_000
VALUES = 4_000_000
REMEDY = "repair the file or download it again"
# The possessive star and the optional last quote keep this linear on strings that never end.
STRINGS = re.compile(rb'"(?:[^"\\]+|\\.)*+"?', re.DOTALL)
NO_MARKS = bytes(set(range(256)) - set(b"[]{},"))


def read_json(path: Path, limit: int = LIMIT) -> dict[str, Any]:
    """Read one JSON object from a file; everything else is a ModelError that says why."""
    with open_file(path) as file:
        data = file.read(limit + 1)
    try:
        if len(data) > limit:
            raise Flaw(f"is larger than the {limit:,} bytes that a JSON file may have here", REMEDY)
        return parse_json(data)
    except Flaw as flaw:
        raise refusal(path, flaw) from flaw


def write_json(
    path: Path,
    content: object,
    *,
    indent: int | None = 2,
    escape: bool = False,
    finite: bool = False,
    end: str = "\n",
) -> None:
    """Write a JSON file so that a reader finds the old one or the new one, never half of either.

    Args:
        escape: Write characters beyond ASCII as escapes.
        finite: Raise a ValueError for NaN and infinite numbers, which JSON does not have.
    """
    write_text(path, json.dumps(content, indent=indent, ensure_ascii=escape, allow_nan=not finite) + end)


def parse_json(data: bytes) -> dict[str, Any]:
    """Parse one JSON object strictly: UTF-8, no repeated keys, finite numbers, at most `DEPTH` levels."""
    _check_size(data)
    try:
        text = data.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)
    except UnicodeDecodeError as error:
        raise Flaw(f"has a byte at {error.start:,} that is not UTF-8; expected JSON text", REMEDY) from None
    except RecursionError:
        raise Flaw(f"is JSON nested deeper than the {DEPTH} levels expected", REMEDY) from None
    except ValueError as error:  # JSONDecodeError, and integers of more than 4,300 digits
        raise Flaw(f"is not readable JSON ({printable(error)})", REMEDY) from None
    if not isinstance(value, dict):
        raise Flaw(f"holds a JSON {type(value).__name__}; expected an object", REMEDY)
    if "\\ud" in text.lower():
        _check_surrogates(value)
    return value


def marks(data: bytes) -> bytes:
    """Return the brackets, braces and commas of JSON outside its strings: how much a parser would build."""
    return STRINGS.sub(b"", data).translate(None, NO_MARKS)


def _check_size(data: bytes) -> None:
    found = marks(data)  # before parsing, because a parser would already have spent the memory
    if found.count(b",") > VALUES:
        raise Flaw(f"is JSON with more than {VALUES:,} values", REMEDY)
    brackets = found.translate(None, b",")
    if len(brackets) > 2 * CONTAINERS:
        raise Flaw(f"is JSON with more than the {CONTAINERS:,} lists and objects expected", REMEDY)
    depth = 0
    for bracket in brackets:
        depth += 1 if bracket in b"[{" else -1
        if depth > DEPTH:
            raise Flaw(f"is JSON nested deeper than the {DEPTH} levels expected", REMEDY)


def _check_surrogates(value: dict[str, Any]) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Flaw("is JSON with half a character (a lone surrogate); expected text", REMEDY) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise Flaw(f"is JSON with the key '{printable(twice)}' twice", REMEDY)
    return made


def _constant(text: str) -> float:
    raise Flaw(f"is JSON with the number {text}; expected finite numbers", REMEDY)


def _float(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _constant(printable(text, 20))
