"""Sentence pairs from two files, TSV or JSONL, plain or gzip, judged by content; only hashes are kept.

A pair of which a side is empty is left out and told with its line; too many of them are refused.
"""

import hashlib
import math
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64, UInt64

from saccade.data.image.formats import shown
from saccade.data.readers.listing import plural
from saccade.data.splits import stratified
from saccade.errors import DataError, UsageError, check_number

PAIR = re.compile(r"([A-Za-z0-9_]+)(?:-|->|→)([A-Za-z0-9_]+)")
CODES = (
    "aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv "
    "dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie "
    "ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv "
    "mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm "
    "rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts "
    "tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu "
)
"""Of languages, ISO 639-1: a first line of such words names columns, other short words are a pair."""


class Pair(NamedTuple):
    """A sentence and its translation."""

    line: int
    source: str
    target: str


@runtime_checkable
class Reader(Protocol):
    """A file, or two, of pairs; every pass reads it anew."""

    @property
    def name(self) -> str:
        """For messages, safe to print."""

    @property
    def sides(self) -> tuple[str, str]:
        """What the source and the target are called."""

    def __iter__(self) -> Iterator[Pair]: ...


def languages(pair: str) -> tuple[str, str] | None:
    """Read "de-en", from German to English; nothing is None."""
    if not pair:
        return None
    match = PAIR.fullmatch(pair.strip())
    if match is None or match[1] == match[2]:
        raise UsageError(f"the pair is {pair!r}; expected two languages as from-to, for example de-en")
    return match[1], match[2]


@dataclass(frozen=True, slots=True, eq=False)
class Sentences:
    """The pairs of one split: iterated as often as one likes, and read from the files each time."""

    readers: tuple[Reader, ...]
    keys: UInt64[np.ndarray, "n"]
    """A hash of each source, in the order of the files; equal sentences have equal keys."""
    digest: str
    """A hash of every word of it."""
    rows: Int64[np.ndarray, "m"] | None = None
    """Which of these pairs, ascending; None means all."""

    def __len__(self) -> int:
        return len(self.keys) if self.rows is None else len(self.rows)

    def __iter__(self) -> Iterator[Pair]:
        kept = np.ones(len(self.keys), bool) if self.rows is None else np.zeros(len(self.keys), bool)
        if self.rows is not None:
            kept[self.rows] = True
        number = 0
        for reader in self.readers:
            for pair in reader:
                if pair.source and pair.target:
                    if number >= len(kept):
                        raise DataError(f"{reader.name} has grown while it was read; start again")
                    if kept[number]:
                        yield pair
                    number += 1
        if number != len(kept):
            raise DataError(f"{self.readers[-1].name} has shrunk while it was read; start again")

    def take(self, rows: Int64[np.ndarray, "m"]) -> "Sentences":
        """Some of these pairs, by their sorted places."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def fingerprint(self) -> str:
        """The same for the same pairs in the same order."""
        rows = b"" if self.rows is None else self.rows.tobytes()
        return hashlib.sha256(self.digest.encode() + rows).hexdigest()


def scan(readers: Sequence[Reader], bad: float = 0.01) -> tuple[Sentences, tuple[str, ...]]:
    """Read all once: count, check and hash; also the notes worth telling.

    Args:
        bad: The share of pairs with an empty side that is borne.
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
        why = first or f"{names} holds no line"
        raise DataError(f"{why}, and there is no pair at all; expected a sentence on both sides of each line")
    others = f" (and {empty - 1:,} more such lines of {len(keys) + empty:,})" if empty > 1 else ""
    if empty > bad * (len(keys) + empty):
        raise DataError(
            f"{first}{others}; expected a sentence on both sides; complete or remove these lines in both "
            f"languages, or bear them (bad={math.ceil(100 * empty / (len(keys) + empty)) / 100:g})"
        )
    notes = (f"{first}{others}; left out",) if empty else ()
    return Sentences(tuple(readers), np.array(keys, np.uint64), total.hexdigest()), notes


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Corpus:
    """Pairs in splits."""

    train: Sentences
    val: Sentences | None = None
    tests: dict[str, Sentences] = field(default_factory=dict)
    """By the names of their files, as there may be several."""
    sides: tuple[str, str]
    """What the source and the target are called: de and en, or source and target."""
    told: str
    warnings: tuple[str, ...] = ()

    @property
    def splits(self) -> dict[str, Sentences]:
        """The splits that are there, by name."""
        val = {} if self.val is None else {"val": self.val}
        return {"train": self.train, **val, **self.tests}


def corpus(
    train: Iterable[Reader], val: Iterable[Reader], tests: dict[str, Reader], kind: str, bad: float
) -> Corpus:
    """Scan every split, and say in a line what was found."""
    readers = tuple(train)
    found, notes = scan(readers, bad)
    held, tried = tuple(val), {}
    scanned = None
    if held:
        scanned, more = scan(held, bad)
        notes += more
    for name, reader in tests.items():
        tried[name], more = scan((reader,), bad)
        notes += more
    source, target = readers[0].sides
    parts = [f"{name} {len(part):,}" for name, part in tried.items()]
    parts = [f"train {len(found):,}", *([] if scanned is None else [f"val {len(scanned):,}"]), *parts]
    count = len(found) + (0 if scanned is None else len(scanned)) + sum(map(len, tried.values()))
    split = f" ({', '.join(parts)})" if len(parts) > 1 else ""
    told = f"{kind}: {plural(count, 'sentence pair')} from {source} to {target}{split}"
    return Corpus(train=found, val=scanned, tests=tried, sides=(source, target), told=told, warnings=notes)


def hold_out(found: Corpus, fraction: float = 0.05, seed: int = 0) -> Corpus:
    """Return a corpus with pairs to validate on; one that has them already stays as it is.

    A pair's side is decided by a hash of its source (data/split.py), so a sentence that occurs twice stays
    on one side, and new pairs move no old one.
    """
    if found.val is not None:
        return found
    train = found.train
    if len(train) < 2:
        raise DataError(
            f"{train.readers[0].name} has a single pair, so none can be held out; expected two or more"
        )
    keys = train.keys if train.rows is None else train.keys[train.rows]
    learnt, held = stratified(np.zeros(len(train), np.int64), fraction, seed, keys=keys)
    told = f"{found.told}; {len(held):,} of them held out to validate on (seed {seed})"
    return replace(found, train=train.take(learnt), val=train.take(held), told=told)


def named(path: Path) -> str:
    """A file's name without a path, for messages."""
    return shown(path.name)
