"""Sentence pairs in files: two side by side, tab-separated columns, or JSON lines."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from saccade.errors import DataError, UsageError, did_you_mean
from saccade.text.lines import json_fields, lines
from saccade.wording import show_name, some

SIDES = {"source": "target", "src": "tgt", "input": "output"}

PAIR = re.compile(r"([A-Za-z0-9_]+)(?:-|->|→)([A-Za-z0-9_]+)")
CODES = (
    "aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv "
    "dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie "
    "ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv "
    "mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm "
    "rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts "
    "tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu "
)
"""ISO 639-1 codes: a first line of these names the columns, other short words are a pair."""


class SentencePair(NamedTuple):
    """A sentence and its translation."""

    line: int
    source: str
    target: str


@runtime_checkable
class Reader(Protocol):
    """A file, or two, of pairs; every pass reads it again."""

    @property
    def name(self) -> str:
        """For messages, safe to print."""

    @property
    def sides(self) -> tuple[str, str]:
        """The names of source and target."""

    def __iter__(self) -> Iterator[SentencePair]: ...


def languages(pair: str) -> tuple[str, str] | None:
    """Read "de-en", from German to English; return None for an empty text."""
    if not pair:
        return None
    match = PAIR.fullmatch(pair.strip())
    if match is None or match[1] == match[2]:
        raise UsageError(f"the pair is {pair!r}; expected two languages as from-to, for example de-en")
    return match[1], match[2]


def name_of(path: Path) -> str:
    """Return a file's name without its folder, for messages."""
    return show_name(path.name)


@dataclass(frozen=True, slots=True)
class TwoFiles:
    """Line i of one file is the translation of line i of the other."""

    paths: tuple[Path, Path]
    sides: tuple[str, str]

    @property
    def name(self) -> str:
        return " and ".join(map(name_of, self.paths))

    def __iter__(self) -> Iterator[SentencePair]:
        for one, other in zip_longest(*map(lines, self.paths)):
            if one is None or other is None:
                (number, _), short = one or other, self.paths[one is not None]
                long = self.paths[one is None]
                raise DataError(
                    f"{name_of(short)} ends after line {number - 1}, but {name_of(long)} has a line "
                    f"{number}; expected as many lines in both, each a translation; complete the shorter file"
                )
            yield SentencePair(one[0], one[1].strip(), other[1].strip())


@dataclass(frozen=True, slots=True)
class Tsv:
    """Tab-separated columns, without quotes."""

    path: Path
    columns: tuple[int, int]
    sides: tuple[str, str]
    header: int = 0
    """The line that names the columns; 0: none does."""

    @property
    def name(self) -> str:
        return name_of(self.path)

    def __iter__(self) -> Iterator[SentencePair]:
        least = max(self.columns) + 1
        for number, text in lines(self.path):
            if number == self.header:
                continue
            cells = text.split("\t")
            if len(cells) < least and text.strip():
                found = "1 column" if len(cells) == 1 else f"{len(cells)} columns"
                raise DataError(
                    f"line {number} of {self.name} has {found}; expected {least} or more, separated by tabs"
                )
            cells += [""] * (least - len(cells))
            yield SentencePair(number, *(cells[i].strip() for i in self.columns))


@dataclass(frozen=True, slots=True)
class Jsonl:
    """One object per line, with a field for each side, perhaps inside a field "translation"."""

    path: Path
    sides: tuple[str, str]

    @property
    def name(self) -> str:
        return name_of(self.path)

    def __iter__(self) -> Iterator[SentencePair]:
        for number, text in lines(self.path):
            if text.strip():
                found = json_fields(text, f"line {number} of {self.name}")
                yield SentencePair(number, *(self._side(found, side, number) for side in self.sides))

    def _side(self, found: Mapping[str, Any], side: str, number: int) -> str:
        if side not in found:
            raise DataError(
                f"line {number} of {self.name} has no field {side!r}; {describe_known(side, list(found))}"
            )
        if not isinstance(found[side], str):
            raise DataError(
                f"line {number} of {self.name} has {json.dumps(found[side])[:40]} in {side!r}; expected text"
            )
        return found[side].strip()


def describe_known(asked: str, known: Sequence[str]) -> str:
    """Return what was found instead, and what was probably meant."""
    return f"found {some(list(known)) or 'none'}{did_you_mean(asked, known)}"


def _first(path: Path) -> tuple[int, str]:
    return next(((number, text) for number, text in lines(path) if text.strip()), (0, ""))


def reader_of(path: Path, pair: str = "") -> Reader:
    """Return the reader of a file, chosen by its first line."""
    number, first = _first(path)
    if not first:
        raise DataError(f"{show_name(path)} is empty; expected sentence pairs")
    if first.lstrip().startswith("{"):
        return Jsonl(
            path, _sides(list(json_fields(first, f"line {number} of {name_of(path)}")), pair, name_of(path))
        )
    if "\t" not in first:
        raise DataError(
            f"line {number} of {name_of(path)} has no tab; expected a sentence, a tab and its translation, "
            "or JSON; for two files give the folder, or both as first.de,second.en"
        )
    cells = [cell.strip() for cell in first.split("\t")]
    if _names(cells, pair):
        sides = _sides(cells, pair, name_of(path))
        return Tsv(path, (cells.index(sides[0]), cells.index(sides[1])), sides, number)
    asked = languages(pair)
    if asked is None:
        return Tsv(path, (0, 1), ("source", "target"))
    numbers = [int(word) - 1 for word in asked if word.isdecimal() and len(word) < 10]
    if len(numbers) < 2:
        raise UsageError(
            f"{name_of(path)} does not name its columns, so the pair {pair} cannot be found; add a first "
            f"line {asked[0]}<tab>{asked[1]}, or give columns by number, such as 2-1"
        )
    if not all(0 <= number < len(cells) for number in numbers):
        raise UsageError(f"the pair is {pair}, but line {number} of {name_of(path)} has {len(cells)} columns")
    return Tsv(path, (numbers[0], numbers[1]), ("source", "target"))


def _names(cells: Sequence[str], pair: str) -> bool:
    """Return whether a first line names columns: those asked for, source and target, or ISO 639-1 codes."""
    asked = languages(pair)
    if asked is not None and set(asked) <= set(cells):
        return True
    known = {*SIDES, *SIDES.values(), *CODES.split()}
    named = [cell for cell in cells if re.split("[-_]", cell.lower())[0] in known]
    return len(named) >= 2 and len(named) == len(set(named)) == len(cells)


def _sides(found: Sequence[str], pair: str, where: str) -> tuple[str, str]:
    """Return the names of source and target among those found."""
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
                f"{where} has no {side!r}, which the pair {pair} asks for; {describe_known(side, found)}"
            )
    return asked
