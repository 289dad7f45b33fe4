"""Examples of any kind in train, val and test splits: held out by a hash of their name, or in folds."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from saccade.data.randomness import uniform_by_key
from saccade.errors import UsageError, check_number
from saccade.shapes import Int64, Integer, UInt64
from saccade.wording import count

Labels = Integer[np.ndarray, "n"]
Indices = Int64[np.ndarray, "_"]
Parts = tuple[Indices, Indices]
"""Training and validation indices."""


E = TypeVar("E", bound="Examples")
F = TypeVar("F", bound="Foldable")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Splits(Generic[E]):
    """A dataset: what to train on, what to validate on, and what to test on."""

    train: E
    val: E | None = None
    tests: dict[str, E] = field(default_factory=dict)
    """Further splits by name; there may be several."""
    summary: str
    """A description of the dataset, in one line for the terminal."""
    warnings: tuple[str, ...] = ()

    @property
    def test(self) -> E | None:
        return self.tests.get("test")

    @property
    def by_name(self) -> dict[str, E]:
        """All splits that exist, train first."""
        return {"train": self.train, **({} if self.val is None else {"val": self.val}), **self.tests}

    def map(self, change: Callable[[E], E]) -> "Splits[E]":
        """Return the dataset with every split changed."""
        val = None if self.val is None else change(self.val)
        tests = {name: change(test) for name, test in self.tests.items()}
        return replace(self, train=change(self.train), val=val, tests=tests)

    def unseen(self) -> tuple[str, E]:
        """Return the split to evaluate on, with its name: the first test split, else val, else train."""
        found = self.by_name
        name = next((name for name in (*self.tests, "val") if name in found), "train")
        return name, found[name]


@runtime_checkable
class Examples(Protocol):
    """The examples of one split."""

    def __len__(self) -> int: ...

    def split(self: E, share: float, seed: int) -> Splits[E]:
        """Return these examples as train and val; `summary` is the clause that `hold_out` appends."""

    def fingerprint(self) -> str:
        """Return a hash that changes with the examples."""


@runtime_checkable
class Foldable(Examples, Protocol):
    """Examples that can be indexed."""

    def take(self: F, indices: Indices) -> F: ...

    def join(self: F, other: F) -> F:
        """Return both, these first."""

    def folds(self, k: int, seed: int) -> list[Parts]:
        """Return the training and validation indices of each fold."""

    def fewer(self: F, fraction: float, seed: int) -> F:
        """Return a fraction of the examples; a smaller fraction is a subset of a larger one."""


@dataclass(frozen=True, slots=True)
class Fold:
    """Which fold is held out, counted from 1; 0 holds out none, to train on all examples."""

    number: int
    of: int


def hold_out(splits: Splits[E], share: float = 0.2, seed: int = 0) -> Splits[E]:
    """Return a dataset with a val split; one that has it already is returned as it is."""
    if splits.val is not None:
        return splits
    made = splits.train.split(share, seed)
    summary, notes = f"{splits.summary}; {made.summary}", splits.warnings + made.warnings
    return replace(splits, train=made.train, val=made.val, summary=summary, warnings=notes)


def few(splits: Splits[F], fraction: float, seed: int = 0) -> Splits[F]:
    """Return the dataset with a fraction of its training examples; the other splits stay whole."""
    train = splits.train.fewer(fraction, seed)
    summary = f"{splits.summary}; {len(train):,} of {len(splits.train):,} to train on"
    return replace(splits, train=train, summary=summary)


def pool(splits: Splits[F]) -> Splits[F]:
    """Join train and val, from both of which folds are made; test splits stay as they are."""
    if splits.val is None:
        return splits
    summary = f"{splits.summary}; train and val are joined"
    return replace(splits, train=splits.train.join(splits.val), val=None, summary=summary)


def take_fold(splits: Splits[F], fold: Fold, seed: int) -> Splits[F]:
    """Return the dataset whose val is the fold, and whose train is the rest of train and val."""
    pooled = pool(splits)
    if fold.number == 0:
        return pooled
    train, val = map(pooled.train.take, pooled.train.folds(fold.of, seed)[fold.number - 1])
    summary = f"{pooled.summary}; fold {fold.number} of {fold.of} held out (seed {seed})"
    return replace(pooled, train=train, val=val, summary=summary)


def evenly(total: int, most: int) -> Indices:
    """Return at most `most` indices below `total`, evenly spaced, with the first and the last."""
    return np.linspace(0, total - 1, min(most, total)).astype(np.int64)


def stratified(
    labels: Labels,
    fraction: float,
    seed: int,
    groups: Labels | None = None,
    *,
    keys: UInt64[np.ndarray, "n"] | None = None,
) -> Parts:
    """Return the sorted indices to train on and those held out, about a fraction of every class.

    An example is held out when the hash of (seed, its key) is small. So its side depends on its own name and
    on nothing else, and new files move no old one. The price: the share of a class is not exact; of n
    examples, n * fraction +- sqrt(n * fraction * (1 - fraction)) are held out. Only where this is below half
    or above twice the fraction, or would leave a class of two or more without an example on one side, the
    examples next to the threshold are moved; only those can move again when files are added.

    Args:
        groups: Examples of one group stay together, so a class needs two groups to be on both sides.
        keys: Hashes of the names; without them an example is known by its index, which new files change.
    """
    check_number("the fraction to hold out", fraction, 0.001, 0.999)
    if keys is None:
        keys = np.arange(len(labels), dtype=np.uint64)
    if groups is not None:  # the group's own number, whichever of its examples exist
        keys = np.asarray(groups).astype(np.uint64)
    luck = uniform_by_key(keys, seed)
    held = luck < fraction
    order = np.lexsort((luck, labels))
    classes = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)  # of each, the lowest draws first
    if groups is None:
        for members in classes:
            _balance(held, members, fraction)
    else:
        unit = np.unique(groups, return_inverse=True)[1].reshape(-1)
        _balance_groups(held, unit, [np.unique(unit[members]) for members in classes], luck)
    return np.flatnonzero(~held), np.flatnonzero(held)


def _balance(held: np.ndarray, members: np.ndarray, fraction: float) -> None:
    """Keep the share of one class between half and twice the fraction, and neither side empty."""
    total, wanted = len(members), len(members) * fraction
    if total < 2:
        held[members] = False
        return
    low = min(total - 1, max(1, round(wanted / 2)))
    high = max(low, min(total - 1, round(wanted * 2)))
    found = int(held[members].sum())  # the lowest draws are held out, so moving the edge moves the fewest
    held[members[: max(found, low)]] = True
    held[members[high:]] = False


def _balance_groups(held: np.ndarray, unit: np.ndarray, classes: list[np.ndarray], luck: np.ndarray) -> None:
    """Move whole groups until every class that has two is on both sides, where one move allows it."""
    first = np.unique(unit, return_index=True)[1]
    luck, held_unit = luck[first], held[first]
    for side, direction in ((True, 1), (False, -1)):
        for members in classes:
            if len(members) < 2 or (held_unit[members] == side).any():
                continue
            for candidate in members[np.argsort(luck[members])][::direction]:
                held_unit[candidate] = side
                if all((held_unit[m] != side).any() for m in classes if candidate in m and len(m) > 1):
                    break
                held_unit[candidate] = not side  # another class would have nothing left on the other side
    held[:] = held_unit[unit]


def nested(labels: Labels, fraction: float, seed: int, *, keys: UInt64[np.ndarray, "n"]) -> Indices:
    """Return the sorted indices of a fraction of every class, and of at least one example of each.

    The examples of a smaller fraction are a subset of those of a larger one. Of each class they are those
    with the smallest hashes of (seed, key), so other classes change nothing.
    """
    check_number("the fraction of the images", fraction, 0.0001, 1)
    order = np.lexsort((uniform_by_key(~keys, seed), labels))  # not the hashes that decide what is held out
    parts = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    chosen = [members[: max(1, round(len(members) * fraction))] for members in parts]
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def kfold(labels: Labels, k: int, seed: int, groups: Labels | None = None) -> list[Parts]:
    """Return (train, val) of each of k folds, as scikit-learn's Stratified(Group)KFold with shuffle does.

    Every example is validated exactly once. A class with fewer than k examples is absent from some folds.
    """
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    check_number("the number of folds", k, 2, max(2, len(labels)))
    most = int(np.bincount(labels).max(initial=0)) if groups is None else len(np.unique(groups))
    if most < k:
        there = "no class has as many images" if groups is None else f"there are only {count(most, 'group')}"
        raise UsageError(f"{k} folds were asked for, but {there}; ask for {max(2, most)} or fewer")
    folds = (StratifiedKFold if groups is None else StratifiedGroupKFold)(k, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a class with fewer than k examples
        parts = list(folds.split(np.zeros(len(labels)), labels, groups))
    return [(train.astype(np.int64), val.astype(np.int64)) for train, val in parts]
