"""The logit lens: what the model would predict if it stopped after each block (nostalgebraist 2020).

Blocks only add to the residual stream, so the last norm and the head can read it at any depth, and read a
patch like the class token. The head was trained on the last stream alone: what it predicts from earlier
ones, or from patches, is a hint, not a measurement.

Shapes: b batch, n tokens, d width, l depths (before the first block, after each).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor

from saccade.data.splits import evenly
from saccade.explain.inside.tiles import Tile, tiles
from saccade.explain.replay import Grid, Moment, grid_of, moments
from saccade.explain.target import confidence
from saccade.models.vit import ViT
from saccade.nn.attention import Tokens
from saccade.nn.patch import Image
from saccade.report.plots import Axes, Ink, Plot
from saccade.tokens.unfold import read
from saccade.wording import count, number, percent, printable

MAPS = 4
"""Images whose patches are drawn."""
DEPTHS = 7
"""Depths in such a row of maps, evenly spread."""

_Read = Callable[[Tokens], Float[Tensor, "b classes"]]


@dataclass(frozen=True, kw_only=True, slots=True)
class DepthGuess:
    """What would be predicted after a block; 0 is before the first."""

    block: int
    index: int
    label: str
    probability: float
    target: float
    """The probability of the target."""
    patches: int
    """Patches that, read alone, would predict the target."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lens:
    """One image, read at every depth."""

    picture: str
    target: int
    label: str
    grid: Grid
    guesses: tuple[DepthGuess, ...]
    patches: tuple[tuple[float, ...], ...]
    """Probability of the target from each patch alone, by depth; to five digits."""

    @property
    def settled(self) -> int:
        """The block from which on the target is predicted; one beyond the last if it never is."""
        wrong = [guess.block for guess in self.guesses if guess.index != self.target]
        return wrong[-1] + 1 if wrong else 0


def streams(seen: Iterable[Moment]) -> list[Tokens]:
    """Return the residual stream before the first block and after each."""
    found: list[Tokens] = []
    for moment in seen:
        found += [moment.out] if found else [moment.z, moment.out]
    return found


def read_depths(vit: ViT, seen: Iterable[Moment]) -> tuple[list[Tokens], Float[Tensor, "l b classes"]]:
    """Return the streams, and the probabilities predicted from each."""
    found: list[Tokens] = []
    answers: list[Tensor] = []
    for moment in seen:
        if not found:
            found, answers = [moment.z], [read(vit, moment.z, None)]
        found.append(moment.out)
        answers.append(read(vit, moment.out, moment.stage.counted))
    return found, confidence(torch.stack(answers))


def read_tokens(z: Tokens, read: _Read, front: int) -> Float[Tensor, "b n classes"]:
    """Return the probabilities from each token alone, as if the sequence were copies of that token.

    Args:
        front: tokens that `read` expects before the patches; they are copies too.
    """
    alone = repeat(z, "b n d -> (b n) copies d", copies=front + 1)
    return rearrange(confidence(read(alone)), "(b n) classes -> b n classes", b=z.shape[0])


@torch.no_grad()
def measure(
    vit: ViT, image: Image, target: Int[Tensor, "b"], names: Sequence[str], label: Callable[[int], str]
) -> tuple[Lens, ...]:
    """Read every image at every depth; `names` are the images', `label` names a class."""
    return tuple(
        _one(vit, one, int(wanted), name, label)
        for one, wanted, name in zip(torch.split(image, 1), target.tolist(), names, strict=True)
    )


def _one(vit: ViT, image: Image, target: int, name: str, label: Callable[[int], str]) -> Lens:
    front, guesses, patches = vit.config.front, [], []
    found, answers = read_depths(vit, moments(vit, image))
    for block, (z, p) in enumerate(zip(found, answers[:, 0], strict=True)):
        each = read_tokens(z[:, front:], vit.read, front)[0]
        best = int(p.argmax())
        guesses.append(
            DepthGuess(
                block=block,
                index=best,
                label=label(best),
                probability=float(p[best]),
                target=float(p[target]),
                patches=int((each.argmax(-1) == target).sum()),
            )
        )
        patches.append(tuple(round(value, 5) for value in each[:, target].tolist()))
    return Lens(
        picture=name,
        target=target,
        label=label(target),
        grid=grid_of(vit, image),
        guesses=tuple(guesses),
        patches=tuple(patches),
    )


def plots(found: Sequence[Lens]) -> list[Plot]:
    """Plot the answer by depth for all images, and the maps of patches of the first few."""
    return [_answers(found), *(_patches(lens, i) for i, lens in enumerate(found[:MAPS], 1))]


def _answers(found: Sequence[Lens]) -> Plot:
    depth = len(found[0].guesses) - 1
    means = np.mean([[guess.target for guess in lens.guesses] for lens in found], axis=0)
    settled = float(median(lens.settled for lens in found))
    never = sum(lens.settled > depth for lens in found)
    when = "from the start" if settled == 0 else f"after block {number(settled)}"
    return Plot(
        name="lens",
        title="What the model would predict after each block",
        message=(
            f"Over {count(len(found), 'image')} the probability of the final answer is "
            f"{percent(float(means[0]))} before the first block, {percent(float(means[depth // 2]))} after "
            f"block {depth // 2} and {percent(float(means[-1]))} at the end; "
            + (f"the answer is fixed {when} (median)." if never < len(found) else "it is never predicted.")
        ),
        note="A thin line is an image, the thick one their mean. The head was trained on the last block "
        "only, so what it reads earlier is a hint.",
        columns={
            "picture": "text",
            "block": "count",
            "best guess": "text",
            "its probability": "percent",
            "final answer": "text",
            "probability of it": "percent",
            "patches that agree": "count",
        },
        rows=[
            (lens.picture, g.block, g.label, g.probability, lens.label, g.target, g.patches)
            for lens in found
            for g in lens.guesses
        ],
        draw=lambda axes, ink: _lines(found, means, axes, ink),
    )


def _lines(found: Sequence[Lens], means: Float[np.ndarray, "l"], axes: Axes, ink: Ink) -> None:
    for lens in found:
        axes.plot([100 * guess.target for guess in lens.guesses], color=ink.first, linewidth=0.8, alpha=0.55)
    axes.plot(100 * means, color=ink.second, linewidth=2.2, marker="o", markersize=3.5)
    axes.set(xlabel="after block (0: before the first)", ylabel="probability of the answer, %")
    axes.set_ylim(-2, 102)
    axes.xaxis.get_major_locator().set_params(integer=True)


def _patches(lens: Lens, number_: int) -> Plot:
    depths = evenly(len(lens.patches), DEPTHS).tolist()
    last = np.array(lens.patches[-1])
    row, column = divmod(int(last.argmax()), lens.grid[1])
    agree = lens.guesses[-1].patches
    shape = lens.grid[0] / lens.grid[1]
    return Plot(
        name=f"lens-patches-{number_}",
        title=f"Which patches of {printable(lens.picture, 60)} would predict {printable(lens.label, 60)}",
        message=(
            f"After the last block {agree} of {count(last.size, 'patch')}, read alone, would predict "
            f"{printable(lens.label, 60)}; the surest is in row {row + 1}, column {column + 1} "
            f"({percent(float(last.max()))})."
        ),
        columns={
            "block": "count",
            "patches that agree": "count",
            "surest patch": "percent",
            "mean": "percent",
        },
        rows=[
            (guess.block, guess.patches, max(p), sum(p) / len(p))
            for guess, p in zip(lens.guesses, lens.patches, strict=True)
        ],
        draw=lambda axes, ink: tiles(
            axes,
            ink,
            [Tile(np.array(lens.patches[i]).reshape(lens.grid), _depth(i)) for i in depths],
            len(depths),
            (0.0, max(map(max, lens.patches))),
            "probability",
        ),
        width=8.0,
        height=0.35 + 1.0 * shape,
        extra={"grid": lens.grid, "patches": lens.patches},
    )


def _depth(block: int) -> str:
    return f"block {block}" if block else "embedding"
