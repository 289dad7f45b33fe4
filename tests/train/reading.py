"""Sentence pairs and a text so small that a run on them takes seconds."""

import hashlib
import random
from dataclasses import replace

import torch

from saccade.models.build import build
from saccade.models.text.names import text_config
from saccade.text.model import TextFolder, save_text
from saccade.text.vocabulary import learn

ANIMALS = {
    "cat": "Katze", "dog": "Hund", "cow": "Kuh", "pig": "Schwein",
    "hen": "Henne", "fox": "Fuchs", "owl": "Eule", "bee": "Biene",
}  # fmt: skip
TRANSLATE = [
    "task=translate",
    "budget.epochs=2",
    "budget.batch=16",
    "budget.save=0",
    "optim.lr=1e-2",
    "optim.ema=0.9",
    "val=0.2",
]
LANGUAGE = ["budget.steps=6", "budget.score=3", "budget.batch=4", "budget.save=0", "optim.ema=0.9"]
MODELS = {"translate": "small", "language": "gpt_mini_16"}
DATA = {"translate": "pairs.tsv", "language": "book.txt"}
RECIPES = {"translate": TRANSLATE, "language": LANGUAGE}


def write(folder):
    """pairs.tsv, book.txt, and small: a translator that has learnt nothing but its words."""
    draw, rows, lines = random.Random(0), ["de\ten"], []
    for _ in range(60):
        words = draw.choices(list(ANIMALS), k=draw.randint(2, 5))
        rows.append(" ".join(ANIMALS[word] for word in words) + "\t" + " ".join(words))
        lines.append(f"The {words[0]} sees the {words[1]}.")
    (folder / "pairs.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / "book.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = learn([" ".join([*ANIMALS, *ANIMALS.values()])] * 9, size=300)
    torch.manual_seed(0)
    made = replace(text_config("seq2seq_attention", len(words)), width=16, hidden=24)
    save_text(folder / "small", TextFolder(build(made), words))
    return folder


def proof(folder):
    """Hashes of all that must be the same: weights, running mean, optimiser, results, the model kept."""
    last = sorted((folder / "checkpoints").glob("step-*"))[-1]
    files = [*sorted(last.glob("*.safetensors")), last / "state.json", folder / "results.csv"]
    files += [folder / name for name in ("model.safetensors", "model.json", "tokenizer.json")]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
