"""Text as numbers and back without loss: pieces of words (byte pairs), or characters; kept in tokenizer.json.

Byte pairs: Sennrich et al. 2016, on bytes (Radford et al. 2019), so that no text has an unknown word. Marks
have the first numbers. A text that happens to spell a mark, such as <pad>, is a text like any other.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int32, Int64

from saccade.errors import DataError, UsageError, check_number, check_word

if TYPE_CHECKING:
    from types import ModuleType

    from tokenizers import Tokenizer

FILE = "tokenizer.json"
KINDS = ("pairs", "characters")
PAD, BOS, EOS, UNK, MASK = range(5)
MARKS = ("<pad>", "<bos>", "<eos>", "<unk>", "<mask>")
HOLE = "[MASK]"
"""What a person writes in the place of a word that a model is to name."""
BYTES = 256
MOST = 2**20
SIZE = 8000
_CHUNK = 1000


def _library() -> "ModuleType":
    """The library; with one thread, as its many small tasks are slower on several cores that are busy."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import tokenizers
    except ImportError as error:
        raise UsageError(
            "a vocabulary needs the package tokenizers, which is not installed; pip install 'saccade[text]'"
        ) from error
    return tokenizers


@dataclass(frozen=True, slots=True, eq=False)
class Numbered:
    """Many texts as numbers, one behind the other."""

    tokens: Int32[np.ndarray, "total"]
    ends: Int64[np.ndarray, "n"]

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> Int32[np.ndarray, "_"]:
        return self.tokens[self.ends[row - 1] if row else 0 : self.ends[row]]

    @property
    def lengths(self) -> Int64[np.ndarray, "n"]:
        """How many numbers each text has."""
        return np.diff(self.ends, prepend=0)

    def take(self, rows: Int64[np.ndarray, "m"]) -> "Numbered":
        """Some of the texts, by their places."""
        parts = [self[row] for row in rows.tolist()]
        return Numbered(np.concatenate([self.tokens[:0], *parts]), np.cumsum(self.lengths[rows]))


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Numbers for a text, and a text for numbers."""

    tokenizer: "Tokenizer"
    kind: str
    _table: dict[str, int] = field(init=False, repr=False)
    """Of characters; looking them up is faster than the library."""

    def __post_init__(self) -> None:
        self.tokenizer.encode_special_tokens = True  # a text that spells a mark stays a text
        table = self.tokenizer.get_vocab() if self.kind == "characters" else {}
        object.__setattr__(self, "_table", table)

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    @property
    def bos(self) -> int:
        """The number of the mark before a text; of this and the next ones, -1 where there is none."""
        return BOS

    @property
    def eos(self) -> int:
        """The number of the mark after a text."""
        return EOS

    @property
    def pad(self) -> int:
        """The number of the mark that fills up a batch."""
        return PAD

    @property
    def mask(self) -> int:
        """The number of the mark in the place of a hidden word."""
        return MASK

    @property
    def frame(self) -> tuple[list[int], list[int]]:
        """What stands before and after a text whose hidden words are to be named."""
        return [BOS], []

    @property
    def marks(self) -> list[int]:
        """The numbers of all marks, which are no words of a text."""
        return list(range(len(MARKS)))

    def encode(self, text: str) -> list[int]:
        """The numbers of a text, without marks."""
        return self.encode_all([text])[0]

    def go_on(self, text: str) -> list[int]:
        """The numbers of a text that follows another: no space is put before its first word."""
        return self._plain([text])[0]

    def _plain(self, texts: Sequence[str]) -> list[list[int]]:
        """The numbers of several texts that follow others."""
        if self.kind == "characters":
            return self.encode_all(texts)
        found = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The numbers of several texts."""
        if self.kind == "characters":
            table = self._table
            return [[table.get(character, UNK) for character in text] for text in texts]
        return self._plain([f" {text}" for text in texts])

    def decode(self, numbers: Iterable[int]) -> str:
        """The text that `encode` made these of; marks are left out, whatever is no UTF-8 shows as �."""
        kept = [number for number in map(int, numbers) if number >= len(MARKS)]
        text = self.tokenizer.decode(kept, skip_special_tokens=False)
        return text if self.kind == "characters" else text.removeprefix(" ")

    def word(self, number: int) -> str:
        """One entry as a person reads it; a space before a word is kept."""
        if number < len(MARKS):
            return MARKS[number]
        return self.tokenizer.decode([number], skip_special_tokens=False)

    def words(self, numbers: Iterable[int]) -> list[str]:
        """Entries as a person reads them."""
        return [self.word(int(number)) for number in numbers]

    def number(self, texts: Iterable[str]) -> Numbered:
        """All of many texts, streamed."""
        parts: list[np.ndarray] = [np.empty(0, np.int32)]
        lengths: list[int] = []
        for chunk in _chunks(texts):
            for found in self.encode_all(chunk):
                parts.append(np.array(found, np.int32))
                lengths.append(len(found))
        return Numbered(np.concatenate(parts), np.cumsum(lengths, dtype=np.int64))

    def running(self, lines: Iterable[str]) -> Int32[np.ndarray, "total"]:
        """One text that comes line by line, each with its end; only before the first a space may be put."""
        parts: list[np.ndarray] = [np.empty(0, np.int32)]
        stream = iter(lines)
        parts += [np.array(self.encode(line), np.int32) for line in islice(stream, 1)]
        for chunk in _chunks(stream):
            parts += [np.array(found, np.int32) for found in self._plain(chunk)]
        return np.concatenate(parts)

    def to_json(self) -> str:
        """What tokenizer.json holds, which Hugging Face's library reads as well."""
        return self.tokenizer.to_str(pretty=True) + "\n"


def _chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    stream = iter(texts)
    while chunk := list(islice(stream, _CHUNK)):
        yield chunk


def learn(texts: Iterable[str], kind: str = "pairs", size: int = 0, lead: str = " ") -> Vocabulary:
    """Make a vocabulary of a text: the most frequent pieces, or all its characters.

    Args:
        size: How many entries with the marks; 0 means 8,000 byte pairs or fewer if there are no more, and
            all characters.
        lead: What `encode` puts before a text; nothing, where the texts are lines of a running one.
    """
    check_word("the kind of vocabulary", kind, KINDS)
    if size:
        check_number("the size of the vocabulary", size, len(MARKS) + 1, MOST)
    return _characters(texts, size) if kind == "characters" else _pairs(texts, size, lead)


def _pairs(texts: Iterable[str], size: int, lead: str) -> Vocabulary:
    library = _library()
    least = BYTES + len(MARKS)
    if size and size < least:
        raise UsageError(
            f"the vocabulary has {size} entries; expected {least} or more, one for each byte and mark; "
            "or use characters"
        )
    made = library.Tokenizer(library.models.BPE())
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=size or SIZE,
        special_tokens=list(MARKS),
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator((f"{lead}{text}" for text in texts), trainer)
    found = made.get_vocab_size()
    if found == least:
        raise DataError("the text has no two bytes that follow each other; expected words; use characters")
    if found < size:
        raise UsageError(
            f"a vocabulary of {size:,} was asked for, but the text has only {found:,} different pieces; "
            f"ask for {found:,} or fewer, or give more text"
        )
    return Vocabulary(made, "pairs")


def _characters(texts: Iterable[str], size: int) -> Vocabulary:
    library = _library()
    known: set[str] = set()
    for text in texts:
        known.update(text)
    if not known:
        raise DataError("the text has no characters at all; expected some to learn from")
    found = len(known) + len(MARKS)
    if size > found:
        raise UsageError(
            f"a vocabulary of {size:,} was asked for, but the text has only {len(known):,} different "
            f"characters, and there are {len(MARKS)} marks; ask for {found:,} or fewer"
        )
    if size and size < found:
        raise UsageError(
            f"a vocabulary of {size:,} was asked for, but the text has {len(known):,} different characters, "
            f"and there are {len(MARKS)} marks; ask for {found:,}, or use byte pairs"
        )
    table = {entry: number for number, entry in enumerate((*MARKS, *sorted(known)))}
    made = library.Tokenizer(library.models.WordLevel(table, unk_token=MARKS[UNK]))
    made.pre_tokenizer = library.pre_tokenizers.Split(library.Regex(r"[\s\S]"), "isolated")
    made.decoder = library.decoders.Fuse()
    made.add_special_tokens(list(MARKS))
    return Vocabulary(made, "characters")
