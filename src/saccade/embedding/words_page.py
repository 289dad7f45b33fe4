"""The words of a model on disk: their vectors, a map, their neighbours, and one page about them."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from saccade.embedding.neighbours import neighbours
from saccade.embedding.words import Words, contrast, mapped
from saccade.files.atomic import write_text
from saccade.report.html import Html, figure, joined, page, section, table, tag
from saccade.report.plots import DARK, cells, render, save
from saccade.weights.formats.tensors import write_safetensors
from saccade.wording import count

NEAR, LISTED = 5, 60
PARTS = {"one-hot": "One-hot against embedding", "near": "Nearest words", "map": "Map"}


def write(folder: Path, found: Words, way: str, title: str) -> Path:
    """Write features.safetensors, words.txt, report.json, map.png, map.json and words.html, the page."""
    near = neighbours(found.vectors, NEAR)
    _, plot = mapped(found, way)
    light = save(plot, folder)
    vectors = torch.from_numpy(np.ascontiguousarray(found.vectors))
    write_safetensors(folder / "features.safetensors", {"features": vectors}, {"format": "pt"})
    write_text(folder / "words.txt", "".join(f"{name}\n" for name in found.names))
    told = {name: asdict(each) for name, each in contrast(found).items()}
    report = {
        "words": len(found.names),
        "contrast": told,
        "nearest": {
            found.names[i]: [found.names[j] for j in row] for i, row in enumerate(near.places.tolist())
        },
    }
    write_text(
        folder / "report.json", json.dumps(report, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    )
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
            tag(
                "p",
                f"{count(len(found.names), 'whole word')} of {found.entries:,} entries of the vocabulary.",
            ),
            section("one-hot", PARTS["one-hot"], _contrast(found)),
            section(
                "near",
                PARTS["near"],
                table("nearest", "By the cosine, which is in brackets", list(heads), cells(heads, rows)),
            ),
            section("map", PARTS["map"], figure(plot, light, render(plot, DARK))),
        ]
    )
    write_text(folder / "words.html", page(title, body, PARTS))
    return folder / "words.html"


def _contrast(found: Words) -> Html:
    heads = {
        "": "text",
        "numbers a word": "count",
        "cosine of two words": "number",
        "of the nearest": "number",
    }
    rows = [(name, each.numbers, each.alike, each.nearest) for name, each in contrast(found).items()]
    said = (
        "A one-hot vector says which word it is and nothing more: any two are at right angles. Times the "
        "table of the model it becomes the embedding, in which words of like use come near each other."
    )
    return joined([tag("p", said), table("contrast", "Mean cosines", list(heads), cells(heads, rows))])
