"""Manifests: a CSV, TSV or JSONL file that names each picture and its class, relative to itself."""

import csv
import hashlib
import io
import json
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from saccade.data.image.formats import shown
from saccade.data.pictures import Files, Packing
from saccade.data.readers.listing import (
    SPLITS,
    TRAIN,
    WORDS,
    Collection,
    Listed,
    beside,
    class_name,
    collect,
    numbers_of,
    plural,
    some,
)  # fmt: skip
from saccade.errors import DataError

ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson")
PATHS = ("path", "file_name", "filename", "file", "image", "filepath", "image_path")
LABELS = ("label", "class", "target", "category")
NAMES = ("label_name", "class_name", "category_name", "label_text")
SPLIT = ("split", "subset", "partition")
GROUP = ("group", "group_id")
EXPECTED = "expected a column path (or file_name, image) and one label (or class, target, category)"


class _Manifest:
    """The rows of one or more manifests of a folder, without an object for each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names, self.splits, self.lines = Packing(), array("b"), array("q")
        self.labels, self.groups = array("i"), array("q")
        self.known: dict[str, int] = {}
        self.words: dict[int, str] = {}
        self.grouped = False

    def add(self, path: Path, split: int) -> None:
        """Read one file; a split column in it counts more than the file's own."""
        where = shown(path)
        prefix = os.path.relpath(path.parent, self.folder)
        for line, row in _rows(path):
            at = f"line {line} of {where}"
            file, label = _value(row, PATHS), _value(row, LABELS)
            if not file or not label:
                lacks, columns = ("file name", PATHS) if not file else ("label", LABELS)
                raise DataError(f"{at} has no {lacks}; expected one in the column {_column(row, columns)!r}")
            if "\0" in file:
                raise DataError(
                    f"{at} has a file name with a zero byte in it; expected the path of a picture"
                )
            self.names.append(os.fsencode(file if prefix == "." else os.path.join(prefix, file)))
            number = self.known.setdefault(class_name(label), len(self.known))
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
            raise DataError(f"{at} has the split {word!r}; expected one of {', '.join(SPLITS)}")
        return SPLITS[word.lower()]

    def _name(self, label: int, name: str, at: str) -> None:
        if name and self.words.setdefault(label, name) != name:
            label_word = next(word for word, number in self.known.items() if number == label)
            raise DataError(
                f"{at} calls the class {label_word} {name!r}; expected {self.words[label]!r}, as further up"
            )

    def listed(self, source: str) -> Listed:
        labels, splits = np.array(self.labels, np.int32), np.array(self.splits, np.int8)
        files = Files(str(self.folder), self.names.packed())
        warnings = self._repeated(files, labels, splits, source)
        lost = [row for row in range(len(files)) if files.size(row) < 0]
        if lost and len(lost) == len(files):
            raise DataError(
                f"not one of the {plural(len(lost), 'file')} of {source} is there (the first would be "
                f"{shown(files.path(0))}); expected paths relative to the manifest; correct them or move it"
            )
        if lost:
            gone = some([os.fsdecode(files.name(row)) for row in lost])
            warnings.append(f"{plural(len(lost), 'file')} of {source} not there: {gone}")
        classes, places = self._classes(source)
        return Listed(
            source=source,
            kind="manifest",
            store=files,
            labels=labels if places is None else places[labels],
            names=list(self.known),
            splits=splits,
            groups=np.array(self.groups, np.int64) if self.grouped else None,
            classes=classes,
            warnings=tuple(warnings),
        )

    def _repeated(self, files: Files, labels: np.ndarray, splits: np.ndarray, source: str) -> list[str]:
        """Leave repetitions out; the same file under two labels is refused, in two splits it is told."""
        digests = b"".join(
            hashlib.blake2b(os.fsencode(os.path.normpath(files.path(row))), digest_size=8).digest()
            for row in range(len(files))
        )
        _, first, inverse = np.unique(np.frombuffer(digests, "<u8"), return_index=True, return_inverse=True)
        original = first[inverse]
        clash = np.flatnonzero(labels != labels[original])
        if len(clash):
            words, row, other = list(self.known), int(clash[0]), int(original[clash[0]])
            raise DataError(
                f"{source} names {shown(os.fsdecode(files.name(row)))} twice, as {words[labels[other]]!r} "
                f"(line {self.lines[other]}) and as {words[labels[row]]!r} (line {self.lines[row]}); "
                "expected one label; remove one of the lines"
            )
        warnings = []
        leaks = np.flatnonzero(splits != splits[original])
        if len(leaks):
            row = int(leaks[0])
            both = f"{WORDS[splits[original[row]]]} and {WORDS[splits[row]]}"
            name = shown(os.fsdecode(files.name(row)))
            warnings.append(f"{plural(len(leaks), 'file')} of {source} in two splits: {name} in {both}")
        again = (original != np.arange(len(labels))) & (splits == splits[original])
        if again.any():
            warnings.append(f"{plural(int(again.sum()), 'line')} of {source} left out: the same file again")
            splits[again] = -1
        return warnings

    def _classes(self, source: str) -> tuple[tuple[str, ...], np.ndarray | None]:
        """Give numbered classes their words, from a column or from a list beside the manifest."""
        words = list(self.known)
        numbers = numbers_of(words)
        if numbers is None or not self.words:
            return beside(source, self.folder, words)
        order = np.argsort(numbers, kind="stable")
        places = np.empty(len(words), np.int32)
        places[order] = np.arange(len(words))
        return tuple(self.words.get(int(label), words[label]) for label in order), places


def _number(group: str) -> int:
    """Return a number that depends on the group alone, so that a split by groups outlives new lines."""
    digest = hashlib.blake2b(group.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _column(columns: Mapping[str, object], known: Sequence[str]) -> str:
    """Return the first of the known columns that is there."""
    return next((name for name in known if name in columns), "")


def _value(row: Mapping[str, str], known: Sequence[str]) -> str:
    return row.get(_column(row, known), "").strip()


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield line numbers and rows as {column: text}, with the columns in lower case."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{shown(path)} cannot be read: {error.strerror}; expected a manifest") from error
    try:
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):  # what a spreadsheet calls Unicode text
            text = data.decode("utf-16")
        else:  # a file name may hold bytes that are no UTF-8
            text = data.decode("utf-8-sig", "surrogateescape")
    except UnicodeDecodeError as error:
        raise DataError(f"{shown(path)} is no text; expected a manifest in UTF-8; save it again") from error
    stream = io.StringIO(text, newline="")
    return _objects(path, stream) if path.suffix.lower() in ENDINGS[2:] else _cells(path, stream)


def _cells(path: Path, stream: io.StringIO) -> Iterator[tuple[int, Mapping[str, str]]]:
    where, head = shown(path), stream.readline()
    stream.seek(0)
    reader = csv.reader(stream, delimiter=max("\t,;", key=head.count), strict=True)
    try:
        header = [column.strip().lower() for column in next(reader, [])]
        _check_columns(where, header)
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise DataError(
                    f"line {reader.line_num} of {where} has {plural(len(row), 'column')}; expected "
                    f"{len(header)}, as in the first line; put text with commas in it into double quotes"
                )
            yield reader.line_num, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise DataError(f"line {reader.line_num} of {where} cannot be read as a table: {error}") from error


def _objects(path: Path, stream: io.StringIO) -> Iterator[tuple[int, Mapping[str, str]]]:
    where = shown(path)
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"line {number} of {where} is not JSON: {error}; expected one object") from error
        if not isinstance(found, dict):
            raise DataError(f"line {number} of {where} is no JSON object; expected one with path and label")
        row = {
            name.lower(): str(value)
            for name, value in found.items()
            if isinstance(value, str | int | float) and not isinstance(value, bool)
        }
        _check_columns(f"line {number} of {where}", list(row))
        yield number, row


def _check_columns(where: str, columns: list[str]) -> None:
    for known in (PATHS, LABELS):
        if not _column(dict.fromkeys(columns), known):
            there = some(columns) if any(columns) else "nothing"
            raise DataError(f"{where} has the columns {there}; {EXPECTED}; name them in the first line")


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


def open_manifest(source: str | Path, *, least: int = 2) -> Collection:
    """Read a manifest, or the manifests of a folder, into a collection; pictures may lie anywhere."""
    path = Path(source)
    files = find(path) if path.is_dir() else {path: TRAIN}
    if not files:
        raise DataError(
            f"{shown(path)} holds no manifest; expected metadata.csv, metadata.jsonl or train.csv"
        )
    manifest = _Manifest(path if path.is_dir() else path.parent)
    for file, split in files.items():
        manifest.add(file, split)
    if not len(manifest.names):
        raise DataError(f"{shown(path)} names no picture at all; {EXPECTED} and a line for each picture")
    return collect(manifest.listed(shown(path)), least=least)
