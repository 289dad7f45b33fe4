"""Tokenizers from the files that Hugging Face's models bring, through the `tokenizers` library."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from saccade.errors import ModelError, UsageError
from saccade.text.vocabulary import MARKS, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END = "<|endoftext|>"
FRAME = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True, slots=True, eq=False)
class Pieces(Vocabulary):
    """The vocabulary of somebody else's model: GPT-2 has one mark for both ends, BERT frames its texts."""

    def _mark(self, *words: str) -> int:
        found = (self.tokenizer.token_to_id(word) for word in words)
        return next((number for number in found if number is not None), -1)

    @property
    def bos(self) -> int:
        return self._mark("[CLS]", "<s>", END)

    @property
    def eos(self) -> int:
        return self._mark("[SEP]", "</s>", END)

    @property
    def pad(self) -> int:
        return self._mark("[PAD]", "<pad>")

    @property
    def mask(self) -> int:
        return self._mark("[MASK]", "<mask>")

    @property
    def frame(self) -> tuple[list[int], list[int]]:
        return [n for n in [self.bos] if n >= 0], [n for n in [self.eos] if n >= 0]

    @property
    def marks(self) -> list[int]:
        added = self.tokenizer.get_added_tokens_decoder()
        return sorted(number for number, token in added.items() if token.special)

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return self._plain(texts)

    def decode(self, numbers: Iterable[int]) -> str:
        return self.tokenizer.decode([int(n) for n in numbers], skip_special_tokens=True)

    def word(self, number: int) -> str:
        if self.kind == "words":  # the decoder would hide that ##ing goes on a word
            return self.tokenizer.id_to_token(number) or ""
        return self.tokenizer.decode([number], skip_special_tokens=False)


def vocabulary(found: Mapping[str, bytes]) -> Vocabulary:
    """The vocabulary that the files of a tokenizer make: ours, or somebody else's."""
    made = make(found)
    pairs = type(made.model).__name__ == "BPE"
    if tuple(made.id_to_token(number) for number in range(len(MARKS))) == MARKS:
        if pairs:
            made.pre_tokenizer.add_prefix_space = False  # ours puts it; what was written for others says True
        return Vocabulary(made, "pairs" if pairs else "characters")
    return Pieces(made, "pairs" if pairs else "words")


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
            made = Tokenizer.from_str(found["tokenizer.json"].decode())
            made.no_padding()  # some are published with a length to cut and to fill up to
            made.no_truncation()
            return made
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
    marks = [word for word in FRAME if word in vocabulary]
    made.add_special_tokens(marks)
    return made
