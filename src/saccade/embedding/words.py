"""Word vectors: the embedding table of a text model, its neighbours, its map, and a page about them.

Shapes: n words, e numbers per word, v entries of the vocabulary.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64

from saccade.embedding.analogies import Near, difference, nearest, row_of
from saccade.embedding.neighbours import neighbours
from saccade.embedding.projection import WAYS, Projection, project
from saccade.errors import UsageError, check_word
from saccade.files.atomic import write_text
from saccade.files.strict_json import write_json
from saccade.models.text.seq2seq import Seq2Seq
from saccade.models.text.transformer import EncoderDecoder, Transformer
from saccade.report import html
from saccade.report.html import Html, figure, joined, section, tag
from saccade.report.plots import DARK, Axes, Ink, Plot, cells, drawable, render, save
from saccade.text.model import TextFolder
from saccade.text.vocabulary import Vocabulary
from saccade.weights.formats.tensors import write_safetensors
from saccade.wording import count

SIDES = ("source", "target")
DRAWN = 200
"""Words on the map, those with the lowest numbers: byte pairs are numbered by frequency."""
NEAR, LISTED = 5, 60
PARTS = {"one-hot": "One-hot against embedding", "near": "Nearest words", "map": "Map"}


@dataclass(frozen=True, slots=True, eq=False)
class WordVectors:
    """Whole words of a vocabulary and their vectors, without pieces of words and special tokens."""

    names: list[str]
    numbers: Int64[np.ndarray, "n"]
    """Their numbers in the vocabulary."""
    vectors: Float32[np.ndarray, "n e"]
    entries: int
    """Size of the whole vocabulary, the length of a one-hot vector."""

    def near(self, word: str, top: int = 5) -> list[Near]:
        """Return the words nearest to one by cosine."""
        row = row_of(self._rows(), word)
        return nearest(self.vectors, self.names, self.vectors[row], top, [row])

    def analogy(self, a: str, b: str, c: str, top: int = 5) -> list[Near]:
        """Return what is to c as b is to a."""
        rows = [row_of(self._rows(), word) for word in (a, b, c)]
        query = difference(*(self.vectors[row] for row in rows))
        return nearest(self.vectors, self.names, query, top, rows)

    def _rows(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}


def is_word(vocabulary: Vocabulary, text: str) -> bool:
    """Whether an entry is a whole word: letters, with a space before them in byte pairs."""
    if vocabulary.kind == "characters":
        return bool(text.strip())
    if vocabulary.kind == "pairs" and not text.startswith(" "):
        return False
    return len(text.strip()) > 1 and text.strip().isalpha()


def embedding_table(model: TextFolder, side: str = "source") -> Float32[np.ndarray, "v e"]:
    """Return the matrix whose rows are the words: a one-hot vector times it is the word's embedding."""
    module: Any = model.module
    if isinstance(module, Seq2Seq):
        weight = (module.encoder if side == "source" else module.decoder).words.weight
    elif isinstance(module, Transformer) and side == "source":
        weight = (module.words or module.decoder.words).table.weight
    else:
        weight = (module.decoder if isinstance(module, EncoderDecoder) else module).words.table.weight
    return weight.detach().float().cpu().numpy()


def word_vectors(model: TextFolder, side: str = "source") -> WordVectors:
    """Return the words of a text model; `side` chooses the language of a translator."""
    check_word("the side", side, SIDES)
    vocabulary = model.reads if side == "source" else model.vocabulary
    marks, found, seen = set(vocabulary.marks), list[int](), dict[str, int]()
    for number in range(len(vocabulary)):
        text = vocabulary.word(number)
        if number not in marks and is_word(vocabulary, text) and text.strip() not in seen:
            seen[text.strip()] = number
            found.append(number)
    if not found:
        raise UsageError("the vocabulary contains only pieces of words; expected at least one whole word")
    numbers = np.array(found, np.int64)
    return WordVectors(list(seen), numbers, embedding_table(model, side)[numbers], len(vocabulary))


@dataclass(frozen=True, kw_only=True, slots=True)
class Contrast:
    """Cosines of words under one representation."""

    numbers: int
    """Numbers per word."""
    alike: float
    """Mean cosine of two different words."""
    nearest: float
    """Mean cosine of a word and its nearest."""


def contrast(found: WordVectors) -> dict[str, Contrast]:
    """Compare one-hot vectors, of which any two are orthogonal, with the embedding."""
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


def word_map(found: WordVectors, way: str = "tsne", most: int = DRAWN) -> tuple[Projection, Plot]:
    """Project the first words onto a plane and plot them."""
    chosen = found.vectors[:most]
    names, made = found.names[:most], project(chosen, way)

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
        message=f"{WAYS[made.way]} of {count(len(names), 'word')}{f'; {made.note}' if made.note else ''}.",
        note="Near words are similar to the model; distances between far groups mean little, axes nothing.",
        columns={"word": "text", "x": "number", "y": "number"},
        rows=[(name, float(x), float(y)) for name, (x, y) in zip(names, made.points, strict=True)],
        draw=draw,
        width=10.0,
        height=8.0,
        extra={"way": made.way},
    )
    return made, plot


def one_hot(numbers: Int64[np.ndarray, "n"], entries: int) -> Float32[np.ndarray, "n v"]:
    """Return each word as a row of zeros with a single one."""
    return torch.nn.functional.one_hot(torch.from_numpy(numbers), entries).float().numpy()


def write_words(folder: Path, found: WordVectors, way: str, title: str) -> Path:
    """Write features.safetensors, words.txt, report.json, map.png, map.json and words.html, the page."""
    near = neighbours(found.vectors, NEAR)
    _, plot = word_map(found, way)
    light = save(plot, folder)
    vectors = torch.from_numpy(np.ascontiguousarray(found.vectors))
    write_safetensors(folder / "features.safetensors", {"features": vectors}, {"format": "pt"})
    write_text(folder / "words.txt", "".join(f"{name}\n" for name in found.names))
    report = {
        "words": len(found.names),
        "contrast": {name: asdict(each) for name, each in contrast(found).items()},
        "nearest": {
            found.names[i]: [found.names[j] for j in row] for i, row in enumerate(near.places.tolist())
        },
    }
    write_json(folder / "report.json", report, indent=1, finite=True)
    heads = {"word": "text", **{f"{i + 1}.": "text" for i in range(near.places.shape[1])}}
    rows = [
        (found.names[i], *(f"{found.names[j]} ({1 - d:.2f})" for j, d in zip(places, distances, strict=True)))
        for i, (places, distances) in enumerate(
            zip(near.places[:LISTED].tolist(), near.distances[:LISTED].tolist(), strict=True)
        )
    ]
    body = joined(
        [
            tag("h1", title),
            tag("p", f"{count(len(found.names), 'whole word')} of {found.entries:,} vocabulary entries."),
            section("one-hot", PARTS["one-hot"], _contrast(found)),
            section(
                "near",
                PARTS["near"],
                html.table("nearest", "By cosine (in brackets)", list(heads), cells(heads, rows)),
            ),
            section("map", PARTS["map"], figure(plot, light, render(plot, DARK))),
        ]
    )
    write_text(folder / "words.html", html.page(title, body, PARTS))
    return folder / "words.html"


def _contrast(found: WordVectors) -> Html:
    heads = {
        "": "text",
        "numbers per word": "count",
        "cosine of two words": "number",
        "of nearest words": "number",
    }
    rows = [(name, each.numbers, each.alike, each.nearest) for name, each in contrast(found).items()]
    said = (
        "A one-hot vector only says which word it is: any two are orthogonal. Multiplied by the "
        "model's table it becomes the embedding, in which words that are used alike are close together."
    )
    return joined([tag("p", said), html.table("contrast", "Mean cosines", list(heads), cells(heads, rows))])
