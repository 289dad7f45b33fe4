"""Tokenizers from the files that Hugging Face's models bring, through the `tokenizers` library."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from saccade.errors import ModelError, UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END = "<|endoftext|>"


def make(found: Mapping[str, bytes]) -> "Tokenizer":
    """From tokenizer.json; else from GPT-2's vocab.json and merges.txt, or from BERT's vocab.txt."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UsageError(
            "the package tokenizers is not installed; get it with `pip install 'saccade[text]'`"
        ) from error
    try:
        if "tokenizer.json" in found:
            return Tokenizer.from_str(found["tokenizer.json"].decode())
        if {"vocab.json", "merges.txt"} <= found.keys():
            return _pairs(json.loads(found["vocab.json"]), found["merges.txt"].decode())
        if "vocab.txt" in found:
            settings = json.loads(found.get("tokenizer_config.json", b"{}"))
            return _word_pieces(found["vocab.txt"].decode(), bool(settings.get("do_lower_case", True)))
    except Exception as error:  # the library raises bare Exceptions
        raise ModelError(f"the tokenizer's files cannot be read ({error}); download them again") from error
    names = ", ".join(found) or "none"
    raise ModelError(
        f"the model has no tokenizer (files found: {names}); expected tokenizer.json, vocab.json with "
        "merges.txt, or vocab.txt beside it"
    )


def _pairs(vocabulary: dict[str, int], merges: str) -> "Tokenizer":
    """GPT-2: pairs of bytes, merged as often as the list says (Sennrich et al. 2016, on bytes)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    lines = [line for line in merges.splitlines() if line and not line.startswith("#version")]
    pairs: list[Any] = [tuple(line.split(" ")) for line in lines]
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    if END in vocabulary:
        made.add_special_tokens([END])
    return made


def _word_pieces(lines: str, lower: bool) -> "Tokenizer":
    """BERT: the longest known pieces of each word (Wu et al. 2016), framed by [CLS] and [SEP]."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    vocabulary = {line: i for i, line in enumerate(lines.splitlines())}
    made = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    made.normalizer = normalizers.BertNormalizer(lowercase=lower)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.BertProcessing(
        ("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"])
    )
    marks = [word for word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if word in vocabulary]
    made.add_special_tokens(marks)
    return made
