"""Text to ids and back without loss: byte pairs or characters; saved in tokenizer.json.

Byte pairs: Sennrich et al. 2016, on bytes (Radford et al. 2019), so no text has an unknown word. Special
tokens ("marks") have the first ids; a text that happens to spell one, such as <pad>, is ordinary text.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Int32, Int64

from saccade.errors import DataError, ModelError, UsageError, check_number, check_word

if TYPE_CHECKING:
    from types import ModuleType

    from tokenizers import Tokenizer

FILE = "tokenizer.json"
KINDS = ("pairs", "characters")
PAD, BOS, EOS, UNK, MASK = range(5)
MARKS = ("<pad>", "<bos>", "<eos>", "<unk>", "<mask>")
HOLE = "[MASK]"
"""What users write for a word that the model should fill in."""
BYTES = 256
MOST = 2**20
SIZE = 8000
_CHUNK = 1000


def library() -> "ModuleType":
    """Import the library, with one thread: its many small tasks are slower on several busy cores."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import tokenizers
    except ImportError as error:
        raise UsageError(
            "a vocabulary needs the package tokenizers, which is not installed; pip install 'saccade[text]'"
        ) from error
    return tokenizers


def is_panic(error: BaseException) -> bool:
    """Return whether Rust panicked; the class is not an Exception, and the library does not export it."""
    return type(error).__name__ == "PanicException"


@contextmanager
def library_errors() -> Iterator[None]:
    """Turn the library's bare exceptions and panics into a ModelError."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and not is_panic(error):
            raise
        words = " ".join(str(error).split())
        words = words if len(words) <= 120 else f"{words[:117]}..."
        raise ModelError(
            f"the tokenizer fails on this text ({words}); use another model, or fix tokenizer.json"
        ) from error


@dataclass(frozen=True, slots=True, eq=False)
class EncodedTexts:
    """Many texts as ids, in one array."""

    tokens: Int32[np.ndarray, "total"]
    ends: Int64[np.ndarray, "n"]

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> Int32[np.ndarray, "_"]:
        return self.tokens[self.ends[row - 1] if row else 0 : self.ends[row]]

    @property
    def lengths(self) -> Int64[np.ndarray, "n"]:
        """Number of tokens of each text."""
        return np.diff(self.ends, prepend=0)

    def take(self, rows: Int64[np.ndarray, "m"]) -> "EncodedTexts":
        """Return some of the texts, by index."""
        parts = [self[row] for row in rows.tolist()]
        return EncodedTexts(np.concatenate([self.tokens[:0], *parts]), np.cumsum(self.lengths[rows]))


def pad(sentences: Sequence[np.ndarray]) -> tuple[Int64[np.ndarray, "b n"], Bool[np.ndarray, "b n"]]:
    """Return sentences as the rows of one array, padded on the right, and a mask that is True at words."""
    lengths = np.array([len(sentence) for sentence in sentences])
    mask = np.arange(max(int(lengths.max(initial=0)), 1)) < lengths[:, None]
    rows = np.full(mask.shape, PAD, np.int64)
    if lengths.any():
        rows[mask] = np.concatenate(sentences)
    return rows, mask


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """From text to ids, and from ids to text."""

    tokenizer: "Tokenizer"
    kind: str
    _table: dict[str, int] = field(init=False, repr=False)
    """Ids of characters; a dict is faster than the library."""

    def __post_init__(self) -> None:
        self.tokenizer.encode_special_tokens = True  # a text that spells a mark stays text
        table = self.tokenizer.get_vocab() if self.kind == "characters" else {}
        object.__setattr__(self, "_table", table)

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    @property
    def rows(self) -> int:
        """Rows that a table indexed by id needs: more than there are entries if ids have gaps."""
        return max(self.tokenizer.get_vocab().values(), default=-1) + 1

    @property
    def bos(self) -> int:
        """Id of the mark before a text; -1 if there is none, as for the next ones."""
        return BOS

    @property
    def eos(self) -> int:
        """Id of the mark after a text."""
        return EOS

    @property
    def pad(self) -> int:
        """Id of padding."""
        return PAD

    @property
    def mask(self) -> int:
        """Id of the mark for a hidden word."""
        return MASK

    @property
    def frame(self) -> tuple[list[int], list[int]]:
        """Marks before and after a text with hidden words."""
        return [BOS], []

    @property
    def marks(self) -> list[int]:
        """Ids of all marks."""
        return list(range(len(MARKS)))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without marks."""
        return self.encode_all([text])[0]

    def go_on(self, text: str) -> list[int]:
        """Return the ids of a text that continues another: no space is put before its first word."""
        return self._plain([text])[0]

    def _plain(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of several texts that continue others."""
        if self.kind == "characters":
            return self.encode_all(texts)
        with library_errors():
            found = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of several texts."""
        if self.kind == "characters":
            table = self._table
            return [[table.get(character, UNK) for character in text] for text in texts]
        return self._plain([f" {text}" for text in texts])

    def decode(self, numbers: Iterable[int]) -> str:
        """Return the text that `encode` made these of, without marks; invalid UTF-8 shows as �."""
        kept = [number for number in map(int, numbers) if number >= len(MARKS)]
        text = self._text(kept)
        return text if self.kind == "characters" else text.removeprefix(" ")

    def _text(self, numbers: list[int], *, marks: bool = True) -> str:
        with library_errors():
            return self.tokenizer.decode(numbers, skip_special_tokens=not marks)

    def word(self, number: int) -> str:
        """Return one entry as text; a space before a word is kept."""
        if number < len(MARKS):
            return MARKS[number]
        return self._text([number])

    def words(self, numbers: Iterable[int]) -> list[str]:
        """Return entries as text."""
        return [self.word(int(number)) for number in numbers]

    def number(self, texts: Iterable[str]) -> EncodedTexts:
        """Encode many texts, streamed."""
        parts: list[np.ndarray] = [np.empty(0, np.int32)]
        lengths: list[int] = []
        for chunk in _chunks(texts):
            for found in self.encode_all(chunk):
                parts.append(np.array(found, np.int32))
                lengths.append(len(found))
        return EncodedTexts(np.concatenate(parts), np.cumsum(lengths, dtype=np.int64))

    def running(self, lines: Iterable[str]) -> Int32[np.ndarray, "total"]:
        """Encode one text from its lines, newlines included; only the first may get a space before it."""
        parts: list[np.ndarray] = [np.empty(0, np.int32)]
        stream = iter(lines)
        parts += [np.array(self.encode(line), np.int32) for line in islice(stream, 1)]
        for chunk in _chunks(stream):
            parts += [np.array(found, np.int32) for found in self._plain(chunk)]
        return np.concatenate(parts)

    def to_json(self) -> str:
        """Return the content of tokenizer.json, which Hugging Face's library reads too."""
        return self.tokenizer.to_str(pretty=True) + "\n"


def _chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    stream = iter(texts)
    while chunk := list(islice(stream, _CHUNK)):
        yield chunk


def learn(texts: Iterable[str], kind: str = "pairs", size: int = 0, lead: str = " ") -> Vocabulary:
    """Learn a vocabulary from texts: the most frequent pieces, or all characters.

    Args:
        size: Number of entries, marks included; 0 means up to 8,000 byte pairs, or all characters.
        lead: What `encode` puts before a text; nothing if the texts are the lines of one.
    """
    check_word("the kind of vocabulary", kind, KINDS)
    if size:
        check_number("the size of the vocabulary", size, len(MARKS) + 1, MOST)
    return _characters(texts, size) if kind == "characters" else _pairs(texts, size, lead)


def _pairs(texts: Iterable[str], size: int, lead: str) -> Vocabulary:
    tokenizers = library()
    least = BYTES + len(MARKS)
    if size and size < least:
        raise UsageError(
            f"the vocabulary has {size} entries; expected {least} or more, one for each byte and mark; "
            "raise its size, or use characters"
        )
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size or SIZE,
        special_tokens=list(MARKS),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator((f"{lead}{text}" for text in texts), trainer)
    found = made.get_vocab_size()
    if found == least:
        raise DataError(
            "the text has no pair of bytes to merge; expected words; give more text, or use characters"
        )
    if found < size:
        raise UsageError(
            f"the vocabulary's size is {size:,}, but the text has only {found:,} different pieces; "
            f"use {found:,} or fewer, or give more text"
        )
    return Vocabulary(made, "pairs")


def _characters(texts: Iterable[str], size: int) -> Vocabulary:
    tokenizers = library()
    known: set[str] = set()
    for text in texts:
        known.update(text)
    if not known:
        raise DataError("the text is empty; expected at least one character")
    found = len(known) + len(MARKS)
    if size > found:
        raise UsageError(
            f"the vocabulary's size is {size:,}, but the text has only {len(known):,} different characters, "
            f"and there are {len(MARKS)} marks; use {found:,} or fewer"
        )
    if size and size < found:
        raise UsageError(
            f"the vocabulary's size is {size:,}, but the text has {len(known):,} different characters, "
            f"and there are {len(MARKS)} marks; use {found:,}, or byte pairs"
        )
    table = {entry: number for number, entry in enumerate((*MARKS, *sorted(known)))}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(table, unk_token=MARKS[UNK]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    made.decoder = tokenizers.decoders.Fuse()
    made.add_special_tokens(list(MARKS))
    return Vocabulary(made, "characters")
