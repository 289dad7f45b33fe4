"""Small models of text, as modules and as folders; some know a language of a few words."""

from functools import cache
from pathlib import Path

import torch

from saccade.models.text.bert import BERT, BERTConfig
from saccade.models.text.gpt import GPT, GPTConfig
from saccade.models.text.seq2seq import Seq2Seq, Seq2SeqConfig
from saccade.models.text.transformer import Transformer, TransformerConfig
from saccade.nn.block import BlockStyle
from saccade.text.model import TextFolder, save_text
from saccade.text.vocabulary import learn

TEXT = "the cat sat on the mat and the dog ran to the log. "
WORDS = learn([TEXT.strip()] * 9)
COUNT = len(WORDS)
SIZES = {"width": 24, "depth": 2, "heads": 3, "hidden": 40, "context": 16, "vocabulary": COUNT}
KINDS = {
    "seq2seq": lambda: Seq2Seq(
        Seq2SeqConfig(source=COUNT, vocabulary=COUNT, width=16, hidden=24, context="additive", encoder="both")
    ),
    "luong": lambda: Seq2Seq(
        Seq2SeqConfig(
            source=COUNT, vocabulary=COUNT, width=16, hidden=24, context="general", feed=True, layers=2
        )
    ),
    "vector": lambda: Seq2Seq(
        Seq2SeqConfig(source=COUNT, vocabulary=COUNT, width=16, hidden=24, cell="lstm")
    ),
    "transformer": lambda: Transformer(TransformerConfig(source=COUNT, tie="target", **SIZES)),
    "gpt": lambda: GPT(GPTConfig(**SIZES, block=BlockStyle(eps=1e-5))),
    "bert": lambda: BERT(BERTConfig(**SIZES, pooled=False)),
}


@cache
def speaker(kind: str) -> TextFolder:
    """A model that has learnt nothing; its numbers are large enough for answers to differ."""
    torch.manual_seed(0)
    module = KINDS[kind]().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2)
    task = "language" if kind in ("gpt", "bert") else "translate"
    return TextFolder(module, WORDS, sides=("de", "en"), task=task)


def folder(kind: str, place: Path) -> Path:
    """The same on disk."""
    save_text(place / kind, speaker(kind))
    return place / kind
