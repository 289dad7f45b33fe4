"""Running text to train on: files, plain or gzip, or JSONL with a field "text"; streamed."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from saccade.data.readers.listing import TEST, TRAIN, VAL, nearest, split_of
from saccade.data.splits import Splits
from saccade.errors import DataError, check_number
from saccade.text.lines import LONGEST, json_fields, lines
from saccade.wording import show_name, some

WIDEST = 10_000_000
"""Most characters of a line of running text; some books have no line breaks at all."""
ENDINGS = (".txt", ".text", ".md", ".jsonl", ".ndjson")


@dataclass(frozen=True, slots=True)
class RunningText:
    """The text of one split, line by line with its line ends, read from the files at each pass."""

    paths: tuple[Path, ...]
    characters: int
    digest: str
    """A hash of every character of its files."""
    first: int = 0
    """The lines from here to `last` belong to this split, numbered across all files from 0."""
    last: int | None = None

    def __iter__(self) -> Iterator[str]:
        number = 0
        for path in self.paths:
            for line in _lines_of(path):
                if number >= self.first and (self.last is None or number < self.last):
                    yield line
                number += 1

    def __len__(self) -> int:
        return self.characters

    def split(self, share: float, seed: int) -> Splits["RunningText"]:
        """Hold out the last lines for validation, so that none of their context is seen in training."""
        check_number("the fraction to hold out", share, 0.001, 0.999)
        wanted = self.characters * (1 - share)
        learnt = rows = 0
        for line in self:
            if rows and (learnt + len(line) / 2 > wanted or learnt + len(line) == self.characters):
                break
            learnt, rows = learnt + len(line), rows + 1
        if learnt == self.characters:
            raise DataError(
                f"{show_name(self.paths[0].name)} is a single line, so nothing can be held out for "
                "validation; expected several; break it up, or add val.txt"
            )
        rest = self.characters - learnt
        return Splits(
            train=replace(self, characters=learnt, last=rows),
            val=replace(self, characters=rest, first=rows),
            summary=f"the last {rest:,} held out for validation",
        )

    def fingerprint(self) -> str:
        """Return the same for the same text."""
        return hashlib.sha256(f"{self.digest} {self.first} {self.last}".encode()).hexdigest()


def _lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of one file, or the texts of JSONL."""
    objects = None
    for number, line in lines(path, WIDEST):
        if objects is None and line.strip():
            objects = line.lstrip().startswith('{"')
        if not objects:
            yield line + "\n"
        elif line.strip():
            found = json_fields(line, f"line {number} of {show_name(path.name)}").get("text")
            if not isinstance(found, str):
                raise DataError(
                    f'line {number} of {show_name(path.name)} has no field "text"; expected one with the text'
                )
            yield found + "\n"


def scan(paths: tuple[Path, ...]) -> tuple[RunningText, tuple[str, ...]]:
    """Read all files once: count, check and hash; also return notes for the user."""
    total, count, notes = hashlib.sha256(), 0, list[str]()
    blank = True
    for path in paths:
        for number, line in enumerate(_lines_of(path), 1):
            count += len(line)
            total.update(line.encode())
            blank = blank and not line.strip()
            if len(line) > LONGEST and not notes:
                notes.append(
                    f"line {number} of {show_name(path.name)} has {len(line) - 1:,} characters; it is read "
                    "as running text"
                )
    if blank:
        raise DataError(f"{some([path.name for path in paths])} contains no text; expected words to train on")
    return RunningText(paths, count, total.hexdigest()), tuple(notes)


def open_text(data: str) -> Splits[RunningText]:
    """Open a text file, or a folder of them; files may be named after splits."""
    path = Path(data)
    if not path.exists():
        raise DataError(f"there is no file or folder {show_name(data)}; expected a text; {nearest(data)}")
    files = [path]
    if path.is_dir():
        files = [
            found
            for found in sorted(path.rglob("*"))
            if found.is_file() and found.name.removesuffix(".gz").endswith(ENDINGS)
        ]
    if not files:
        raise DataError(f"{show_name(data)} holds no text; expected files such as train.txt or book.txt")
    splits = {file: split_of(file.name.removesuffix(".gz").rpartition(".")[0]) for file in files}
    if TRAIN not in splits.values():
        splits = dict.fromkeys(files, TRAIN)
    train, notes = scan(tuple(f for f, split in splits.items() if split in (TRAIN, None)))
    held, val = tuple(f for f, split in splits.items() if split == VAL), None
    if held:
        val, more = scan(held)
        notes += more
    tests = {f.name.partition(".")[0]: scan((f,))[0] for f, split in splits.items() if split == TEST}
    found = Splits(train=train, val=val, tests=tests, summary="", warnings=notes)
    parts = [f"{name} {part.characters:,}" for name, part in found.by_name.items()]
    split = f" ({', '.join(parts)})" if len(parts) > 1 else ""
    count = sum(part.characters for part in found.by_name.values())
    return replace(found, summary=f"text: {count:,} characters{split}")
