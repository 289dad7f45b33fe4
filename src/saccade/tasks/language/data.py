"""Plain text to learn a language from: files, plain or gzip, or JSONL with a field "text"; streamed."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from saccade.data.image.formats import shown
from saccade.data.readers.listing import TEST, TRAIN, VAL, nearest, some, split_of
from saccade.errors import DataError, check_number
from saccade.tasks.translate.pair_files import fields
from saccade.text.lines import LONGEST, lines

WIDEST = 10_000_000
"""Characters of a line of running text, which some books have none to part."""
ENDINGS = (".txt", ".text", ".md", ".jsonl", ".ndjson")


@dataclass(frozen=True, slots=True)
class Text:
    """The text of one split, a line at a time with its end, read from the files at each pass."""

    paths: tuple[Path, ...]
    characters: int
    digest: str
    """A hash of every character of its files."""
    first: int = 0
    """The lines from here to `last` count, numbered through all files from 0."""
    last: int | None = None

    def __iter__(self) -> Iterator[str]:
        number = 0
        for path in self.paths:
            for line in _told(path):
                if number >= self.first and (self.last is None or number < self.last):
                    yield line
                number += 1

    def __len__(self) -> int:
        return self.characters

    def fingerprint(self) -> str:
        """The same for the same text."""
        return hashlib.sha256(f"{self.digest} {self.first} {self.last}".encode()).hexdigest()


def _told(path: Path) -> Iterator[str]:
    """Lines of one file; of JSONL, the texts."""
    objects = None
    for number, line in lines(path, WIDEST):
        if objects is None and line.strip():
            objects = line.lstrip().startswith('{"')
        if not objects:
            yield line + "\n"
        elif line.strip():
            found = fields(line, f"line {number} of {shown(path.name)}").get("text")
            if not isinstance(found, str):
                raise DataError(
                    f'line {number} of {shown(path.name)} has no field "text"; expected one with the text'
                )
            yield found + "\n"


def scan(paths: tuple[Path, ...]) -> tuple[Text, tuple[str, ...]]:
    """Read all once: count, check and hash; also the notes worth telling."""
    total, count, notes = hashlib.sha256(), 0, list[str]()
    blank = True
    for path in paths:
        for number, line in enumerate(_told(path), 1):
            count += len(line)
            total.update(line.encode())
            blank = blank and not line.strip()
            if len(line) > LONGEST and not notes:
                notes.append(
                    f"line {number} of {shown(path.name)} has {len(line) - 1:,} characters; it is read as "
                    "running text"
                )
    if blank:
        raise DataError(
            f"{some([path.name for path in paths])} holds no words; expected a text to learn from"
        )
    return Text(paths, count, total.hexdigest()), tuple(notes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """Text in splits."""

    train: Text
    val: Text | None = None
    tests: dict[str, Text] = field(default_factory=dict)
    told: str
    warnings: tuple[str, ...] = ()

    @property
    def splits(self) -> dict[str, Text]:
        """The splits that are there, by name."""
        val = {} if self.val is None else {"val": self.val}
        return {"train": self.train, **val, **self.tests}


def open_text(data: str) -> Library:
    """Open a file, or a folder whose files may be named after splits."""
    path = Path(data)
    if not path.exists():
        raise DataError(f"there is no file or folder {shown(data)}; expected a text; {nearest(data)}")
    files = [path]
    if path.is_dir():
        files = [
            found
            for found in sorted(path.rglob("*"))
            if found.is_file() and found.name.removesuffix(".gz").endswith(ENDINGS)
        ]
    if not files:
        raise DataError(f"{shown(data)} holds no text; expected files such as train.txt or book.txt")
    splits = {file: split_of(file.name.removesuffix(".gz").rpartition(".")[0]) for file in files}
    if TRAIN not in splits.values():
        splits = dict.fromkeys(files, TRAIN)
    train, notes = scan(tuple(f for f, split in splits.items() if split in (TRAIN, None)))
    held, val = tuple(f for f, split in splits.items() if split == VAL), None
    if held:
        val, more = scan(held)
        notes += more
    tests = {f.name.partition(".")[0]: scan((f,))[0] for f, split in splits.items() if split == TEST}
    found = Library(train=train, val=val, tests=tests, told="", warnings=notes)
    parts = [f"{name} {part.characters:,}" for name, part in found.splits.items()]
    split = f" ({', '.join(parts)})" if len(parts) > 1 else ""
    count = sum(part.characters for part in found.splits.values())
    return replace(found, told=f"text: {count:,} characters{split}")


def hold_out(found: Library, fraction: float = 0.1) -> Library:
    """Return a library with text to validate on: its last lines, so that no context is seen in training."""
    check_number("the fraction to hold out", fraction, 0.001, 0.999)
    if found.val is not None:
        return found
    train, wanted = found.train, found.train.characters * (1 - fraction)
    learnt = rows = 0
    for line in train:
        if rows and (learnt + len(line) / 2 > wanted or learnt + len(line) == train.characters):
            break
        learnt, rows = learnt + len(line), rows + 1
    if learnt == train.characters:
        raise DataError(
            f"{shown(train.paths[0].name)} is a single line, so none can be held out; expected several; "
            "part it, or add val.txt"
        )
    told = f"{found.told}; the last {train.characters - learnt:,} held out to validate on"
    return replace(
        found,
        train=replace(train, characters=learnt, last=rows),
        val=replace(train, characters=train.characters - learnt, first=rows),
        told=told,
    )
