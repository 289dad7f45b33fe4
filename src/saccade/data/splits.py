"""Pictures parted into some to learn from and some to be scored on, by hashes of names or in folds."""

import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from jaxtyping import Int64, Integer, UInt64

from saccade.data.readers.listing import Collection, plural, some
from saccade.errors import DataError, UsageError, check_number

Labels = Integer[np.ndarray, "n"]
Indices = Int64[np.ndarray, "_"]
Parts = tuple[Indices, Indices]


def spread(count: int, most: int) -> Indices:
    """At most so many places among `count`, at even distances."""
    return np.linspace(0, count - 1, min(most, count)).astype(np.int64)


def stratified(
    labels: Labels,
    fraction: float,
    seed: int,
    groups: Labels | None = None,
    *,
    keys: UInt64[np.ndarray, "n"] | None = None,
) -> Parts:
    """Return the sorted places to train on and those held out, about a fraction of every class.

    A picture is held out when the hash of (seed, its key) is small. So its side depends on its own name and
    on nothing else, and new files move no old one. The price is that the share of a class is not exact: of
    n pictures n * fraction +- sqrt(n * fraction * (1 - fraction)) are held out. Only where this strays below
    half or above twice the fraction, or would leave a class of two or more without a picture on one side,
    the pictures next to the threshold are moved; only those can move again when files are added.

    Args:
        groups: Pictures of one group stay together, so a class needs two groups to be on both sides.
        keys: `Images.keys()`; without them a picture is known by its place, and an insertion moves others.
    """
    check_number("the fraction to hold out", fraction, 0.001, 0.999)
    count = len(labels)
    if keys is None:
        keys = np.arange(count, dtype=np.uint64)
    if groups is not None:
        keys = np.asarray(groups).astype(
            np.uint64
        )  # a group's own number, whichever of its pictures are there
    luck = _luck(keys, seed)
    held = luck < fraction
    unit = np.arange(count) if groups is None else np.unique(groups, return_inverse=True)[1].reshape(-1)
    order = np.lexsort((luck, labels))
    edges = np.flatnonzero(np.diff(labels[order])) + 1
    for places in np.split(order, edges):  # the pictures of one class, the luckiest first
        if groups is None:
            _balance(held, places, fraction)
    if groups is not None:
        _spread(held, unit, [np.unique(unit[places]) for places in np.split(order, edges)], luck)
    return np.flatnonzero(~held), np.flatnonzero(held)


def _luck(keys: UInt64[np.ndarray, "n"], seed: int) -> np.ndarray:
    """Return a number in [0, 1) for each key (splitmix64, Steele et al. 2014)."""
    z = keys ^ np.uint64(seed * 0x9E3779B97F4A7C15 & 2**64 - 1)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)) * 2:
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return (z >> np.uint64(11)) * 2.0**-53


def _balance(held: np.ndarray, places: np.ndarray, fraction: float) -> None:
    """Keep the share of one class between half and twice the fraction, and both sides filled."""
    count, wanted = len(places), len(places) * fraction
    if count < 2:
        held[places] = False
        return
    low = min(count - 1, max(1, round(wanted / 2)))
    high = max(low, min(count - 1, round(wanted * 2)))
    found = int(held[places].sum())  # the luckiest are the held ones, so moving the edge moves the fewest
    held[places[: max(found, low)]] = True
    held[places[high:]] = False


def _spread(held: np.ndarray, unit: np.ndarray, classes: list[np.ndarray], luck: np.ndarray) -> None:
    """Move whole groups until every class that has two is on both sides, where one move allows it."""
    luck = luck[np.unique(unit, return_index=True)[1]]
    held_unit = held[np.unique(unit, return_index=True)[1]]
    for side, first in ((True, 1), (False, -1)):
        for members in classes:
            if len(members) < 2 or (held_unit[members] == side).any():
                continue
            for candidate in members[np.argsort(luck[members])][::first]:
                held_unit[candidate] = side
                if all((held_unit[m] != side).any() for m in classes if candidate in m and len(m) > 1):
                    break
                held_unit[candidate] = not side  # another class would have nothing left over there
    held[:] = held_unit[unit]


def nested(labels: Labels, fraction: float, seed: int, *, keys: UInt64[np.ndarray, "n"]) -> Indices:
    """Return the sorted places of a fraction of every class, and of at least one picture of each.

    A smaller fraction's pictures are all among a larger one's. A class's are those with the smallest hashes
    of (seed, key), so the others of the class decide how many there are, and nothing else.
    """
    check_number("the fraction of the pictures", fraction, 0.0001, 1)
    order = np.lexsort((_luck(~keys, seed), labels))  # not the hashes that part the pictures held out
    parts = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    chosen = [places[: max(1, round(len(places) * fraction))] for places in parts]
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def kfold(labels: Labels, k: int, seed: int, groups: Labels | None = None) -> Iterator[Parts]:
    """Yield (train, val) for each of k folds, as scikit-learn's Stratified(Group)KFold with shuffle does.

    Every picture is validated exactly once. A class with fewer than k pictures is absent from some folds.
    """
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    check_number("the number of folds", k, 2, max(2, len(labels)))
    most = int(np.bincount(labels).max(initial=0)) if groups is None else len(np.unique(groups))
    if most < k:
        what = (
            "no class has as many pictures" if groups is None else f"there are only {plural(most, 'group')}"
        )
        raise UsageError(f"{k} folds were asked for, but {what}; ask for {max(2, most)} or fewer")
    folds = (StratifiedKFold if groups is None else StratifiedGroupKFold)(k, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a class with fewer than k pictures
        parts = list(folds.split(np.zeros(len(labels)), labels, groups))
    for train, val in parts:
        yield train.astype(np.int64), val.astype(np.int64)


def hold_out(collection: Collection, fraction: float = 0.2, seed: int = 0) -> Collection:
    """Return a collection that has pictures to validate on; one that has them already stays as it is."""
    if collection.val is not None:
        return collection
    images = collection.train
    counts = np.bincount(images.labels, minlength=len(images.classes))
    lonely = [images.classes[i] for i in np.flatnonzero(counts == 1)]
    if counts.max(initial=0) < 2:
        raise DataError(
            "every class has a single picture, so none can be held out to validate on; "
            "expected two or more of each class; add pictures, or a val folder"
        )
    train, val = stratified(images.labels, fraction, seed, collection.groups, keys=images.keys())
    told = f"{collection.told}; {len(val):,} of them held out to validate on (seed {seed})"
    notes = collection.warnings
    if lonely:
        notes += (f"{plural(len(lonely), 'class')} with a single picture, never validated: {some(lonely)}",)
    groups = None if collection.groups is None else collection.groups[train]
    return replace(
        collection, train=images.take(train), val=images.take(val), told=told, warnings=notes, groups=groups
    )


def few(collection: Collection, fraction: float, seed: int = 0) -> Collection:
    """Return a collection with a fraction of the pictures to learn from, and all of the others."""
    images = collection.train
    chosen = nested(images.labels, fraction, seed, keys=images.keys())
    told = f"{collection.told}; {len(chosen):,} of {len(images):,} to learn from"
    groups = None if collection.groups is None else collection.groups[chosen]
    return replace(collection, train=images.take(chosen), told=told, groups=groups)
