"""Where sentence pairs lie: two files side by side, a TSV or JSONL file, or a folder with splits of these."""

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from glob import escape
from itertools import zip_longest
from pathlib import Path
from typing import Any

from saccade.data.collection import TEST, TRAIN, VAL, nearest, some, split_of
from saccade.data.lines import lines
from saccade.data.sentences import CODES, Corpus, Pair, Reader, corpus, languages, named
from saccade.data.source import shown
from saccade.errors import DataError, UsageError

SIDES = {"source": "target", "src": "tgt", "input": "output"}
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:[-_][A-Za-z]{2,4})?")
_FILE = re.compile(r"(?P<stem>.+?)\.(?P<end>[A-Za-z_-]+)(?:\.gz)?")
_ENDINGS = ("tsv", "txt", "jsonl", "ndjson", "json", "tab")


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
                f"line {number} of {self.name} has no field {side!r}; {_known(side, list(found))}"
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


def _known(asked: str, known: Sequence[str]) -> str:
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
                f"{where} has no {side!r}, which the pair {pair} asks for; {_known(side, found)}"
            )
    return asked


def _walk(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders.sort()
        yield from (Path(place, file) for file in sorted(files) if not file.startswith("."))


def _asked(pair: str, known: Sequence[str], where: str) -> tuple[str, str]:
    """The languages to translate from and to, of those found."""
    asked = languages(pair)
    if asked is None:
        if len(known) != 2:
            raise UsageError(
                f"{where} has the languages {', '.join(known)}; say which to translate, as from-to: "
                f"pair={known[0]}-{known[-1]}"
            )
        return known[0], known[1]
    for language in asked:
        if language not in known:
            raise UsageError(
                f"{where} has no language {language!r}, which the pair {pair} asks for; "
                f"{_known(language, known)}"
            )
    return asked


def _beside(files: Sequence[Path], pair: str, where: str) -> tuple[dict[str, Reader], tuple[str, ...]]:
    """The stems that two languages share: train.de and train.en; and notes on others."""
    stems: dict[tuple[Path, str], dict[str, Path]] = defaultdict(dict)
    for path in files:
        match = _FILE.fullmatch(path.name)
        if match and _LANGUAGE.fullmatch(match["end"]) and match["end"] not in _ENDINGS:
            stems[path.parent, match["stem"]][match["end"]] = path
    asked = _asked(pair, sorted({language for found in stems.values() for language in found}), where)
    made: dict[str, Reader] = {}
    whole = {place: found for place, found in stems.items() if set(asked) <= found.keys()}
    for (_, stem), found in whole.items():
        if stem in made:
            raise DataError(f"{where} has two sets of files {stem!r}; give the folder of one of them")
        made[stem] = Two((found[asked[0]], found[asked[1]]), asked)
    if not made:
        raise DataError(f"{where} has no file in both {asked[0]} and {asked[1]}; expected two of one name")
    lone = [stem for place, stem in stems.keys() - whole.keys()]
    return made, (f"only in one of the languages, so not used: {some(sorted(lone))}",) if lone else ()


def _folder(folder: Path, pair: str, bad: float, learns: bool) -> Corpus:
    files, where = list(_walk(folder)), shown(folder)
    ends = {path: match for path in files if (match := _FILE.fullmatch(path.name))}
    notes: tuple[str, ...] = ()
    made: dict[str, Reader]
    if any(_LANGUAGE.fullmatch(match["end"]) and match["end"] not in _ENDINGS for match in ends.values()):
        kind = "two files"
        made, notes = _beside(files, pair, where)
    else:
        stems = {path: match["stem"] for path, match in ends.items() if match["end"].lower() in _ENDINGS}
        parts = {path: stem for path, stem in stems.items() if split_of(stem) is not None} or stems
        if not parts:
            raise DataError(
                f"{where} holds no sentence pairs; expected train.de and train.en, train.tsv or train.jsonl"
            )
        made = {stem: reader_of(path, pair) for path, stem in parts.items()}
        kind = "jsonl" if isinstance(next(iter(made.values())), Jsonl) else "tsv"
    splits = {stem: TRAIN if (found := split_of(stem)) is None else found for stem in made}
    if TRAIN not in splits.values() and not learns:
        splits = dict.fromkeys(made, TRAIN)
    if TRAIN not in splits.values():
        raise DataError(f"{where} has pairs only in {some(list(splits))}; expected some named train as well")
    train, val = ([made[s] for s, split in splits.items() if split == wanted] for wanted in (TRAIN, VAL))
    tests = {stem: made[stem] for stem, split in splits.items() if split == TEST}
    opened = corpus(train, val, tests, kind, bad)
    return replace(opened, warnings=(*notes, *opened.warnings))


def open_pairs(data: str, pair: str = "", bad: float = 0.01, learns: bool = True) -> Corpus:
    """Open a folder, a file, two files with a comma between them, or what comes before .de and .en.

    Args:
        pair: From which language to which, as de-en; needed where there are more than two.
        bad: The share of pairs with an empty side that is borne.
        learns: Whether there must be pairs to learn from; else a folder of test pairs alone will do.
    """
    path = Path(data)
    if path.is_dir():
        return _folder(path, pair, bad, learns)
    if path.exists():
        reader = reader_of(path, pair)
        return corpus([reader], [], {}, "jsonl" if isinstance(reader, Jsonl) else "tsv", bad)
    if "," in data:
        paths = [Path(part.strip()) for part in data.split(",")]
        if len(paths) != 2:
            raise UsageError(f"{data} names {len(paths)} files; expected two, first.de,second.en")
        return corpus([Two((paths[0], paths[1]), _ends(paths, pair))], [], {}, "two files", bad)
    beside = [found for found in sorted(path.parent.glob(f"{escape(path.name)}.*")) if found.is_file()]
    if path.name and len(beside) > 1:
        made, notes = _beside(beside, pair, shown(data))
        return replace(corpus(list(made.values()), [], {}, "two files", bad), warnings=notes)
    raise DataError(f"there is no file or folder {shown(data)}; expected sentence pairs; {nearest(data)}")


def _ends(paths: Sequence[Path], pair: str) -> tuple[str, str]:
    """What two files hold, by their endings; a pair that is given must agree."""
    found = [match["end"] if (match := _FILE.fullmatch(path.name)) else "" for path in paths]
    sides = (found[0], found[1]) if all(map(_LANGUAGE.fullmatch, found)) else ("source", "target")
    asked = languages(pair)
    if asked is not None and sides != ("source", "target") and asked != sides:
        raise UsageError(f"the pair is {pair}, but the files are {'-'.join(sides)}; change one of them")
    return asked or sides
