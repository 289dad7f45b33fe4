"""Parquet files with a column of encoded images and one of labels, as the Hugging Face hub writes them."""

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

from saccade.data.class_names import Classes, name_labels, quote
from saccade.data.image.formats import BYTES
from saccade.data.pictures import Pictures
from saccade.data.readers.listing import Listing, beside, collect, numbers_of, splits_of
from saccade.data.readers.shards import find
from saccade.data.splits import Splits
from saccade.errors import DataError, ResourceError, SaccadeError, UsageError, check_handles
from saccade.files.digest import sample_digest
from saccade.wording import count, show_name

IMAGES = ("image", "img", "picture", "jpg", "png")
LABELS = ("label", "labels", "class", "target", "category", "fine_label")
KEPT = 256_000_000
"""Bytes of decoded row groups that one process keeps: shuffled reading touches a group again and again."""
FACTOR, UNPACKED = 100, 2**26
"""A row group may unpack to `FACTOR` times the size of its file plus `UNPACKED` bytes."""


def _pyarrow() -> ModuleType:
    try:
        return import_module("pyarrow.parquet")
    except ImportError as error:
        raise UsageError(
            "reading Parquet needs pyarrow, which is not installed; pip install 'saccade[shards]'"
        ) from error


@contextmanager
def _readable_errors(path: str) -> Iterator[None]:
    """Turn whatever pyarrow raises into a sentence."""
    try:
        yield
    except SaccadeError:
        raise
    except MemoryError as error:
        raise ResourceError(f"not enough memory to read {show_name(path)}; free some") from error
    except OSError as error:
        check_handles(error)
        reason = error.strerror or show_name(" ".join(str(error).split()), 200)
        raise DataError(f"{show_name(path)} cannot be read: {reason}; expected a Parquet file") from error
    except Exception as error:  # a parser of untrusted bytes may raise anything: it all means the same
        reason = show_name(" ".join(str(error).split()), 200)
        raise DataError(
            f"{show_name(path)} is damaged ({reason}); expected a Parquet file; copy it again"
        ) from error


class Parquet:
    """Images in rows of Parquet files; a row group is decoded as a whole and kept while there is room."""

    def __init__(self, paths: list[str], column: str, rows: np.ndarray, groups: list[np.ndarray]) -> None:
        self.paths, self.column = [os.path.abspath(path) for path in paths], column
        self.starts = np.concatenate([[0], np.cumsum(rows)])
        self.groups = groups
        self.sizes = [os.path.getsize(path) for path in paths]
        self._kept: dict[tuple[int, int], Any] = {}
        self._room = KEPT
        self._digests: dict[int, bytes] = {}

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
        with _readable_errors(path):
            found = self._group(file, group)[place - int(self.groups[file][group])].as_py()
        what = f"row {place} of {show_name(path)}"
        data = found.get("bytes") if isinstance(found, dict) else found
        if data is None:
            raise DataError(f"{what} has no image data; expected the encoded file; leave the row out")
        if len(data) > BYTES:
            raise DataError(f"{what} is {len(data) / 1e6:,.0f} MB; at most {BYTES / 1e6:,.0f} MB are read")
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
        """Return the size of the whole file: that of one image is known only after decoding its group."""
        return self.sizes[self._place(row)[0]]

    def digest(self, row: int) -> bytes:
        """Return a hash of the whole file, for the same reason."""
        file = self._place(row)[0]
        if file not in self._digests:
            self._digests[file] = sample_digest(self.paths[file])
        return self._digests[file]


def open_parquet(source: str | Path, *, least: int = 2) -> Splits[Pictures]:
    """Read the labels of Parquet files into a collection: one file, a folder of them, a glob or a pattern."""
    parquet, paths, where = _pyarrow(), find(source, ".parquet"), show_name(source)
    labels, splits, known = array("i"), array("b"), Classes(where)
    rows, groups, columns, given, missing = [], [], set(), set(), 0
    for path, split in zip(paths, splits_of(paths), strict=True):
        with _readable_errors(path):
            file = parquet.ParquetFile(path)
            image, label = _columns(path, file.schema_arrow)
            counts = _rows(path, file.metadata)
            before = len(labels)
            for batch in file.iter_batches(columns=[label], use_threads=False):
                for word in batch.column(0).to_pylist():
                    text = _word(word)
                    missing += not text
                    labels.append(known.number(text) if text else 0)
                    splits.append(split if text else -1)
            if len(labels) - before != sum(counts):
                raise DataError(
                    f"{show_name(path)} is damaged: it declares {sum(counts):,} rows and has "
                    f"{len(labels) - before:,} labels; copy it again"
                )
            columns.add(image)
            given.add(_class_names(file.schema_arrow, label))
        rows.append(sum(counts))
        groups.append(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))
    if len(columns) > 1 or len(given) > 1:
        raise DataError(
            f"the files of {where} differ in their columns or class names; expected the same in all"
        )
    if not known:
        raise DataError(f"{where} has no row with a label; expected numbers or words in the label column")
    warnings = [f"{count(missing, 'row')} of {where} without a label left out"] if missing else []
    classes, places = _in_words(where, given.pop(), list(known.names), Path(paths[0]).parent)
    numbers = np.array(labels, np.int32)
    return collect(
        Listing(
            source=where,
            kind=f"Parquet, {count(len(paths), 'file')}",
            store=Parquet(paths, columns.pop(), np.array(rows, np.int64), groups),
            labels=numbers if places is None else places[numbers],
            names=list(known.names),
            splits=np.array(splits, np.int8),
            classes=classes,
            warnings=(*warnings, *known.warnings()),
        ),
        least=least,
    )


def _rows(path: str, metadata: Any) -> list[int]:
    """Return the rows of each group; refuse more rows than bytes, and groups that unpack to gigabytes."""
    total, counts = os.path.getsize(path), []
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        counts.append(group.num_rows)
        if not 0 <= sum(counts) <= total:  # an image has at least one byte
            raise DataError(
                f"{show_name(path)} claims {sum(counts):,} rows in {total:,} bytes; expected whole images; "
                "write it again"
            )
        size = group.total_byte_size  # not per column: a damaged one makes pyarrow kill the process
        if size > FACTOR * total + UNPACKED:
            raise DataError(
                f"{show_name(path)} expands {total:,} bytes to {size:,}, far more than images do; "
                "leave it out"
            )
    return counts


def _word(found: Any) -> str:
    """Return a label as text, or "" if there is none: null, -1 or not a number."""
    if found is None or found == -1 or found != found:
        return ""
    return (found.decode("utf-8", "surrogateescape") if isinstance(found, bytes) else str(found)).strip()


def _columns(path: str, schema: Any) -> tuple[str, str]:
    """Return the columns of images and labels."""
    types = {name.lower(): (name, schema.field(name).type) for name in schema.names}
    found = next((types[word][0] for word in IMAGES if word in types and _holds_bytes(types[word][1])), None)
    label = next((types[word][0] for word in LABELS if word in types), None)
    if label is not None and schema.field(label).type.num_fields:
        raise DataError(
            f"{show_name(path)} has the column {quote(label)} of {show_name(schema.field(label).type, 90)}; "
            "expected one number or word per row; write the label into a plain column"
        )
    if found is None or label is None:
        there = ", ".join(f"{show_name(name)} ({kind})" for name, kind in types.values())
        raise DataError(
            f"{show_name(path)} has the columns {show_name(there, 300)}; expected image (encoded bytes, or a "
            "struct with them) and label; rename them"
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
    return tuple(name_labels(names)) if isinstance(names, list) else ()


def _in_words(
    where: str, given: tuple[str, ...], known: list[str], folder: Path
) -> tuple[tuple[str, ...], np.ndarray | None]:
    if not given:
        return beside(where, folder, known)
    numbers = numbers_of(known)
    if numbers is None or numbers.max() >= len(given):
        odd = next(word for word in known if (n := numbers_of([word])) is None or n[0] >= len(given))
        raise DataError(
            f"{where} has the label {quote(odd)}, but names only {len(given)} classes, counted from 0; "
            "correct the label or write the file again"
        )
    return given, numbers
