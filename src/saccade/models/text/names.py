"""Names of text models: seq2seq_attention, transformer_small, gpt_mini, bert_base."""

import re
from dataclasses import replace
from typing import Any, TypeAlias

from saccade.errors import UsageError, did_you_mean
from saccade.models.text.bert import BERT, BERTConfig
from saccade.models.text.gpt import GPT, GPTConfig
from saccade.models.text.seq2seq import Seq2Seq, Seq2SeqConfig
from saccade.models.text.transformer import Captioner, CaptionerConfig, Transformer, TransformerConfig
from saccade.nn.block import BlockStyle

TextConfig: TypeAlias = Seq2SeqConfig | TransformerConfig | CaptionerConfig | GPTConfig | BERTConfig
Text: TypeAlias = Seq2Seq | Transformer | Captioner | GPT | BERT
SIZES = {  # width, depth, heads, hidden
    "mini": (128, 4, 4, 512),
    "small": (256, 3, 8, 512),
    "base": (512, 6, 8, 2048),  # Vaswani et al. 2017, table 3
    "big": (1024, 6, 16, 4096),
}
GPT2 = {  # Radford et al. 2019, table 2
    "": (768, 12, 12, 3072),
    "_medium": (1024, 24, 16, 4096),
    "_large": (1280, 36, 20, 5120),
    "_xl": (1600, 48, 25, 6400),
}
BERTS = {"base": (768, 12, 12, 3072), "large": (1024, 24, 16, 4096)}  # Devlin et al. 2019, section 3
SEQ2SEQ = {
    "rnn": Seq2SeqConfig(cell="rnn", context="start", encoder="backward"),
    "lstm": Seq2SeqConfig(cell="lstm", context="start", encoder="backward"),
    "gru": Seq2SeqConfig(cell="gru", context="every", encoder="backward"),
    "attention": Seq2SeqConfig(cell="gru", context="additive", encoder="both"),
    "luong": Seq2SeqConfig(cell="lstm", context="general", encoder="both", feed=True),
}
EXAMPLES = (
    "seq2seq_rnn", "seq2seq_lstm", "seq2seq_gru", "seq2seq_attention", "seq2seq_luong",
    "transformer_small", "transformer_base", "transformer_big",
    "gpt_mini", "gpt_small", "gpt2", "gpt2_medium", "gpt2_large", "gpt2_xl",
    "bert_mini", "bert_small", "bert_base", "bert_large",
)  # fmt: skip
"""Names for the table of models."""
GRAMMAR = re.compile(
    rf"seq2seq_(?P<seq2seq>{'|'.join(SEQ2SEQ)})"
    rf"|transformer_(?P<transformer>{'|'.join(SIZES)})(?P<pre>_pre)?(?:_(?P<norm>rms|power))?"
    rf"|gpt_(?P<gpt>mini|small)(?:_(?P<context>\d{{1,6}}))?"
    rf"|gpt2(?P<gpt2>{'|'.join(GPT2)})"
    rf"|bert_(?P<bert>mini|small|{'|'.join(BERTS)})"
)


def text_config(name: str, vocabulary: int | None = None, source: int | None = None) -> TextConfig:
    """Read a name into a config.

    Args:
        vocabulary: Size of the output vocabulary; by default the published one.
        source: Size of the input vocabulary of a translation; by default that of the output.
    """
    match = GRAMMAR.fullmatch(name)
    if match is None:
        hint = did_you_mean(name, EXAMPLES, most=3)
        raise UsageError(f"no text model is named {name!r}{hint} (known: {', '.join(EXAMPLES)})")
    made = _read(match)
    words = made.vocabulary if vocabulary is None else vocabulary
    made = replace(made, vocabulary=words)
    if isinstance(made, Seq2SeqConfig | TransformerConfig):
        return replace(made, source=words if source is None else source)
    return made


def _read(match: re.Match[str]) -> Seq2SeqConfig | TransformerConfig | GPTConfig | BERTConfig:
    found = match.groupdict()
    if found["seq2seq"]:
        return SEQ2SEQ[found["seq2seq"]]
    if found["transformer"]:
        placement, kind = "pre" if found["pre"] else "post", found["norm"] or "layer"
        style = BlockStyle(placement=placement, norm=kind, eps=1e-5, dropout=0.1)
        sizes = _sizes(SIZES[found["transformer"]])
        return TransformerConfig(source=8000, vocabulary=8000, tie="target", block=style, **sizes)
    if found["gpt"]:
        context, plain = int(found["context"] or 64), BlockStyle(eps=1e-5)
        return GPTConfig(vocabulary=256, context=context, block=plain, **_sizes(SIZES[found["gpt"]]))
    if found["bert"] in BERTS:
        return BERTConfig(**_sizes(BERTS[found["bert"]]))
    if found["bert"]:  # no pooled output: DDP stops at parameters without a gradient, and no loss reaches it
        return BERTConfig(vocabulary=8000, context=128, pooled=False, **_sizes(SIZES[found["bert"]]))
    return GPTConfig(**_sizes(GPT2[found["gpt2"] or ""]))


def _sizes(row: tuple[int, int, int, int]) -> dict[str, Any]:
    return dict(zip(("width", "depth", "heads", "hidden"), row, strict=True))
