"""Manifests: a CSV, TSV or JSONL file with a path and a label, or any other target, for each image."""

import csv
import hashlib
import io
import json
import math
import os
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from saccade.data.class_names import Classes, class_name, quote
from saccade.data.pictures import Files, Packing, Pictures, array_of
from saccade.data.readers.listing import SPLITS, TRAIN, WORDS, Listing, beside, collect, divide, numbers_of
from saccade.data.splits import Splits
from saccade.errors import DataError, check_handles
from saccade.wording import count, show_name, some

ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson")
PATHS = ("path", "file_name", "filename", "file", "image", "filepath", "image_path")
LABELS = ("label", "class", "target", "category")
NAMES = ("label_name", "class_name", "category_name", "label_text")
SPLIT = ("split", "subset", "partition")
GROUP = ("group", "group_id")
EXPECTED = "expected a column path (or file_name, image) and one label (or class, target, category)"


Row = tuple[int, Mapping[str, str], str]
"""A line number, the cells by their columns, and the column with the label or target."""
FindColumn = Callable[[str, list[str]], str]
"""Finds that column, given the file's name for messages and its columns."""


class _Values:
    """The distinct targets of a table, numbered as `Classes` numbers names."""

    def __init__(self, target: Callable[[str], Any]) -> None:
        self.target, self.names, self.values = target, dict[str, int](), list[Any]()

    def number(self, raw: str) -> int:
        if raw not in self.names:
            try:
                value = self.target(raw)
            except ValueError as error:
                raise ValueError("expected a number" if self.target in (int, float) else error) from None
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError("expected a finite number")
            self.names[raw] = len(self.values)
            self.values.append(value)
        return self.names[raw]

    def warnings(self) -> list[str]:
        return []


class _Manifest:
    """The rows of one or more manifests of a folder, without an object for each."""

    def __init__(self, folder: Path, source: str, known: "Classes | _Values", find: "FindColumn") -> None:
        self.folder, self.source, self.known, self.find = folder, source, known, find
        self.names, self.splits, self.lines = Packing(), array("b"), array("q")
        self.labels, self.groups = array("i"), array("q")
        self.words: dict[int, str] = {}
        self.grouped = False

    def add(self, path: Path, split: int) -> None:
        """Read one file; its split column overrides the split of the file."""
        where = show_name(path)
        prefix = os.path.relpath(path.parent, self.folder)
        for line, row, column in _rows(path, self.find):
            at = f"line {line} of {where}"
            file, label = _value(row, PATHS), row[column].strip()
            if not file or not label:
                lacks, empty = ("label", column) if file else ("file name", _column(row, PATHS))
                raise DataError(f"{at} has no {lacks}; expected one in the column {empty!r}")
            if "\0" in file:
                raise DataError(f"{at} has a file name with a zero byte in it; expected the path of an image")
            try:
                name = os.fsencode(file if prefix == "." else os.path.join(prefix, file))
            except UnicodeEncodeError:
                raise DataError(
                    f"{at} has a file name with a lone surrogate in it ({quote(file)}); expected the path of "
                    "an image; write the name as valid Unicode"
                ) from None
            self.names.append(name)
            try:
                number = self.known.number(label)
            except ValueError as error:
                raise DataError(f"{at} has {quote(label)} in the column {column!r}; {error}") from error
            self.labels.append(number)
            self.splits.append(self._split(row, split, at))
            self.lines.append(line)
            self._name(number, class_name(_value(row, NAMES)), at)
            group = _value(row, GROUP)
            self.grouped = self.grouped or bool(group)
            self.groups.append(_number(group or f"\0{file}"))

    def _split(self, row: Mapping[str, str], split: int, at: str) -> int:
        word = _value(row, SPLIT)
        if not word:
            return split
        if word.lower() not in SPLITS:
            raise DataError(f"{at} has the split {quote(word)}; expected one of {', '.join(SPLITS)}")
        return SPLITS[word.lower()]

    def _name(self, label: int, name: str, at: str) -> None:
        if name and self.words.setdefault(label, name) != name:
            word, before = list(self.known.names)[label][:80], quote(self.words[label])
            raise DataError(
                f"{at} calls the class {word} {quote(name)}; expected {before}, as in an earlier line"
            )

    def listing(self) -> Listing:
        source = self.source
        labels, splits = np.array(self.labels, np.int32), np.array(self.splits, np.int8)
        files = Files(str(self.folder), self.names.packed())
        warnings = self._repeated(files, labels, splits, source)
        lost = [row for row in range(len(files)) if files.size(row) < 0]
        if lost and len(lost) == len(files):
            raise DataError(
                f"none of the {count(len(lost), 'file')} in {source} exists (the first would be "
                f"{show_name(files.path(0), 200)}); expected paths relative to the manifest; "
                "correct them or move it"
            )
        if lost:
            gone = some([os.fsdecode(files.name(row)) for row in lost])
            warnings.append(f"{count(len(lost), 'file')} of {source} missing: {gone}")
        classes, places = self._classes(source)
        return Listing(
            source=source,
            kind="manifest",
            store=files,
            labels=labels if places is None else places[labels],
            names=list(self.known.names),
            splits=splits,
            groups=np.array(self.groups, np.int64) if self.grouped else None,
            classes=classes,
            warnings=(*warnings, *self.known.warnings()),
        )

    def _repeated(self, files: Files, labels: np.ndarray, splits: np.ndarray, source: str) -> list[str]:
        """Drop repeated files; refuse one under two labels, and return notes on those in two splits."""
        digests = b"".join(
            hashlib.blake2b(os.fsencode(os.path.normpath(files.path(row))), digest_size=8).digest()
            for row in range(len(files))
        )
        _, first, inverse = np.unique(np.frombuffer(digests, "<u8"), return_index=True, return_inverse=True)
        original = first[inverse]
        clash = np.flatnonzero(labels != labels[original])
        if len(clash):
            words, row, other = list(self.known.names), int(clash[0]), int(original[clash[0]])
            one, two = quote(words[labels[other]]), quote(words[labels[row]])
            raise DataError(
                f"{source} lists {show_name(os.fsdecode(files.name(row)), 200)} twice, as {one} "
                f"(line {self.lines[other]}) and as {two} (line {self.lines[row]}); "
                "expected one label; remove one of the lines"
            )
        warnings = []
        leaks = np.flatnonzero(splits != splits[original])
        if len(leaks):
            row = int(leaks[0])
            both = f"{WORDS[splits[original[row]]]} and {WORDS[splits[row]]}"
            name = show_name(os.fsdecode(files.name(row)), 200)
            warnings.append(f"{count(len(leaks), 'file')} of {source} in two splits: {name} in {both}")
        again = (original != np.arange(len(labels))) & (splits == splits[original])
        if again.any():
            warnings.append(
                f"{count(int(again.sum()), 'line')} of {source} left out: same file as an earlier line"
            )
            splits[again] = -1
        return warnings

    def _classes(self, source: str) -> tuple[tuple[str, ...], np.ndarray | None]:
        """Give numbered classes their words, from a column or from a list next to the manifest."""
        words = list(self.known.names)
        if isinstance(self.known, _Values):
            return (), None
        numbers = numbers_of(words)
        if numbers is None or not self.words:
            return beside(source, self.folder, words)
        order = np.argsort(numbers, kind="stable")
        places = np.empty(len(words), np.int32)
        places[order] = np.arange(len(words))
        return tuple(self.words.get(int(label), words[label]) for label in order), places


def _number(group: str) -> int:
    """Return a number that depends on the group alone, so that new lines do not change a split by groups."""
    digest = hashlib.blake2b(group.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _column(columns: Mapping[str, object], known: Sequence[str]) -> str:
    """Return the first of the known columns that is there."""
    return next((name for name in known if name in columns), "")


def _value(row: Mapping[str, str], known: Sequence[str]) -> str:
    return row.get(_column(row, known), "").strip()


def _rows(path: Path, find: FindColumn) -> Iterator[Row]:
    """Return the rows of a manifest, with the names of the columns in lower case."""
    try:
        if path.exists() and not path.is_file():  # reading a pipe would never end
            raise DataError(f"{show_name(path)} is not a regular file; expected a manifest")
        data = path.read_bytes()
    except OSError as error:
        check_handles(error)
        raise DataError(f"{show_name(path)} cannot be read: {error.strerror}; expected a manifest") from error
    try:
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):  # what a spreadsheet calls Unicode text
            text = data.decode("utf-16")
        else:  # a file name may hold bytes that are not UTF-8
            text = data.decode("utf-8-sig", "surrogateescape")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{show_name(path)} is not a text file; expected a manifest in UTF-8; save it again"
        ) from error
    stream = io.StringIO(text, newline="")
    read = _objects if path.suffix.lower() in ENDINGS[2:] else _cells
    return read(path, stream, find)


def _cells(path: Path, stream: io.StringIO, find: FindColumn) -> Iterator[Row]:
    where, head = show_name(path), stream.readline()
    stream.seek(0)
    reader = csv.reader(stream, delimiter=max("\t,;", key=head.count), strict=True)
    try:
        header = [column.strip().lower() for column in next(reader, [])]
        column = find(where, header)
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise DataError(
                    f"line {reader.line_num} of {where} has {count(len(row), 'column')}; expected "
                    f"{len(header)}, as in the first line; put text with commas in it into double quotes"
                )
            yield reader.line_num, dict(zip(header, row, strict=True)), column
    except csv.Error as error:
        raise DataError(f"line {reader.line_num} of {where} cannot be read as a table: {error}") from error


def _objects(path: Path, stream: io.StringIO, find: FindColumn) -> Iterator[Row]:
    where = show_name(path)
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"line {number} of {where} is not JSON: {error}; expected one object") from error
        if not isinstance(found, dict):
            raise DataError(
                f"line {number} of {where} is not a JSON object; expected one with path and label"
            )
        row = {
            name.lower(): str(value)
            for name, value in found.items()
            if isinstance(value, str | int | float) and not isinstance(value, bool)
        }
        yield number, row, find(f"line {number} of {where}", list(row))


def _label_column(where: str, columns: list[str]) -> str:
    there = dict.fromkeys(columns)
    return _check_columns(where, columns, _column(there, LABELS), EXPECTED)


def _target_column(where: str, columns: list[str]) -> str:
    """Return the column `target`, or the only one that is not known by its name."""
    others = [name for name in columns if name not in (*PATHS, *NAMES, *SPLIT, *GROUP)]
    found = "target" if "target" in columns else others[0] if len(others) == 1 else ""
    return _check_columns(
        where, columns, found, "expected a column path (or file_name, image) and one target"
    )


def _check_columns(where: str, columns: list[str], found: str, expected: str) -> str:
    if not found or not _column(dict.fromkeys(columns), PATHS):
        there = some(columns) if any(columns) else "nothing"
        raise DataError(f"{where} has the columns {there}; {expected}; name them in the first line")
    return found


def find(folder: Path) -> dict[Path, int]:
    """Return the manifests of a folder and their splits: metadata.csv, train/metadata.csv or train.csv."""
    for ending in ENDINGS:
        if (folder / f"metadata{ending}").is_file():
            return {folder / f"metadata{ending}": TRAIN}
    for pattern in ("{}/metadata{}", "{}{}"):
        paths = {
            folder / pattern.format(word, ending): split
            for word, split in SPLITS.items()
            for ending in ENDINGS
        }
        found = {path: split for path, split in paths.items() if path.is_file()}
        if TRAIN in found.values():
            return found
    return {}


def open_manifest(source: str | Path, *, least: int = 2) -> Splits[Pictures]:
    """Read a manifest, or the manifests of a folder, into a collection; images may be anywhere."""
    path = Path(source)
    files = find(path) if path.is_dir() else {path: TRAIN}
    if not files:
        raise DataError(
            f"{show_name(path)} has no manifest; expected metadata.csv, metadata.jsonl or train.csv"
        )
    folder = path if path.is_dir() else path.parent
    manifest = _Manifest(folder, show_name(path), Classes(show_name(path)), _label_column)
    for file, split in files.items():
        manifest.add(file, split)
    if not len(manifest.names):
        raise DataError(f"{show_name(path)} lists no images; {EXPECTED} and a line for each image")
    return collect(manifest.listing(), least=least)


def read_table(path: str | Path, target: Callable[[str], Any] = float) -> Splits[Pictures]:
    """Read a table of images with any target, in the column `target` or in the only unknown column.

    Args:
        target: Reads the text of a cell, and raises ValueError with what it expects.
    """
    path = Path(path)
    values = _Values(target)
    table = _Manifest(path.parent, show_name(path), values, _target_column)
    table.add(path, TRAIN)
    if not len(table.names):
        raise DataError(f"{show_name(path)} lists no images; expected a line for each image")
    listing = table.listing()
    if not (listing.splits == TRAIN).any():
        raise DataError(f"{show_name(path)} has no images to train on; expected some in the split train")
    return divide(replace(listing, kind="table"), array_of(values.values)[listing.labels])
