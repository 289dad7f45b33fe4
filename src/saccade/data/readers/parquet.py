"""Parquet files with a column of encoded pictures and one of labels, as the Hugging Face hub writes them."""

import json
import os
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from saccade.data.image.formats import BYTES, shown
from saccade.data.readers.listing import Collection, Listed, beside, class_name, collect, plural, splits_of
from saccade.data.readers.shards import find
from saccade.errors import DataError, UsageError

IMAGES = ("image", "img", "picture", "jpg", "png")
LABELS = ("label", "labels", "class", "target", "category", "fine_label")
KEPT = 256_000_000
"""Bytes of decoded row groups that one process keeps: shuffled reading touches a group again and again."""


def _pyarrow() -> ModuleType:
    try:
        return import_module("pyarrow.parquet")
    except ImportError as error:
        raise UsageError(
            "reading Parquet needs pyarrow, which is not installed; pip install 'saccade[shards]'"
        ) from error


@contextmanager
def _told(path: str) -> Iterator[None]:
    """Turn whatever pyarrow raises into a sentence."""
    try:
        yield
    except DataError:
        raise
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())[:200]
        raise DataError(f"{shown(path)} cannot be read: {reason}; expected a Parquet file") from error
    except Exception as error:  # a parser of foreign bytes may raise anything: it all means the same
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{shown(path)} is damaged ({reason}); expected a Parquet file; copy it again"
        ) from error


class Parquet:
    """Pictures in rows of Parquet files; a row group is decoded as a whole and kept while there is room."""

    def __init__(self, paths: list[str], column: str, rows: np.ndarray, groups: list[np.ndarray]) -> None:
        self.paths, self.column = [os.path.abspath(path) for path in paths], column
        self.starts = np.concatenate([[0], np.cumsum(rows)])
        self.groups = groups
        self.sizes = [os.path.getsize(path) for path in paths]
        self._kept: dict[tuple[int, int], Any] = {}
        self._room = KEPT

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": {}, "_room": KEPT}

    def __len__(self) -> int:
        return int(self.starts[-1])

    def _place(self, row: int) -> tuple[int, int]:
        file = int(np.searchsorted(self.starts, row, side="right")) - 1
        return file, row - int(self.starts[file])

    def name(self, row: int) -> bytes:
        file, place = self._place(row)
        return os.fsencode(os.path.basename(self.paths[file])) + b"/%d" % place

    def read(self, row: int) -> bytes:
        file, place = self._place(row)
        path = self.paths[file]
        group = int(np.searchsorted(self.groups[file], place, side="right")) - 1
        with _told(path):
            found = self._group(file, group)[place - int(self.groups[file][group])].as_py()
        what = f"row {place} of {shown(path)}"
        data = found.get("bytes") if isinstance(found, dict) else found
        if data is None:
            raise DataError(
                f"{what} holds no bytes of a picture; expected the encoded file; leave the row out"
            )
        if len(data) > BYTES:
            raise DataError(f"{what} has {len(data) / 1e6:,.0f} MB; at most {BYTES / 1e6:,.0f} MB are read")
        return data

    def _group(self, file: int, group: int) -> Any:
        kept = self._kept
        if (file, group) not in kept:
            # without threads: a pool of them does not survive the fork of a worker
            table = (
                _pyarrow()
                .ParquetFile(self.paths[file])
                .read_row_group(group, columns=[self.column], use_threads=False)
            )
            if table.nbytes > self._room:
                kept, self._room = {}, KEPT
            kept[file, group] = table.column(0)
            self._room -= table.nbytes
            self._kept = kept
        return kept[file, group]

    def size(self, row: int) -> int:
        """The size of the whole file: that of one picture is known only after decoding its group."""
        return self.sizes[self._place(row)[0]]


def open_parquet(source: str | Path, *, least: int = 2) -> Collection:
    """Read the labels of Parquet files into a collection: one file, a folder of them, a glob or a pattern."""
    parquet, paths, where = _pyarrow(), find(source, ".parquet"), shown(source)
    labels, splits, known = array("i"), array("b"), dict[str, int]()
    rows, groups, columns, given, missing = [], [], set(), set(), 0
    for path, split in zip(paths, splits_of(paths), strict=True):
        with _told(path):
            file = parquet.ParquetFile(path)
            image, label = _columns(path, file.schema_arrow)
            counts = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
            words = file.read(columns=[label], use_threads=False).column(0).to_pylist()
            columns.add(image)
            given.add(_class_names(file.schema_arrow, label))
        rows.append(len(words))
        groups.append(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))
        for word in words:
            text = "" if word is None or word == -1 else class_name(str(word).strip())
            missing += not text
            labels.append(known.setdefault(text, len(known)) if text else 0)
            splits.append(split if text else -1)
    if len(columns) > 1 or len(given) > 1:
        raise DataError(
            f"the files of {where} differ in their columns or class names; expected the same in all"
        )
    if not known:
        raise DataError(f"{where} holds no row with a label; expected numbers or words in the label's column")
    warnings = [f"{plural(missing, 'row')} of {where} without a label left out"] if missing else []
    classes, places = _in_words(where, given.pop(), known, Path(paths[0]).parent)
    numbers = np.array(labels, np.int32)
    return collect(
        Listed(
            source=where,
            kind=f"Parquet, {plural(len(paths), 'file')}",
            store=Parquet(paths, columns.pop(), np.array(rows, np.int64), groups),
            labels=numbers if places is None else places[numbers],
            names=list(known),
            splits=np.array(splits, np.int8),
            classes=classes,
            warnings=tuple(warnings),
        ),
        least=least,
    )


def _columns(path: str, schema: Any) -> tuple[str, str]:
    """Return the columns of pictures and labels."""
    types = {name.lower(): (name, schema.field(name).type) for name in schema.names}
    found = next((types[word][0] for word in IMAGES if word in types and _holds_bytes(types[word][1])), None)
    label = next((types[word][0] for word in LABELS if word in types), None)
    if found is None or label is None:
        there = ", ".join(f"{shown(name)} ({kind})" for name, kind in types.values())
        raise DataError(
            f"{shown(path)} has the columns {there[:300]}; expected image (encoded bytes, or a struct with "
            "them) and label; rename them"
        )
    return found, label


def _holds_bytes(kind: Any) -> bool:
    fields = [kind.field(i) for i in range(kind.num_fields)]
    if fields:
        return any(field.name == "bytes" and str(field.type).endswith("binary") for field in fields)
    return str(kind).endswith("binary")


def _class_names(schema: Any, label: str) -> tuple[str, ...]:
    """Return the names that Hugging Face's ClassLabel keeps in the metadata of the file."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = features[label]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return ()
    return tuple(class_name(str(name)) for name in names) if isinstance(names, list) else ()


def _in_words(
    where: str, given: tuple[str, ...], known: dict[str, int], folder: Path
) -> tuple[tuple[str, ...], np.ndarray | None]:
    if not given:
        return beside(where, folder, list(known))
    if not all(word.isdigit() and int(word) < len(given) for word in known):
        odd = next(word for word in known if not word.isdigit() or int(word) >= len(given))
        raise DataError(
            f"{where} has the label {odd!r}, but names only {len(given)} classes, counted from 0; "
            "correct the label or write the file again"
        )
    return given, np.array([int(word) for word in known], np.int32)
