"""Sentence pairs from two files, TSV or JSONL, plain or gzip, recognised by content; only hashes are kept.

A pair with an empty side is left out with a note; too many of them are refused.
"""

import hashlib
import math
import os
import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt64

from saccade.data.readers.listing import TEST, TRAIN, VAL, nearest, split_of
from saccade.data.splits import Splits, stratified
from saccade.errors import DataError, UsageError, check_number
from saccade.tasks.translate.pair_files import (
    Jsonl,
    Reader,
    SentencePair,
    TwoFiles,
    describe_known,
    languages,
    reader_of,
)
from saccade.wording import count, show_name, some

_LANGUAGE = re.compile(r"[a-z]{2,3}(?:[-_][A-Za-z]{2,4})?")
_FILE = re.compile(r"(?P<stem>.+?)\.(?P<end>[A-Za-z_-]+)(?:\.gz)?")
_ENDINGS = ("tsv", "txt", "jsonl", "ndjson", "json", "tab")


@dataclass(frozen=True, slots=True, eq=False)
class Sentences:
    """The pairs of one split, read from the files at each pass."""

    readers: tuple[Reader, ...]
    keys: UInt64[np.ndarray, "n"]
    """A hash of each source, in the order of the files; equal sentences have equal keys."""
    digest: str
    """A hash of every word."""
    rows: Int64[np.ndarray, "m"] | None = None
    """Which of these pairs, ascending; None means all."""

    def __len__(self) -> int:
        return len(self.keys) if self.rows is None else len(self.rows)

    def __iter__(self) -> Iterator[SentencePair]:
        kept = np.ones(len(self.keys), bool) if self.rows is None else np.zeros(len(self.keys), bool)
        if self.rows is not None:
            kept[self.rows] = True
        number = 0
        for reader in self.readers:
            for pair in reader:
                if pair.source and pair.target:
                    if number >= len(kept):
                        raise DataError(f"{reader.name} grew while it was being read; start again")
                    if kept[number]:
                        yield pair
                    number += 1
        if number != len(kept):
            raise DataError(f"{self.readers[-1].name} shrank while it was being read; start again")

    @property
    def sides(self) -> tuple[str, str]:
        """The names of source and target: de and en, or source and target."""
        return self.readers[0].sides

    def split(self, share: float, seed: int) -> Splits["Sentences"]:
        """Hold out pairs for validation by a hash of their source, so that equal sentences stay together."""
        if len(self) < 2:
            raise DataError(
                f"{self.readers[0].name} has a single pair, so none can be held out for validation; "
                "expected two or more"
            )
        keys = self.keys if self.rows is None else self.keys[self.rows]
        train, val = stratified(np.zeros(len(self), np.int64), share, seed, keys=keys)
        summary = f"{len(val):,} of them held out for validation (seed {seed})"
        return Splits(train=self.take(train), val=self.take(val), summary=summary)

    def take(self, rows: Int64[np.ndarray, "m"]) -> "Sentences":
        """Return some of these pairs, by their sorted indices."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def fingerprint(self) -> str:
        """Return the same for the same pairs in the same order."""
        rows = b"" if self.rows is None else self.rows.tobytes()
        return hashlib.sha256(self.digest.encode() + rows).hexdigest()


def scan(readers: Sequence[Reader], bad: float = 0.01) -> tuple[Sentences, tuple[str, ...]]:
    """Read all files once: count, check and hash; also return notes for the user.

    Args:
        bad: The largest share of pairs with an empty side.
    """
    check_number("the share of bad pairs", bad, 0, 1)
    keys, total, empty, first = array("Q"), hashlib.sha256(), 0, ""
    for reader in readers:
        for pair in reader:
            if not pair.source or not pair.target:
                side = reader.sides[bool(pair.source)]
                first = first or f"line {pair.line} of {reader.name} has nothing in {side}"
                empty += 1
                continue
            words = pair.source.encode()
            keys.append(int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little"))
            total.update(words + b"\t" + pair.target.encode() + b"\n")
    names = ", ".join(reader.name for reader in readers)
    if not keys:
        why = first or f"{names} has no lines"
        raise DataError(
            f"{why}, so no sentence pairs were found; expected a sentence on both sides of each line"
        )
    others = f" (and {empty - 1:,} more such lines out of {len(keys) + empty:,})" if empty > 1 else ""
    if empty > bad * (len(keys) + empty):
        raise DataError(
            f"{first}{others}; expected a sentence on both sides; complete or remove these lines in both "
            f"languages, or allow them (bad={math.ceil(100 * empty / (len(keys) + empty)) / 100:g})"
        )
    notes = (f"{first}{others}; left out",) if empty else ()
    return Sentences(tuple(readers), np.array(keys, np.uint64), total.hexdigest()), notes


def _scan_splits(
    train: Iterable[Reader], val: Iterable[Reader], tests: dict[str, Reader], kind: str, bad: float
) -> Splits[Sentences]:
    """Scan every split, and summarise what was found."""
    wanted = {"train": tuple(train), "val": tuple(val), **{name: (reader,) for name, reader in tests.items()}}
    scanned, notes = dict[str, Sentences](), tuple[str, ...]()
    for name, readers in wanted.items():
        if readers:
            scanned[name], more = scan(readers, bad)
            notes += more
    counts = {name: len(part) for name, part in scanned.items()}
    parts = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    source, target = scanned["train"].sides
    summary = f"{kind}: {count(sum(counts.values()), 'sentence pair')} from {source} to {target}"
    summary += f" ({parts})" if len(counts) > 1 else ""
    found, held = scanned.pop("train"), scanned.pop("val", None)
    return Splits(train=found, val=held, tests=scanned, summary=summary, warnings=notes)


def _walk(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders.sort()
        yield from (Path(place, file) for file in sorted(files) if not file.startswith("."))


def _languages_of(pair: str, known: Sequence[str], where: str) -> tuple[str, str]:
    """Return the languages to translate from and to."""
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
                f"{describe_known(language, known)}"
            )
    return asked


def _beside(files: Sequence[Path], pair: str, where: str) -> tuple[dict[str, Reader], tuple[str, ...]]:
    """Return a reader for each stem that two languages share (train.de, train.en), and notes on the rest."""
    stems: dict[tuple[Path, str], dict[str, Path]] = defaultdict(dict)
    for path in files:
        match = _FILE.fullmatch(path.name)
        if match and _LANGUAGE.fullmatch(match["end"]) and match["end"] not in _ENDINGS:
            stems[path.parent, match["stem"]][match["end"]] = path
    asked = _languages_of(pair, sorted({language for found in stems.values() for language in found}), where)
    made: dict[str, Reader] = {}
    whole = {place: found for place, found in stems.items() if set(asked) <= found.keys()}
    for (_, stem), found in whole.items():
        if stem in made:
            raise DataError(f"{where} has two sets of files named {stem!r}; give the folder of one of them")
        made[stem] = TwoFiles((found[asked[0]], found[asked[1]]), asked)
    if not made:
        raise DataError(
            f"{where} has no file in both {asked[0]} and {asked[1]}; expected two with the same name"
        )
    lone = [stem for place, stem in stems.keys() - whole.keys()]
    return made, (f"in only one of the languages, so not used: {some(sorted(lone))}",) if lone else ()


def _folder(folder: Path, pair: str, bad: float, learns: bool) -> Splits[Sentences]:
    files, where = list(_walk(folder)), show_name(folder)
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
                f"{where} has no sentence pairs; expected train.de and train.en, train.tsv or train.jsonl"
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
    opened = _scan_splits(train, val, tests, kind, bad)
    return replace(opened, warnings=(*notes, *opened.warnings))


def open_pairs(data: str, pair: str = "", bad: float = 0.01, learns: bool = True) -> Splits[Sentences]:
    """Open a folder, a file, two files separated by a comma, or the stem of a .de and a .en file.

    Args:
        pair: From which language to which, such as de-en; needed where there are more than two.
        bad: The largest share of pairs with an empty side.
        learns: Whether training pairs are required; if not, a folder of test pairs alone will do.
    """
    path = Path(data)
    if path.is_dir():
        return _folder(path, pair, bad, learns)
    if path.exists():
        reader = reader_of(path, pair)
        return _scan_splits([reader], [], {}, "jsonl" if isinstance(reader, Jsonl) else "tsv", bad)
    if "," in data:
        paths = [Path(part.strip()) for part in data.split(",")]
        if len(paths) != 2:
            raise UsageError(f"{data} names {len(paths)} files; expected two, first.de,second.en")
        return _scan_splits([TwoFiles((paths[0], paths[1]), _ends(paths, pair))], [], {}, "two files", bad)
    beside = [found for found in sorted(path.parent.glob(f"{escape(path.name)}.*")) if found.is_file()]
    if path.name and len(beside) > 1:
        made, notes = _beside(beside, pair, show_name(data))
        return replace(_scan_splits(list(made.values()), [], {}, "two files", bad), warnings=notes)
    raise DataError(f"there is no file or folder {show_name(data)}; expected sentence pairs; {nearest(data)}")


def _ends(paths: Sequence[Path], pair: str) -> tuple[str, str]:
    """Return the languages of two files by their endings; a given pair must agree."""
    found = [match["end"] if (match := _FILE.fullmatch(path.name)) else "" for path in paths]
    sides = (found[0], found[1]) if all(map(_LANGUAGE.fullmatch, found)) else ("source", "target")
    asked = languages(pair)
    if asked is not None and sides != ("source", "target") and asked != sides:
        raise UsageError(f"the pair is {pair}, but the files are {'-'.join(sides)}; change one of them")
    return asked or sides
