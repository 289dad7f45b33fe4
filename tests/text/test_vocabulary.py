"""Text to numbers and back: nothing is lost, nothing is left to chance."""

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.errors import DataError, ModelError, UsageError
from saccade.text import vocabulary
from saccade.text.tokenizer_files import Pieces
from saccade.text.tokenizer_files import vocabulary as opened
from saccade.text.vocabulary import BOS, EOS, FILE, MARKS, PAD, UNK, learn

WORDS = "the quick brown fox jumps over the lazy dog; der schnelle braune Fuchs springt über den faulen Hund"
TEXT = [f"{WORDS} {i % 7}" for i in range(50)]
PIECES = learn(TEXT, size=300)
LETTERS = learn(TEXT, "characters")


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8")))
def test_any_text_comes_back_from_byte_pairs(text):
    assert PIECES.decode(PIECES.encode(text)) == text


@settings(deadline=None)
@given(st.text(st.sampled_from(sorted(set("".join(TEXT))))))
def test_any_text_of_known_characters_comes_back(text):
    assert LETTERS.decode(LETTERS.encode(text)) == text
    assert len(LETTERS.encode(text)) == len(text)


@pytest.mark.parametrize("mark", MARKS)
def test_a_text_that_spells_a_mark_is_a_text(mark):
    text = f"a {mark} b"
    numbers = PIECES.encode(text)
    assert min(numbers) >= len(MARKS)
    assert PIECES.decode(numbers) == text
    loud = learn([f"{mark} {mark}{mark}"] * 50 + TEXT, size=300)
    assert min(loud.encode(text)) >= len(MARKS)


def test_marks_have_the_first_numbers_and_are_not_spoken():
    assert PIECES.words(range(5)) == LETTERS.words(range(5)) == list(MARKS)
    assert PIECES.decode([BOS, *PIECES.encode("the fox"), EOS, PAD, PAD]) == "the fox"


def test_an_unknown_character_is_told_by_its_mark():
    assert LETTERS.encode("a漢b")[1] == UNK
    assert LETTERS.decode(LETTERS.encode("a漢b")) == "ab"


def test_frequent_words_become_one_piece_and_a_larger_vocabulary_makes_shorter_texts():
    small, large = learn(TEXT, size=270), learn(TEXT, size=330)
    assert (len(small), len(large)) == (270, 330)
    assert len(large.encode(WORDS)) < len(small.encode(WORDS)) < len(WORDS)
    assert len(large.encode("the fox")) == 2
    assert large.word(large.encode("the")[0]) == " the"


@pytest.mark.parametrize("made", [PIECES, LETTERS], ids=["pairs", "characters"])
def test_a_vocabulary_comes_back_from_its_file(made):
    again = opened({FILE: made.to_json().encode()})
    assert (type(again), again.kind, len(again)) == (type(made), made.kind, len(made))
    text = WORDS.upper() + " <pad>" if made is PIECES else WORDS
    assert again.encode(text) == made.encode(text)
    assert again.decode(again.encode(text)) == text
    assert again.to_json() == made.to_json()


def test_the_same_text_makes_the_same_vocabulary_in_any_process_with_any_number_of_threads():
    code = (
        "import hashlib; from saccade.text.vocabulary import learn;"
        "import random; r = random.Random(0);"
        "word = lambda: ''.join(r.choices('abcdef', k=r.randint(1, 5)));"
        "t = [' '.join(word() for _ in range(9)) for _ in range(99)];"
        "print(hashlib.sha256(learn(t, size=400).to_json().encode()).hexdigest())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"TOKENIZERS_PARALLELISM": many, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for many, seed in (("false", "1"), ("true", "2"))
    }
    assert len(found) == 1


def test_many_texts_are_numbered_one_behind_the_other():
    texts = ["the", "", "the lazy dog"] * 700
    found = PIECES.number(iter(texts))
    assert len(found) == 2100
    assert [row.tolist() for row in (found[0], found[1], found[2], found[2099])] == [
        PIECES.encode(text) for text in (*texts[:3], texts[-1])
    ]
    assert found.lengths.sum() == len(found.tokens)
    assert len(PIECES.number([])) == 0


def test_a_vocabulary_larger_than_the_text_is_refused_with_what_would_do():
    with pytest.raises(UsageError, match=r"size is 8,000, but the text has only \d+ different pieces"):
        learn(TEXT, size=8000)
    with pytest.raises(UsageError, match=r"size is 100, but the text has only \d+ different char"):
        learn(TEXT, "characters", 100)
    with pytest.raises(UsageError, match=r"size is 10, but the text has \d+ different characters"):
        learn(TEXT, "characters", 10)
    with pytest.raises(UsageError, match="expected 261 or more, one for each byte and mark"):
        learn(TEXT, size=100)
    with pytest.raises(UsageError, match="'letters', which is not known"):
        learn(TEXT, "letters")
    assert len(learn(TEXT)) < 8000, "without a size it takes what there is"


@pytest.mark.parametrize("kind", ["pairs", "characters"])
def test_a_text_without_a_word_is_refused(kind):
    with pytest.raises(DataError, match="expected"):
        learn([""], kind)


def test_files_that_are_no_tokenizer_are_refused_and_those_of_others_keep_their_marks():
    for content in ("", "{}", "[]", "\x00", json.dumps({"model": 3})):
        with pytest.raises(
            ModelError, match=r"tokenizer\.json is not|tokenizer\.json holds|the tokenizer has no model"
        ):
            opened({FILE: content.encode()})
    other = opened({FILE: PIECES.to_json().replace("<bos>", "<s>").encode()})
    assert isinstance(other, Pieces)
    assert (other.bos, other.eos, other.mask) == (BOS, -1, 4)


def test_a_missing_library_is_answered_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageError, match=r"pip install 'saccade\[text\]'"):
        vocabulary.learn(TEXT)


@pytest.mark.parametrize("made", [PIECES, LETTERS])
def test_a_running_text_comes_back_and_is_numbered_as_in_one_piece(made):
    lines = ["the quick dog\n", "over the fox\n", "\n", "jumps\n"]
    text = "".join(lines)
    if made is LETTERS:
        lines, text = [line.replace("\n", ";") for line in lines], text.replace("\n", ";")
    numbers = made.running(iter(lines)).tolist()
    assert made.decode(numbers) == text
    assert numbers == made.encode(text)
    assert made.running([]).tolist() == []
