"""tokenizer.json of strangers: what is published is read as the library reads it, all else is refused."""

import json
import os
import subprocess
import sys
import threading
import time
from copy import deepcopy

import pytest
from promise import check_sentence, command, keeps_promise
from spoken import folder
from tokenizers import Tokenizer
from tokenizers_made import (
    BERT,
    BYTES,
    FRAME,
    GPT2,
    PAIRS,
    PUBLISHED,
    SPACES,
    added,
    replace,
    several,
    split,
    template,
)

from saccade.errors import ModelError
from saccade.text.tokenizer_files import make, vocabulary, without_panic_output
from saccade.text.vocabulary import is_panic, learn

TEXTS = ("The cats' mat, 12 na\u00efve words!", "a" * 300, "  \n\t  the", "", "\u6c49\u5b57 \u1e9e<b>")
NFKC = {"type": "NFKC"}
LETTER_BY_LETTER = split(r"[\s\S]")
LETTER = "\ufdfa"


def changed(seed, part, value):
    """A tokenizer.json with another part; `model.x` is a field of the model."""
    made = deepcopy(seed)
    outer, _, inner = part.partition(".")
    if inner:
        made[outer][inner] = value
    else:
        made[outer] = value
    return made


def refusal(spec):
    """What is said about a tokenizer.json, within the promise; a text is encoded if nothing is."""

    def use():
        words = vocabulary({"tokenizer.json": json.dumps(spec).encode()})
        for text in TEXTS:
            words.decode(words.encode(text))

    return keeps_promise(use, mebibytes=200)


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_published_is_read_as_the_library_reads_it(name):
    spec = PUBLISHED[name]
    plain = Tokenizer.from_str(json.dumps(spec))
    plain.no_padding()
    plain.no_truncation()
    found = make({"tokenizer.json": json.dumps(spec).encode()})
    for text in TEXTS:
        theirs = plain.encode(text)
        assert found.encode(text).ids == theirs.ids
        assert found.decode(theirs.ids) == plain.decode(theirs.ids)
    assert refusal(spec) is None


@pytest.mark.parametrize("kind", ["pairs", "characters"])
def test_our_own_are_read_back(kind):
    words = learn(["the cat sat on the mat"] * 9, kind)
    again = vocabulary({"tokenizer.json": words.to_json().encode()})
    assert again.kind == kind
    assert again.encode("the mat sat") == words.encode("the mat sat")


def nested(depth):
    rule = {"type": "NFC"}
    for _ in range(depth):
        rule = several("normalizers", rule)
    return rule


BPE = PUBLISHED["gpt2, written today"]
UNIGRAM = PUBLISHED["sentencepiece by the library"]
REPEATED = template(*[("Sequence", "A")] * 30)
HOSTILE = {
    "a backtracking split": (GPT2, "pre_tokenizer", split("(a+)+$"), "cannot backtrack"),
    "a backtracking replace": (BERT, "normalizer", replace("(a|aa)+$", "b", "Regex"), "cannot backtrack"),
    "a backtracking decoder": (GPT2, "decoder", replace("(a|aa)+$", "b", "Regex"), "cannot backtrack"),
    "a look-behind": (GPT2, "pre_tokenizer", split(r"(?<=a)b"), "cannot backtrack"),
    "letters doubled 30 times": (
        BERT, "normalizer", several("normalizers", *[replace("a", "aa")] * 30), "times longer"),
    "letters doubled by expressions": (
        BERT, "normalizer", several("normalizers", *[replace(".", "aa", "Regex")] * 7), "times longer"),
    "long letters again and again": (
        BERT, "normalizer", several("normalizers", NFKC, replace(" ", LETTER), NFKC), "times longer"),
    "a replacement of 10,000 letters": (BERT, "normalizer", replace("a", "b" * 10_000), "0 to 100 char"),
    "an empty pattern": (BERT, "normalizer", replace("", "b"), "plain text"),
    "decoders that double": (
        BERT, "decoder", several("decoders", *[replace("a", "aa")] * 30), "times longer"),
    "prefixes that double": (
        BERT, "normalizer", several("normalizers", *[{"type": "Prepend", "prepend": "xx"}] * 9), "longer"),
    "bytes of bytes of bytes": (
        GPT2, "pre_tokenizer", several("pretokenizers", *[BYTES] * 30), "ByteLevel more than once"),
    "bytes of bytes as normalizers": (
        GPT2, "normalizer", several("normalizers", *[{"type": "ByteLevel"}] * 9), "times longer"),
    "a space before each letter": (
        BERT, "pre_tokenizer", several("pretokenizers", *[SPACES, LETTER_BY_LETTER] * 9), "more than once"),
    "33 rules": (BERT, "normalizer", several("normalizers", *[{"type": "NFC"}] * 33), "32"),
    "17 rules in 17 lists": (
        BERT, "normalizer", several("normalizers", *[several("normalizers", *[NFKC] * 17)] * 17), "most 32"),
    "nested rules": (BERT, "normalizer", nested(6), "deep"),
    "a Precompiled table": (
        BERT, "normalizer", {"type": "Precompiled", "precompiled_charsmap": "CAAAAAAAAAAAAAAAYWFh"},
        'has the normalizer "Precompiled"'),
    "a Strip of 10^9 at the end": (
        GPT2, "decoder", {"type": "Strip", "content": "a", "start": 0, "stop": 10**9}, "stop 1000000000"),
    "a Strip of 10^9 at the start": (
        GPT2, "decoder", {"type": "Strip", "content": "a", "start": 10**9, "stop": 0}, "start 1000000000"),
    "pieces of 0 letters": (GPT2, "pre_tokenizer", {"type": "FixedLength", "length": 0}, "1 to 1,000"),
    "an unknown kind": (GPT2, "pre_tokenizer", {"type": "Python", "code": "1"}, 'pre_tokenizer "Python"'),
    "an unknown field": (GPT2, "pre_tokenizer", {**BYTES, "eval": "1"}, '"eval"'),
    "an unknown part": (GPT2, "auto_map", {"x": "y"}, '"auto_map"'),
    "an escape in a kind": (GPT2, "decoder", {"type": "\x1b[31m"}, "u001b"),
    "an unknown model": (GPT2, "model", {"type": "Neural", "vocab": PAIRS}, 'model "Neural"'),
    "no model": (GPT2, "model", None, "has no model"),
    "an id of 10^9": (BPE, "model.vocab", {**PAIRS, "x": 10**9}, "has unusable ids"),
    "a negative id": (BPE, "model.vocab", {**PAIRS, "x": -1}, "has unusable ids"),
    "an id that is true": (BPE, "model.vocab", {**PAIRS, "x": True}, "has unusable ids"),
    "one id twice": (BPE, "model.vocab", {**PAIRS, "x": 1}, "has unusable ids"),
    "no entries": (BPE, "model.vocab", {}, "no vocabulary"),
    "an entry of 10^6 letters": (BPE, "model.vocab", {**PAIRS, "x" * 10**6: 99}, "1,000,000 characters"),
    "no unknown word (WordPiece)": (
        BERT, "model.vocab", {"a": 0, "b": 1}, 'no entry "[UNK]" for unknown words'),
    "no unknown word (WordLevel)": (
        BERT, "model", {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "z"}, 'no entry "z"'),
    "no unknown word (BPE)": (
        PUBLISHED["llama's spaces"], "model.unk_token", "zz", 'no entry "zz" for unknown words'),
    "no unknown word (Unigram)": (UNIGRAM, "model.unk_id", None, "unk_id null"),
    "an unknown word that is not there": (UNIGRAM, "model.unk_id", 10**4, "unk_id 10000"),
    "a score beyond all": (UNIGRAM, "model.vocab", [["a", -1e300]], "a word and its score"),
    "a score that is text": (UNIGRAM, "model.vocab", [["a", "b"]], "a word and its score"),
    "an empty piece": (UNIGRAM, "model.vocab", [["", 0.0]], "a word and its score"),
    "merges of nothing": (BPE, "model.merges", [["t", "zz"]], "two entries that make a third"),
    "merges of three": (BPE, "model.merges", ["t h e"], "two entries that make a third"),
    "merges without a result": (BPE, "model.merges", [["e", "t"]], "two entries that make a third"),
    "merges behind a prefix": (BPE, "model.continuing_subword_prefix", "#####", "make a third"),
    "a prefix of half letters": (BPE, "model.continuing_subword_prefix", "\u2581", "sensible"),
    "pieces by chance": (BPE, "model.dropout", 0.5, "same ids"),
    "words of 10^9 letters": (BERT, "model.max_input_chars_per_word", 10**9, "1 to 1,000"),
    "a prefix of 10^5 letters": (BERT, "model.continuing_subword_prefix", "#" * 10**5, "0 to 16"),
    "an added id of 10^9": (GPT2, "added_tokens", [added(10**9, "x")], "id 1000000000"),
    "an empty mark": (GPT2, "added_tokens", [added(3, "")], 'content ""'),
    "20,000 marks": (GPT2, "added_tokens", [added(i, f"t{i}") for i in range(20_000)], "20,000 added"),
    "marks that are text": (GPT2, "added_tokens", ["x"], "an object"),
    "a template with a text 30 times": (
        BERT, "post_processor", {**FRAME, "single": REPEATED}, "A, each once"),
    "a template of 10^5 pieces": (
        BERT, "post_processor", {**FRAME, "single": REPEATED * 3334}, "at most 32 pieces"),
    "a template of a second text": (
        BERT, "post_processor", {**FRAME, "single": template(("Sequence", "B"))}, "A, each once"),
    "a template of an unknown mark": (
        BERT, "post_processor", {**FRAME, "single": template(("SpecialToken", "x"))}, "known SpecialToken"),
    "a mark of 10^5 numbers": (
        BERT, "post_processor",
        {**FRAME, "special_tokens": {"[CLS]": {"id": "x", "ids": [1] * 10**5, "tokens": ["x"] * 10**5}}},
        "special_tokens"),
    "a frame of 10^9": (
        BERT, "post_processor", {"type": "BertProcessing", "sep": ["x", 10**9], "cls": ["y", 1]}, "a token"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_tokenizer_is_refused_by_name(name):
    seed, part, value, words = HOSTILE[name]
    error = refusal(changed(seed, part, value))
    assert isinstance(error, ModelError)
    assert words in str(error)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("truncation", {"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 10**12}),
        ("padding", {"strategy": {"Fixed": 10**9}, "pad_to_multiple_of": 0}),
        ("padding", "x" * 1000),
    ],
)
def test_what_fills_up_and_cuts_is_left_out(part, value):
    assert refusal(changed(BERT, part, value)) is None


def test_a_vocabulary_with_our_marks_and_other_rules_is_somebody_elses():
    marks = {word: i for i, word in enumerate(("<pad>", "<bos>", "<eos>", "<unk>", "<mask>", *"abc"))}
    for rule in (None, {"type": "Whitespace"}):
        spec = changed(changed(BPE, "pre_tokenizer", rule), "model.vocab", marks)
        assert refusal(changed(spec, "model.merges", [])) is None


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"tokenizer.json": b"[" * 10**6}, "nested deeper"),
        (
            {"tokenizer.json": b'{"model": {"vocab": [' + b"0," * 5 * 10**6 + b"0]}}"},
            "more than 4,000,000 values",
        ),
        ({"tokenizer.json": b'{"model": {}, "model": {}}'}, "'model' twice"),
        ({"tokenizer.json": b'{"model": {"a": "\\ud800"}}'}, "lone surrogate"),
        ({"tokenizer.json": b"\xff\xfe"}, "not UTF-8"),
        ({"vocab.json": b'{"a": 1000000000}', "merges.txt": b""}, "has unusable ids"),
        ({"vocab.json": b'{"a": "b"}', "merges.txt": b""}, "has unusable ids"),
        ({"vocab.json": b"[1]", "merges.txt": b""}, "vocab.json holds a JSON list"),
        ({"vocab.json": b'{"a": 0}', "merges.txt": b"a b\n"}, "two entries that make a third"),
        ({"vocab.json": b'{"a": 0}', "merges.txt": b"a\n"}, "two entries that make a third"),
        ({"vocab.json": b'{"a": 0}', "merges.txt": b"\xff"}, "merges.txt is not UTF-8"),
        ({"vocab.json": b"[" * 10**6, "merges.txt": b""}, "nested deeper"),
        ({"vocab.txt": b"\xff"}, "vocab.txt is not UTF-8"),
        ({"vocab.txt": b"[UNK]\n"}, r"vocab.txt has no [CLS]"),
        ({"vocab.txt": b"[UNK]\n[CLS]\n[SEP]\n" + b"a" * 10**6}, "1,000,000 characters"),
        ({"vocab.txt": b"[UNK]\n[CLS]\n[SEP]\n[UNK]\n[UNK]"}, ""),
        (
            {"vocab.txt": b"[UNK]\n[CLS]\n[SEP]", "tokenizer_config.json": b"[]"},
            "tokenizer_config.json holds",
        ),
    ],
)
def test_files_beside_and_torn_ones_are_refused_too(found, words):
    error = keeps_promise(lambda: vocabulary(found).encode("a b"))
    assert words in str(error)


PANIC = """
import os, sys
sys.path[:0] = {path!r}
from unittest.mock import patch
from test_hostile_tokenizer import GPT2, changed, split
from saccade.errors import ModelError
from saccade.text import tokenizer_files
import json
spec = changed(GPT2, "pre_tokenizer", split("(a+)+$"))
try:
    with patch.object(tokenizer_files, "examine", lambda data: data.decode()):
        tokenizer_files.make({{"tokenizer.json": json.dumps(spec).encode()}})
except ModelError as error:
    print(error)
os.write(2, b"still here")
"""


def test_a_panic_all_the_same_is_one_sentence_and_prints_nothing(tmp_path):
    path = [os.fspath(tmp_path), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", PANIC.format(path=path)],
        capture_output=True, text=True, env={**os.environ, "RUST_BACKTRACE": "full"}, timeout=60,
    )  # fmt: skip
    assert done.stderr == "still here"
    assert "cannot be read (Onig: Regex search error" in check_sentence(done.stdout)


def test_a_panic_at_a_text_is_a_refusal():
    words = vocabulary({"tokenizer.json": json.dumps(GPT2).encode()})
    words.tokenizer.decoder = Tokenizer.from_str(
        json.dumps(changed(GPT2, "decoder", {"type": "Strip", "content": "a", "start": 0, "stop": 9}))
    ).decoder
    with pytest.raises(ModelError, match="the tokenizer fails on this text"):
        words.decode([PAIRS["a"]])


def test_what_others_print_meanwhile_comes_out(capfd):
    def speak():
        for i in range(50):
            os.write(2, b"%d\n" % i)
            time.sleep(0.001)

    class PanicException(BaseException):
        pass

    assert is_panic(PanicException())
    speaker = threading.Thread(target=speak)
    speaker.start()
    for _ in range(20):
        with without_panic_output():
            time.sleep(0.002)

    def panic():
        with without_panic_output():
            os.write(2, b"mine\n\nthread '<unnamed>' panicked at x\nmore\n")
            raise PanicException

    with pytest.raises(PanicException):
        panic()
    speaker.join()
    lines = capfd.readouterr().err.splitlines()
    assert sorted(lines) == sorted([*map(str, range(50)), "mine"])


VERBS = {
    "complete": ("gpt", ["the cat"]),
    "fill": ("bert", ["the [MASK]"]),
    "translate": ("transformer", ["the cat"]),
    "explain": ("gpt", ["the cat"]),
    "embed": ("bert", []),
    "convert": ("gpt", ["--out", "made"]),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_of_text_refuses_a_hostile_tokenizer_in_one_sentence(tmp_path, verb):
    kind, words = VERBS[verb]
    place = folder(kind, tmp_path)
    spec = json.loads((place / "tokenizer.json").read_text())
    (place / "tokenizer.json").write_text(json.dumps(changed(spec, "pre_tokenizer", split("(a+)+$"))))
    done = command(verb, place, *words, cwd=tmp_path, code=4)
    assert "cannot backtrack" in done.err
    assert len(done.err.splitlines()) == 1


def test_an_entry_that_the_model_has_no_row_for_is_refused(tmp_path):
    place = folder("gpt", tmp_path)
    spec = json.loads((place / "tokenizer.json").read_text())
    spec["model"]["vocab"]["qqq"] = 100_000
    (place / "tokenizer.json").write_text(json.dumps(spec))
    done = command("complete", place, "qqq", cwd=tmp_path, code=4)
    assert "numbers its entries up to 100,001" in done.err
