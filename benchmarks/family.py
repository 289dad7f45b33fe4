"""Transformer, GPT and BERT compared: the tables of docs/transformer-gpt-bert.md, from the real models.

    python benchmarks/family.py            # write them into the page

Sizes and parameters are counted; what a place may see is measured: a word is exchanged, and the places whose
answers change are those that see it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saccade.models.blank import blank, undrawn
from saccade.models.cost import parameters
from saccade.models.names import config as picture_config
from saccade.models.text import build, config
from saccade.tasks.language import HIDDEN

PAGE = Path(__file__).parents[1] / "docs" / "transformer-gpt-bert.md"
BEGIN, END = "<!-- made by benchmarks/family.py -->", "<!-- end -->"
N = 5
TEXT = 128
SMALL = {"width": 32, "depth": 2, "heads": 4, "hidden": 64, "vocabulary": 50}
NAMES = {"Transformer": "transformer_base", "GPT": "gpt2", "BERT": "bert_base", "ViT": "vit_b16"}
Seen = list[list[bool]]


def measured(answer: Callable[[Tensor], Tensor], n: int = N) -> Seen:
    """Row i tells which of n words change the answer at place i."""
    torch.manual_seed(0)
    tokens = torch.randint(5, 40, (1, n))
    with torch.no_grad():
        before = answer(tokens)
        columns = []
        for j in range(n):
            other = tokens.clone()
            other[0, j] = 41 + j
            columns.append((answer(other) != before).any(-1)[0])
    return torch.stack(columns, dim=1).tolist()


def _small(name: str, **changes: int) -> Any:
    made: Any = config(name)
    return build(replace(made, **SMALL, **changes)).eval()


def sights() -> Iterator[tuple[str, str, Seen]]:
    """Every kind of attention: whose, from where to where, and what is seen."""
    torch.manual_seed(0)
    transformer, gpt, bert = _small("transformer_base", source=50), _small("gpt2"), _small("bert_base")
    source, target = torch.randint(5, 40, (2, 1, N))
    yield "Transformer", "source to source", measured(lambda x: transformer.encode(x))
    yield "Transformer", "written to written", measured(lambda x: transformer(source, None, x))
    yield "Transformer", "written to source", measured(lambda x: transformer(x, None, target))
    yield "GPT", "text to text", measured(lambda x: gpt(x))
    yield "BERT", "text to text", measured(lambda x: bert(x))


def named(seen: Seen) -> str:
    """The mask in a word."""
    if all(map(all, seen)):
        return "none: all see all"
    if seen == torch.ones(N, N).tril().bool().tolist():
        return "causal: itself and the words before"
    raise AssertionError(seen)


def drawn(seen: Seen) -> str:
    """A row for each place that looks; a dot is a place that it may not see."""
    return "\n".join(" ".join("x" if each else "." for each in row) for row in seen)


def _facts(name: str) -> dict[str, str]:
    """A column of the table."""
    if name.startswith("vit"):
        vit: Any = picture_config(name)
        module: Any = blank(vit)
        words = parameters(module.patches)
        return {
            "name here": f"`{name}`", "blocks": str(vit.depth), "width, heads, hidden": _sizes(vit),
            "norms": vit.block.placement, "bend": "GELU", "positions": vit.position,
            "vocabulary": "none: patches are projected",
            "longest text": f"{vit.grid[0] * vit.grid[1]} patches",
            "parameters": f"{parameters(module):,}",
            "of these words": f"{words / parameters(module):.1%} (patches)",
        }  # fmt: skip
    made: Any = config(name)
    module = undrawn(lambda: build(made))
    translates = name.startswith("transformer")
    tables = [p for key, p in module.named_parameters() if key.endswith("table.weight")]
    words = sum(p.numel() for p in tables)
    bend = getattr(made, "bend", "gelu")
    return {
        "name here": f"`{name}`",
        "blocks": f"{made.depth} encoder + {made.depth} decoder" if translates else str(made.depth),
        "width, heads, hidden": _sizes(made),
        "norms": made.block.placement,
        "bend": {"relu": "ReLU", "gelu": "GELU"}[bend],
        "positions": getattr(made, "position", "learned and segments"),
        "vocabulary": f"{made.vocabulary:,}",
        "longest text": "any" if getattr(made, "position", "") == "sinusoidal" else f"{made.context:,}",
        "parameters": f"{parameters(module):,}",
        "of these words": f"{words / parameters(module):.1%}",
    }


def _sizes(made: Any) -> str:
    return f"{made.width}, {made.heads}, {made.hidden}"


TOLD = {
    "stacks": ("encoder and decoder", "decoder, without a source", "encoder", "encoder"),
    "learns from": ("sentence pairs", "plain text", "plain text", "labelled pictures"),
    "objective": ("each next word of the target", "each next word", "words that were hidden", "the class"),
    "words asked for in a text of 128": (
        str(TEXT), str(TEXT), str(round(HIDDEN * TEXT)), "one answer a picture",
    ),
    "an answer takes": ("a step a word", "a step a word", "one pass", "one pass"),
    "command": ("`saccade translate`", "`saccade complete`", "`saccade fill`", "`saccade predict`"),
}  # fmt: skip


def tables() -> str:
    """Both tables, as they stand in the page."""
    facts = [_facts(name) for name in NAMES.values()]
    rows = [(key, *(column[key] for column in facts)) for key in facts[0]]
    rows[1:1] = [("stacks", *TOLD["stacks"])]
    seen = list(sights())
    for kind in dict.fromkeys(where for _, where, _ in seen):
        cells = {whose: named(matrix) for whose, where, matrix in seen if where == kind}
        rows.append((f"mask, {kind}", *(cells.get(whose, "none: all see all" if _is_vit(whose, kind) else "–")
                                        for whose in NAMES)))  # fmt: skip
    rows += [(key, *said) for key, said in TOLD.items() if key != "stacks"]
    lines = [f"| | {' | '.join(NAMES)} |", "|---|" + "---|" * len(NAMES)]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    parts = [
        "\n".join(lines),
        "## What each place may see",
        "Rows look, columns are looked at; `x` may be seen.",
    ]
    parts += [f"{whose}, {where}:\n\n```\n{drawn(matrix)}\n```" for whose, where, matrix in seen]
    return "\n\n".join(parts)


def _is_vit(whose: str, kind: str) -> bool:
    return whose == "ViT" and kind == "text to text"


def page(text: str) -> str:
    """The page with fresh tables."""
    first, last = text.index(BEGIN) + len(BEGIN), text.index(END)
    return f"{text[:first]}\n\n{tables()}\n\n{text[last:]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
