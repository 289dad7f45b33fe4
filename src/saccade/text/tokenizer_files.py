"""Tokenizers from the files of Hugging Face's models, through the `tokenizers` library."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from tempfile import TemporaryFile
from threading import RLock
from typing import TYPE_CHECKING, Any

from saccade.errors import ModelError, SaccadeError
from saccade.files.paths import Flaw
from saccade.files.strict_json import parse_json
from saccade.text.tokenizer_json import check_model, examine
from saccade.text.vocabulary import FILE, MARKS, Vocabulary, is_panic, library
from saccade.wording import printable

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END = "<|endoftext|>"
SAMPLES = (
    "The quick brown fox, 1,234 na\u00efve \u6c49\u5b57 \N{SLIGHTLY SMILING FACE}\n\t <b> x",
    "a" * 60 + "!",
    " " * 60,
    "",
)
"""Texts that a tokenizer must encode before it is used."""
_LOCK = RLock()
_PANIC = b"\nthread '"
"""The start of what Rust prints on a panic."""
FRAME = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True, slots=True, eq=False)
class Pieces(Vocabulary):
    """The vocabulary of a third-party model: GPT-2 has one mark for both ends, BERT frames its texts."""

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
        return self._text([int(n) for n in numbers], marks=False)

    def word(self, number: int) -> str:
        if self.kind == "words":  # the decoder would hide that ##ing continues a word
            return self.tokenizer.id_to_token(number) or ""
        return self._text([number])


@contextmanager
def without_panic_output() -> Iterator[None]:
    """Suppress what a panic prints on standard error; other output still appears."""
    with _LOCK:
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.flush()
        try:
            before = os.dup(2)
        except OSError:  # standard error is closed
            yield
            return
        with _buffer() as buffer:
            os.dup2(buffer, 2)
            panicked = False
            try:
                yield
            except BaseException as error:
                panicked = is_panic(error)
                raise
            finally:
                os.dup2(before, 2)
                os.close(before)
                _print_rest(buffer, panicked)


@contextmanager
def _buffer() -> Iterator[int]:
    """Yield an unnamed file, in memory where the system supports it."""
    if hasattr(os, "memfd_create"):
        buffer = os.memfd_create("stderr")
        try:
            yield buffer
        finally:
            os.close(buffer)
        return
    with TemporaryFile() as file:
        yield file.fileno()


def _print_rest(buffer: int, panicked: bool) -> None:
    printed = os.pread(buffer, os.fstat(buffer).st_size, 0)
    kept = (b"\n" + printed).partition(_PANIC)[0][1:] if panicked else printed
    while kept:
        try:
            kept = kept[os.write(2, kept) :]
        except OSError:
            return


def vocabulary(found: Mapping[str, bytes]) -> Vocabulary:
    """Read the files of a tokenizer, saccade's or another's, into a vocabulary."""
    made = make(found)
    kind, split = type(made.model).__name__, type(made.pre_tokenizer).__name__
    if tuple(made.id_to_token(number) for number in range(len(MARKS))) == MARKS:
        if (kind, split) == ("BPE", "ByteLevel"):
            # our `encode` puts the space; files written for other libraries say True
            made.pre_tokenizer.add_prefix_space = False
            return Vocabulary(made, "pairs")
        if kind == "WordLevel":
            return Vocabulary(made, "characters")
    return Pieces(made, "pairs" if kind == "BPE" else "words")


def make(found: Mapping[str, bytes]) -> "Tokenizer":
    """Build a tokenizer from tokenizer.json, GPT-2's vocab.json and merges.txt, or BERT's vocab.txt."""
    library()
    try:
        made = _build(found)
        with without_panic_output():  # `encode` handles panics that no sample causes
            for text in SAMPLES:
                made.decode(made.encode(text, add_special_tokens=False).ids, skip_special_tokens=False)
        return made
    except SaccadeError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise ModelError(
            f"the tokenizer's files cannot be read ({printable(' '.join(str(error).split()), 120)}); "
            "download them again"
        ) from error


def _build(found: Mapping[str, bytes]) -> "Tokenizer":
    from tokenizers import Tokenizer

    if FILE in found:
        text = examine(found[FILE])
        with without_panic_output():
            made = Tokenizer.from_str(text)
        made.no_padding()
        made.no_truncation()
        return made
    if {"vocab.json", "merges.txt"} <= found.keys():
        return _pairs(_json(found, "vocab.json"), _lines(found, "merges.txt"))
    if "vocab.txt" in found:
        settings = _json(found, "tokenizer_config.json") if "tokenizer_config.json" in found else {}
        return _word_pieces(_lines(found, "vocab.txt"), bool(settings.get("do_lower_case", True)))
    names = ", ".join(found) or "none"
    raise ModelError(
        f"the model has no tokenizer (files found: {names}); expected tokenizer.json, vocab.json with "
        "merges.txt, or vocab.txt next to it"
    )


def _json(found: Mapping[str, bytes], name: str) -> dict[str, Any]:
    try:
        return parse_json(found[name])
    except Flaw as flaw:
        raise ModelError(f"{name} {flaw.found}; {flaw.remedy}") from flaw


def _lines(found: Mapping[str, bytes], name: str) -> list[str]:
    try:
        return found[name].decode().splitlines()
    except UnicodeDecodeError as error:
        raise ModelError(
            f"{name} is not UTF-8 text; expected one entry per line; download it again"
        ) from error


def _pairs(vocabulary: dict[str, Any], merges: list[str]) -> "Tokenizer":
    """Build GPT-2's: byte pairs, merged in the order of the list (Sennrich et al. 2016, on bytes)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    lines = [line for line in merges if line and not line.startswith("#version")]
    check_model({"type": "BPE", "vocab": vocabulary, "merges": lines}, bytewise=True)
    pairs: list[Any] = [tuple(line.split(" ")) for line in lines]
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    if END in vocabulary:
        made.add_special_tokens([END])
    return made


def _word_pieces(lines: list[str], lower: bool) -> "Tokenizer":
    """Build BERT's: the longest known pieces of each word (Wu et al. 2016), framed by [CLS] and [SEP]."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    vocabulary = {line: i for i, line in enumerate(lines)}
    check_model({"type": "WordPiece", "vocab": vocabulary, "unk_token": "[UNK]"}, bytewise=False)
    if missing := {"[CLS]", "[SEP]"} - vocabulary.keys():
        raise ModelError(f"vocab.txt has no {min(missing)}, which BERT puts around a text; download it again")
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
