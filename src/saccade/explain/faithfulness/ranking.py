"""Rank all explanation methods of a model on a set of images, with the controls and, if given, masks."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int, Int8, Integer
from torch import Tensor

from saccade.data.image.decode import decode
from saccade.data.image.preprocess import Preprocess
from saccade.errors import DataError, UsageError
from saccade.explain.faithfulness.evidence import Evidence, find_evidence
from saccade.explain.faithfulness.fills import FILLS, cell_grid
from saccade.explain.faithfulness.meter import (
    BETTER,
    DRAWS,
    LEVEL,
    UNJUDGED,
    Faithfulness,
    Measurement,
    Verdict,
    check_inputs,
    measure,
    verdict,
)
from saccade.explain.target import MethodFunction
from saccade.metrics.localisation import (
    BACKGROUND,
    IGNORED,
    OBJECT,
    LocalisationScores,
    Overlap,
    localisation_scores,
    overlap,
)
from saccade.models.build import Vision
from saccade.nn.patch import Image
from saccade.report.plots import Axes, Cell, Ink, Plot
from saccade.wording import count, number, percent, printable

RANDOM = "random"
"""The row of the control; a method of that name is skipped, since the control runs anyway."""
AT_ONCE = 8
"""Images whose maps are made together."""
FEWEST = 4
"""Fewest random maps per image."""

ENDINGS = (".png", ".bmp", ".tif", ".tiff", ".gif")
TRIMAP = {1: OBJECT, 2: BACKGROUND, 3: IGNORED}
"""The values of the Oxford-IIIT Pet trimaps: pet, background, border."""
GREY = {OBJECT: 255, BACKGROUND: 0, IGNORED: 128}

_Mask = Int8[np.ndarray, "height width"]
Masks = Integer[np.ndarray, "k high wide"]


def read_masks(
    folder: Path, pictures: Iterable[Path], preprocess: Preprocess
) -> Int8[np.ndarray, "n height width"]:
    """Read the mask of each image: the file of the same name, in the same subfolders or fewer."""
    return np.stack([fit_mask(read_mask(find_mask(folder, picture)), preprocess) for picture in pictures])


def find_mask(folder: Path, picture: Path) -> Path:
    """Return the mask of an image: for `a/b/c.jpg` the first of a/b/c.png, b/c.png and c.png."""
    parts = picture.parts
    for start in range(max(0, len(parts) - 4), len(parts)):
        stem = folder.joinpath(*parts[start:]).with_suffix("")
        for ending in ENDINGS:
            if (path := stem.with_name(stem.name + ending)).is_file():
                return path
    raise DataError(
        f"{printable(picture)} has no mask in {printable(folder)}; expected {printable(picture.stem)}.png "
        "there, or in the same subfolders as the image"
    )


def read_mask(path: Path) -> _Mask:
    """Return 1 on the object, 0 on the background and -1 where neither counts.

    A file of the values 1, 2 and 3 is an Oxford-IIIT Pet trimap; in any other, white is the object.
    """
    values = np.asarray(decode(path)).max(-1)
    if set(np.unique(values).tolist()) <= set(TRIMAP):
        table = np.array([0, *TRIMAP.values()], dtype=np.int8)
        return table[values]
    return (values >= (128 if values.max() > 1 else 1)).astype(np.int8)


def fit_mask(mask: _Mask, preprocess: Preprocess) -> Int8[np.ndarray, "tall wide"]:
    """Resize and crop a mask as the model's preprocessing does its image."""
    grey = np.choose(mask + 1, [GREY[IGNORED], GREY[BACKGROUND], GREY[OBJECT]]).astype(np.uint8)
    how = replace(preprocess, interpolation="nearest", background=(0, 0, 0))
    seen = how.pixels(np.repeat(grey[..., None], 3, axis=-1))[..., 0]
    back = {value: key for key, value in GREY.items()}
    return np.vectorize(back.__getitem__, otypes=[np.int8])(seen)


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodRow:
    """A method on all images."""

    method: str
    score: Faithfulness
    randomised: float
    """Gain of the same method with randomised weights."""
    ahead: float
    """Share of images on which the map gains more than the mean of the image's random maps."""
    verdict: Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranking:
    """Methods by gain, best first, with the random control; JSON by saccade.values."""

    pictures: int
    draws: int
    """Random maps per image."""
    cells: tuple[int, int]
    """Rows and columns of the cells that are deleted."""
    fill: str
    """What took their place in all images: blur, drop or mean."""
    level: float
    """How often an uninformative method may be called better than random."""
    rows: tuple[MethodRow, ...]
    segmentation: tuple[LocalisationScores, ...] = ()
    """How well each row finds the objects, where masks were given."""

    def row(self, method: str) -> MethodRow:
        """Return the row of a method."""
        return next(row for row in self.rows if row.method == method)

    def localisation_scores(self, method: str) -> LocalisationScores:
        """Return how well a method finds the objects."""
        return self.segmentation[[row.method for row in self.rows].index(method)]

    def better(self) -> list[str]:
        """Return the methods that are better than random, best first."""
        return [row.method for row in self.rows if row.verdict.better]

    def __str__(self) -> str:
        good = self.better()
        found = f"Better than random: {', '.join(good)}" if good else "No method is better than random"
        best = self.rows[0]
        if (first := next(row for row in self.rows if row.method != RANDOM).verdict).word == UNJUDGED:
            return f"No method can be judged ({count(self.pictures, 'image')}): {first.reason}."
        more = f"; the best is {best.method}" if len(good) > 1 and best.method in good else ""
        return f"{found} ({count(self.pictures, 'image')}){more}{self._pointing()}."

    def _pointing(self) -> str:
        """Return how often the best map points at the object, if there are masks."""
        if not self.segmentation:
            return ""
        best = next(row.method for row in self.rows if row.method != RANDOM)
        own, other = (self.localisation_scores(name).pointing for name in (best, RANDOM))
        which = f"the highest point of {best}" if len(self.rows) > 2 else "its highest point"
        return f"; {which} is on the object in {percent(own)} of them (random maps: {percent(other)})"


def rank(
    module: Vision,
    images: Image,
    targets: Int[Tensor, "n"],
    methods: Mapping[str, MethodFunction],
    masks: Masks | None = None,
    draws: int = 0,
    seed: int = 0,
    say: Callable[[int, int], None] | None = None,
) -> Ranking:
    """Measure every method and both controls on every image, and sort the methods by gain.

    Args:
        masks: 1 on the object, 0 on the background, -1 where neither counts, at any size.
        draws: random maps per image; 0 means 40 for one image, fewer for many.
        seed: of the randomised weights.
        say: called after each batch with the images done and their total.
    """
    wanted = {name: method for name, method in methods.items() if name != RANDOM}
    check_inputs(module, images, targets, wanted)
    n = images.shape[0]
    _check_masks(masks, n)
    draws = draws or max(FEWEST, -(-DRAWS // n))
    evidence = find_evidence(
        module, images, targets, seed
    )  # one fill for all, or gains could not be compared
    found: list[Measurement] = []
    overlaps: dict[str, list[Overlap]] = {name: [] for name in (*wanted, RANDOM)}
    for at in range(0, n, AT_ONCE):
        part = slice(at, at + AT_ONCE)
        found.append(measure(module, images[part], targets[part], wanted, draws, seed, evidence.part(part)))
        if masks is not None:
            _overlap(overlaps, found[-1], masks[part])
        if say is not None:
            say(min(at + AT_ONCE, n), n)
    rows = [_row(name, found, evidence) for name in wanted] + [_control(found)]
    rows.sort(key=lambda row: (-row.score.gain, row.method))
    return Ranking(
        pictures=n,
        draws=draws,
        cells=cell_grid(module, images),
        fill=evidence.fill,
        level=LEVEL,
        rows=tuple(rows),
        segmentation=tuple(localisation_scores(overlaps[row.method]) for row in rows)
        if overlaps[RANDOM]
        else (),
    )


def _check_masks(masks: Masks | None, pictures: int) -> None:
    if masks is None:
        return
    if masks.shape[0] != pictures:
        raise UsageError(f"{masks.shape[0]} masks were given for {pictures} images; expected one for each")
    known = (masks >= IGNORED) & (masks <= OBJECT)
    if not known.all():
        raise UsageError(
            f"a mask contains {int(masks[~known][0])}; expected 1 (object), 0 (background) or -1 (neither)"
        )


def _overlap(overlaps: dict[str, list[Overlap]], found: Measurement, masks: Masks) -> None:
    """Add the overlap of a batch's maps with their masks; a mask without an object is skipped."""
    kinds: dict[str, Float[Tensor, "b m r c"]] = {
        name: rearrange(maps, "b r c -> b 1 r c") for name, maps in found.maps.items()
    }
    for name, maps in (*kinds.items(), (RANDOM, found.drawn)):
        large = F.interpolate(maps.cpu().float(), masks.shape[-2:], mode="bilinear").numpy()
        for several, mask in zip(large, masks, strict=True):
            if (mask == OBJECT).any():
                overlaps[name] += [overlap(one, mask) for one in several]


def _mean(scores: list[Faithfulness], weights: list[int]) -> Faithfulness:
    names = Faithfulness.__dataclass_fields__
    return Faithfulness(
        **{name: float(np.average([getattr(s, name) for s in scores], weights=weights)) for name in names}
    )


def _sizes(found: list[Measurement]) -> list[int]:
    return [part.curves.whole.shape[0] for part in found]


def _row(name: str, found: list[Measurement], evidence: Evidence) -> MethodRow:
    own, drawn, shuffled = (
        np.concatenate(parts) for parts in zip(*(part.gains(name) for part in found), strict=True)
    )
    return MethodRow(
        method=name,
        score=_mean([part.score(name) for part in found], _sizes(found)),
        randomised=float(shuffled.mean()),
        ahead=float(np.mean(own > drawn.mean(1))),
        verdict=verdict(own, drawn, shuffled, evidence),
    )


def _control(found: list[Measurement]) -> MethodRow:
    score = _mean([part.control() for part in found], _sizes(found))
    verdict = Verdict(word="the control", reason="random maps", p=1.0, fill=found[0].evidence.fill)
    return MethodRow(method=RANDOM, score=score, randomised=score.gain, ahead=0.5, verdict=verdict)


def ranking_plot(ranking: Ranking) -> Plot:
    """Plot the gains as bars, best on top, with those on randomised weights; the table has the rest."""
    columns = {
        "method": "text",
        "verdict": "text",
        **dict.fromkeys(("gain", "insertion", "deletion", "positive", "negative"), "number"),
        "randomised weights": "number",
        "p": "number",
        **({} if not ranking.segmentation else dict.fromkeys(SHARES, "percent")),
    }
    control = ranking.row(RANDOM).score.gain
    return Plot(
        name="ranking",
        title="How faithful the maps are",
        message=str(ranking),
        note=(
            "Gain is insertion minus deletion: the probability of the target should rise early when the most "
            "important cells are inserted first, and fall early when they are deleted first. "
            f"Random maps gain {number(control)}. Deleted cells are {FILLS[ranking.fill]}."
        ),
        columns=columns,
        rows=[_cells(ranking, i) for i in range(len(ranking.rows))],
        draw=lambda axes, ink: _draw(ranking, axes, ink),
        height=0.9 + 0.34 * len(ranking.rows),
    )


SHARES = {
    "pixel accuracy": "pixel_accuracy",
    "mAP": "average_precision",
    "mIoU": "iou",
    "pointing": "pointing",
}


def _cells(ranking: Ranking, i: int) -> tuple[Cell, ...]:
    row, score = ranking.rows[i], ranking.rows[i].score
    found = ranking.segmentation[i : i + 1]
    return (
        row.method,
        row.verdict.word,
        *(score.gain, score.insertion, score.deletion, score.positive, score.negative),
        row.randomised,
        row.verdict.p,
        *(getattr(each, name) for each in found for name in SHARES.values()),
    )


def _draw(ranking: Ranking, axes: Axes, ink: Ink) -> None:
    rows = ranking.rows[::-1]
    bars = np.arange(len(rows))
    solid = [ink.first if row.verdict.word == BETTER else ink.grid for row in rows]
    axes.barh(bars, [row.score.gain for row in rows], color=solid, height=0.6)
    axes.plot([row.randomised for row in rows], bars, "o", color=ink.second, label="on randomised weights")
    axes.axvline(ranking.row(RANDOM).score.gain, color=ink.second, linestyle="--", label="random maps")
    axes.set_yticks(bars, [row.method for row in rows])
    axes.set_xlabel("gain: insertion minus deletion (grey: uninformative)")
    axes.grid(axis="y", visible=False)
    axes.legend(loc="lower right")
