"""Transformer, GPT and BERT compared: the tables of docs/transformer-gpt-bert.md, from the real models.

    python benchmarks/family.py            # write them into the page

Sizes and parameters are counted; what a place may see is measured: a word, or a patch, is exchanged, and the
places whose answers change are those that see it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from einops import repeat
from torch import Tensor, nn

from saccade.models.build import blank, build, undrawn
from saccade.models.cost import parameters
from saccade.models.names import config, is_text
from saccade.models.text.bert import BERT
from saccade.models.text.decoding import NextToken
from saccade.models.text.names import text_config
from saccade.models.vit import ViT
from saccade.nn.block import Block
from saccade.nn.text.decoder_block import DecoderBlock
from saccade.tasks.language.loss import hide

PAGE = Path(__file__).parents[1] / "docs" / "transformer-gpt-bert.md"
BEGIN, END = "<!-- made by benchmarks/family.py -->", "<!-- end -->"
N = 5
TEXT = 128
SMALL = {"width": 32, "depth": 2, "heads": 4, "hidden": 64}
WORDS = 50
PATCH = 8
NAMES = {"Transformer": "transformer_base", "GPT": "gpt2", "BERT": "bert_base", "ViT": "vit_b16"}
ITSELF = {
    "Transformer": "written to written", "GPT": "text to text", "BERT": "text to text",
    "ViT": "patches to patches",
}  # fmt: skip
"""The attention of what answers to itself."""
BENDS = {"ReLU": (F.relu,), "GELU": (F.gelu, lambda x: F.gelu(x, approximate="tanh"))}
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


def _small(name: str) -> Any:
    """A model of the same kind, small enough to be asked."""
    made: Any = text_config(name, WORDS) if is_text(name) else config(name)
    if is_text(name):
        return build(replace(made, **SMALL)).eval()
    return ViT(replace(made, image=(PATCH, N * PATCH), patch=PATCH, **SMALL)).eval()


def _picture(tokens: Tensor) -> Tensor:
    """A row of patches, each as grey as its number."""
    return repeat(tokens / WORDS, "b n -> b c p (n q)", c=3, p=PATCH, q=PATCH)


def sights() -> Iterator[tuple[str, str, Seen]]:
    """Every kind of attention: whose, from where to where, and what is seen."""
    torch.manual_seed(0)
    transformer, gpt, bert, vit = map(_small, NAMES.values())
    source, target = torch.randint(5, 40, (2, 1, N))
    yield "Transformer", "source to source", measured(lambda x: transformer.encode(x))
    yield "Transformer", "written to written", measured(lambda x: transformer(source, None, x))
    yield "Transformer", "written to source", measured(lambda x: transformer(x, None, target))
    yield "GPT", "text to text", measured(lambda x: gpt(x))
    yield "BERT", "text to text", measured(lambda x: bert(x))
    yield "ViT", "patches to patches", measured(lambda x: vit.encode(_picture(x))[:, vit.config.front :])


def _causal(seen: Seen) -> bool:
    return seen == torch.ones(N, N).tril().bool().tolist()


def named(seen: Seen) -> str:
    """The mask in a word."""
    if all(map(all, seen)):
        return "none: all see all"
    if _causal(seen):
        return "causal: itself and the words before"
    raise AssertionError(seen)


def drawn(seen: Seen) -> str:
    """A row for each place that looks; a dot is a place that it may not see."""
    return "\n".join(" ".join("x" if each else "." for each in row) for row in seen)


def _stacks(module: nn.Module, seen: Seen) -> str:
    """What looks at a source decodes it; without one, the mask tells."""
    if any(isinstance(part, DecoderBlock) for part in module.modules()):
        return "encoder and decoder"
    return "decoder, without a source" if _causal(seen) else "encoder"


def _bend(block: Any) -> str:
    """The name of the function between a block's linear layers, by what it gives."""
    x = torch.linspace(-4, 4, 33)
    bent = block.mlp.bend(x.clone())
    return next(name for name, known in BENDS.items() if any(torch.equal(bent, f(x)) for f in known))


def _positions(module: Any) -> str:
    words = getattr(module, "words", None)
    kind = module.config.position if words is None else words.kind
    return f"{kind} and segments" if hasattr(module, "segment") else kind


def _asked(name: str) -> str:
    """Words that a text of 128 asks for."""
    small, text = _small(name), torch.randint(5, 40, (1, TEXT))
    if isinstance(small, ViT):
        return "one answer per image"
    if isinstance(small, BERT):
        inner = text[:, 1:]  # the first place is the beginning mark's
        return str(int(hide(inner, torch.zeros(1).long(), 0, torch.arange(5, WORDS), 4, 0).places.sum()))
    with torch.no_grad():
        given = (text,) if name.startswith("gpt") else (text, None, text)
        return str(small(*given).shape[1])


def facts(name: str, seen: Seen) -> dict[str, str]:
    """A column of the table, from the built model; `seen` is what it sees of what it reads."""
    module: Any = undrawn(lambda: build(text_config(name))) if is_text(name) else blank(config(name))
    made: Any = module.config
    blocks = {
        f"{len(found)} {word}": found
        for kind, word in ((Block, "encoder"), (DecoderBlock, "decoder"))
        if (found := [part for part in module.modules() if isinstance(part, kind)])
    }
    block: Any = next(iter(blocks.values()))[0]
    tables = {key: p for key, p in module.named_parameters() if key.endswith("table.weight")}
    words = sum(p.numel() for p in tables.values()) or parameters(module.patches)
    share = f"{words / parameters(module):.1%}"
    position, heads = _positions(module), block.attention.heads
    return {
        "name here": f"`{name}`",
        "stacks": _stacks(module, seen),
        "blocks": " + ".join(blocks) if len(blocks) > 1 else next(iter(blocks)).split()[0],
        "width, heads, hidden": f"{block.mlp.up.in_features}, {heads}, {block.mlp.up.out_features}",
        "norms": "post" if isinstance(block.norm1, nn.Identity) else "pre",
        "bend": _bend(block),
        "positions": position,
        "vocabulary": f"{made.vocabulary:,}" if tables else "none: patches are projected",
        "longest text": _longest(made, position),
        "parameters": f"{parameters(module):,}",
        "of these words": share if tables else f"{share} (patches)",
        "words asked for in a text of 128": _asked(name),
        "an answer takes": "a step a word" if isinstance(module, NextToken) else "one pass",
    }


def _longest(made: Any, position: str) -> str:
    if position == "sinusoidal":
        return "any"
    return f"{made.context:,}" if hasattr(made, "context") else f"{made.grid[0] * made.grid[1]} patches"


TOLD = {
    "learns from": ("sentence pairs", "plain text", "plain text", "labelled images"),
    "objective": ("each next word of the target", "each next word", "words that were hidden", "the class"),
    "command": ("`saccade translate`", "`saccade complete`", "`saccade fill`", "`saccade predict`"),
}


def tables() -> str:
    """Both tables, as they stand in the page."""
    seen = list(sights())
    own = {whose: matrix for whose, where, matrix in seen if where == ITSELF[whose]}
    found = [facts(name, own[whose]) for whose, name in NAMES.items()]
    rows = [(key, *(column[key] for column in found)) for key in found[0]]
    for kind in dict.fromkeys(where for _, where, _ in seen):
        cells = {whose: named(matrix) for whose, where, matrix in seen if where == kind}
        rows.append((f"mask, {kind}", *(cells.get(whose, "–") for whose in NAMES)))
    rows += [(key, *said) for key, said in TOLD.items()]
    lines = [f"| | {' | '.join(NAMES)} |", "|---|" + "---|" * len(NAMES)]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    parts = [
        "\n".join(lines),
        "## What each place may see",
        "Rows look, columns are looked at; `x` may be seen.",
    ]
    parts += [f"{whose}, {where}:\n\n```\n{drawn(matrix)}\n```" for whose, where, matrix in seen]
    return "\n\n".join(parts)


def page(text: str) -> str:
    """The page with fresh tables."""
    first, last = text.index(BEGIN) + len(BEGIN), text.index(END)
    return f"{text[:first]}\n\n{tables()}\n\n{text[last:]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
