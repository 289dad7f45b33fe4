"""Words as vectors: the table that a model of text reads words in with, asked by the tools of pictures.

Shapes: n words, e numbers a word, v entries of the vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64

from saccade.embedding.analogies import Near, difference, nearest, place
from saccade.embedding.neighbours import neighbours
from saccade.embedding.projection import Map, project
from saccade.errors import UsageError, check_word
from saccade.models.text.seq2seq import Seq2Seq
from saccade.models.text.transformer import EncoderDecoder, Transformer
from saccade.report.plots import Axes, Ink, Plot, drawable
from saccade.text.vocabulary import Vocabulary
from saccade.weights.load_text import Spoken
from saccade.wording import count

SIDES = ("source", "target")
DRAWN = 200
"""Words on the map, those with the lowest numbers: byte pairs are numbered by how often they were met."""
WAYS = {"pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """Whole words of a vocabulary and their vectors; pieces of words and marks are left out."""

    names: list[str]
    numbers: Int64[np.ndarray, "n"]
    """Their numbers in the vocabulary."""
    vectors: Float32[np.ndarray, "n e"]
    entries: int
    """Of the whole vocabulary: as many numbers as a one-hot vector has."""

    def near(self, word: str, top: int = 5) -> list[Near]:
        """The words nearest to one, by the cosine."""
        row = place(self._places(), word)
        return nearest(self.vectors, self.names, self.vectors[row], top, [row])

    def analogy(self, a: str, b: str, c: str, top: int = 5) -> list[Near]:
        """What is to c as b is to a."""
        rows = [place(self._places(), word) for word in (a, b, c)]
        query = difference(*(self.vectors[row] for row in rows))
        return nearest(self.vectors, self.names, query, top, rows)

    def _places(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}


def is_word(vocabulary: Vocabulary, text: str) -> bool:
    """Whether an entry is a word and no piece of one: letters, with a space before them in byte pairs."""
    if vocabulary.kind == "characters":
        return bool(text.strip())
    if vocabulary.kind == "pairs" and not text.startswith(" "):
        return False
    return len(text.strip()) > 1 and text.strip().isalpha()


def table(spoken: Spoken, side: str = "source") -> Float32[np.ndarray, "v e"]:
    """The matrix whose rows are the words: a one-hot vector times it is the word's embedding."""
    module: Any = spoken.module
    if isinstance(module, Seq2Seq):
        weight = (module.encoder if side == "source" else module.decoder).words.weight
    elif isinstance(module, Transformer) and side == "source":
        weight = (module.words or module.decoder.words).table.weight
    else:
        weight = (module.decoder if isinstance(module, EncoderDecoder) else module).words.table.weight
    return weight.detach().float().cpu().numpy()


def words(spoken: Spoken, side: str = "source") -> Words:
    """The words of a model of text; a translation has two languages, of which `side` chooses one."""
    check_word("the side", side, SIDES)
    vocabulary = spoken.reads if side == "source" else spoken.vocabulary
    marks, found, seen = set(vocabulary.marks), list[int](), dict[str, int]()
    for number in range(len(vocabulary)):
        text = vocabulary.word(number)
        if number not in marks and is_word(vocabulary, text) and text.strip() not in seen:
            seen[text.strip()] = number
            found.append(number)
    if not found:
        raise UsageError("the vocabulary has pieces of words only, so there is no word to look at")
    numbers = np.array(found, np.int64)
    return Words(list(seen), numbers, table(spoken, side)[numbers], len(vocabulary))


@dataclass(frozen=True, kw_only=True, slots=True)
class Contrast:
    """What an embedding tells of a word that a one-hot vector does not."""

    numbers: int
    """How many numbers a word is."""
    alike: float
    """The mean cosine of two different words."""
    nearest: float
    """The mean cosine of a word and its nearest."""


def contrast(found: Words) -> dict[str, Contrast]:
    """One-hot vectors against the embedding; any two words are at right angles in the one."""
    near = neighbours(found.vectors, 1)
    x = found.vectors.astype(np.float64)
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    n = len(x)
    total = x.sum(0)
    alike = float((total @ total - n) / (n * (n - 1))) if n > 1 else 0.0
    closest = float(1 - near.distances.mean()) if near.distances.size else 0.0
    return {
        "one-hot": Contrast(numbers=found.entries, alike=0.0, nearest=0.0),
        "embedding": Contrast(numbers=found.vectors.shape[1], alike=alike, nearest=closest),
    }


def mapped(found: Words, way: str = "tsne", most: int = DRAWN) -> tuple[Map, Plot]:
    """The first words on a plane, by name."""
    chosen = found.vectors[:most]
    names, made = found.names[:most], project(chosen, way)
    told = f"{WAYS[made.way]} of {count(len(names), 'word')}"

    def draw(axes: Axes, ink: Ink) -> None:
        x, y = made.points[:, 0], made.points[:, 1]
        axes.scatter(x, y, s=6, c=ink.first, linewidths=0)
        for i, name in enumerate(names):
            axes.annotate(drawable(name, f"({i + 1})", 16), (x[i], y[i]), fontsize=7, xytext=(2, 2),
                          textcoords="offset points")  # fmt: skip
        axes.set_xticks([])
        axes.set_yticks([])

    plot = Plot(
        name="map",
        title=f"Map of the words ({WAYS[made.way]})",
        message=f"{told}{f'; {made.note}' if made.note else ''}.",
        note="Near words are alike to the model; distances of far groups mean little, the axes nothing.",
        columns={"word": "text", "x": "number", "y": "number"},
        rows=[(name, float(x), float(y)) for name, (x, y) in zip(names, made.points, strict=True)],
        draw=draw,
        width=10.0,
        height=8.0,
        extra={"way": made.way},
    )
    return made, plot


def one_hot(numbers: Int64[np.ndarray, "n"], entries: int) -> Float32[np.ndarray, "n v"]:
    """Each word as a row of zeros with a single one."""
    return torch.nn.functional.one_hot(torch.from_numpy(numbers), entries).float().numpy()
