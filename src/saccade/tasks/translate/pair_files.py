"""Sentence pairs in files: two side by side, columns parted by tabs, or JSON line by line."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import zip_longest
from pathlib import Path
from typing import Any

from saccade.data.image.formats import shown
from saccade.data.readers.listing import some
from saccade.errors import DataError, UsageError
from saccade.tasks.translate.data import CODES, Pair, Reader, languages, named
from saccade.text.lines import lines

SIDES = {"source": "target", "src": "tgt", "input": "output"}


@dataclass(frozen=True, slots=True)
class Two:
    """Line i of one file is the translation of line i of the other."""

    paths: tuple[Path, Path]
    sides: tuple[str, str]

    @property
    def name(self) -> str:
        return " and ".join(map(named, self.paths))

    def __iter__(self) -> Iterator[Pair]:
        for one, other in zip_longest(*map(lines, self.paths)):
            if one is None or other is None:
                (number, _), short = one or other, self.paths[one is not None]
                long = self.paths[one is None]
                raise DataError(
                    f"{named(short)} ends after line {number - 1}, but {named(long)} goes on with line "
                    f"{number}; expected as many lines in both, each a translation; complete the shorter file"
                )
            yield Pair(one[0], one[1].strip(), other[1].strip())


@dataclass(frozen=True, slots=True)
class Tsv:
    """Columns parted by tabs, without quotes."""

    path: Path
    columns: tuple[int, int]
    sides: tuple[str, str]
    header: int = 0
    """The line that names the columns; 0: none does."""

    @property
    def name(self) -> str:
        return named(self.path)

    def __iter__(self) -> Iterator[Pair]:
        least = max(self.columns) + 1
        for number, text in lines(self.path):
            if number == self.header:
                continue
            cells = text.split("\t")
            if len(cells) < least and text.strip():
                found = "1 column" if len(cells) == 1 else f"{len(cells)} columns"
                raise DataError(
                    f"line {number} of {self.name} has {found}; expected {least} or more, parted by tabs"
                )
            cells += [""] * (least - len(cells))
            yield Pair(number, *(cells[i].strip() for i in self.columns))


@dataclass(frozen=True, slots=True)
class Jsonl:
    """An object a line, with a field for each side; the two may lie in a field "translation"."""

    path: Path
    sides: tuple[str, str]

    @property
    def name(self) -> str:
        return named(self.path)

    def __iter__(self) -> Iterator[Pair]:
        for number, text in lines(self.path):
            if text.strip():
                found = fields(text, f"line {number} of {self.name}")
                yield Pair(number, *(self._side(found, side, number) for side in self.sides))

    def _side(self, found: Mapping[str, Any], side: str, number: int) -> str:
        if side not in found:
            raise DataError(
                f"line {number} of {self.name} has no field {side!r}; {known_ones(side, list(found))}"
            )
        if not isinstance(found[side], str):
            raise DataError(
                f"line {number} of {self.name} has {json.dumps(found[side])[:40]} in {side!r}; expected text"
            )
        return found[side].strip()


def fields(text: str, where: str) -> Mapping[str, Any]:
    """The object on a line; the two sides that lie deeper are brought up."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error).partition(":")[0]
        raise DataError(f"{where} is no JSON ({reason}); expected an object such as {{...}}") from None
    if not isinstance(found, dict):
        raise DataError(
            f"{where} is {text.strip()[:40]!r}; expected a JSON object with a field for each side"
        )
    if "\\ud" in text.lower():  # half of a letter of two, which JSON may hold and UTF-8 may not
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise DataError(f"{where} holds half a letter (\\ud800 to \\udfff); expected text") from None
    inner = found.get("translation")
    return inner if isinstance(inner, dict) else found


def known_ones(asked: str, known: Sequence[str]) -> str:
    """What was found in the place of what was asked for, and what was perhaps meant."""
    near = get_close_matches(asked, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"found {some(list(known)) or 'none'}{hint}"


def _first(path: Path) -> tuple[int, str]:
    return next(((number, text) for number, text in lines(path) if text.strip()), (0, ""))


def reader_of(path: Path, pair: str = "") -> Reader:
    """The reader of one file, by its first line."""
    number, first = _first(path)
    if not first:
        raise DataError(f"{shown(path)} is empty; expected sentence pairs")
    if first.lstrip().startswith("{"):
        return Jsonl(path, _sides(list(fields(first, f"line {number} of {named(path)}")), pair, named(path)))
    if "\t" not in first:
        raise DataError(
            f"line {number} of {named(path)} has no tab; expected a sentence and its translation with a tab "
            "between, or JSON; for two files give the folder, or both as first.de,second.en"
        )
    cells = [cell.strip() for cell in first.split("\t")]
    if _names(cells, pair):
        sides = _sides(cells, pair, named(path))
        return Tsv(path, (cells.index(sides[0]), cells.index(sides[1])), sides, number)
    asked = languages(pair)
    if asked is None:
        return Tsv(path, (0, 1), ("source", "target"))
    numbers = [int(word) - 1 for word in asked if word.isdecimal()]
    if len(numbers) < 2:
        raise UsageError(
            f"{named(path)} does not name its columns, so the pair {pair} cannot be found in it; add a first "
            f"line {asked[0]}<tab>{asked[1]}, or give columns by number, such as 2-1"
        )
    if not all(0 <= number < len(cells) for number in numbers):
        raise UsageError(f"the pair is {pair}, but line {number} of {named(path)} has {len(cells)} columns")
    return Tsv(path, (numbers[0], numbers[1]), ("source", "target"))


def _names(cells: Sequence[str], pair: str) -> bool:
    """Whether a first line names columns: those asked for, source and target, or languages by ISO 639-1."""
    asked = languages(pair)
    if asked is not None and set(asked) <= set(cells):
        return True
    known = {*SIDES, *SIDES.values(), *CODES.split()}
    named = [cell for cell in cells if re.split("[-_]", cell.lower())[0] in known]
    return len(named) >= 2 and len(named) == len(set(named)) == len(cells)


def _sides(found: Sequence[str], pair: str, where: str) -> tuple[str, str]:
    """The names of source and target among those found."""
    asked = languages(pair)
    if asked is None:
        usual = next(((a, b) for a, b in SIDES.items() if a in found and b in found), None)
        if usual is None and len(found) != 2:
            raise UsageError(
                f"{where} has the fields {some(list(found))}; say which to translate, as from-to: pair=de-en"
            )
        return usual or (found[0], found[1])
    for side in asked:
        if side not in found:
            raise UsageError(
                f"{where} has no {side!r}, which the pair {pair} asks for; {known_ones(side, found)}"
            )
    return asked
