"""Thousands of damaged tokenizers: each is refused in a sentence, or reads and writes texts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutations import mutated_bytes, mutated_json, mutated_json_bytes
from promise import fuzz, keeps_promise
from tokenizers_made import PUBLISHED

from saccade.text.tokenizer_files import vocabulary
from saccade.text.vocabulary import learn

OURS = {kind: json.loads(learn(["ab ab abc"] * 9, kind).to_json()) for kind in ("pairs", "characters")}
SEEDS = {**PUBLISHED, **{f"ours, {kind}": seed for kind, seed in OURS.items()}}
KINDS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
TEXTS = ("The cats' mat, 12 na\u00efve words!", "a" * 100, "  \n the", "", "\u6c49\u5b57 \u1e9e<b>\ufdfa")
VOCABULARY = {"<|endoftext|>": 0, "\u0120": 1, "a": 2, "b": 3, "ab": 4}
LINES = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\nab\n"


def use(found):
    """Whatever a command does with a vocabulary."""
    words = vocabulary(found)
    for text in TEXTS:
        numbers = words.encode(text)
        assert all(0 <= number < words.rows for number in numbers)
        words.decode(numbers)
        words.words(numbers[:3])
    words.number(TEXTS)
    _ = (len(words), words.bos, words.eos, words.pad, words.mask, words.frame, words.marks, words.to_json())


@st.composite
def mixed(draw):
    """The parts of several published files in one, which reaches deeper than damage does."""
    made = dict(SEEDS[draw(st.sampled_from(sorted(SEEDS)))])
    for part in draw(st.lists(st.sampled_from((*KINDS, "model", "added_tokens")), max_size=3)):
        made[part] = SEEDS[draw(st.sampled_from(sorted(SEEDS)))].get(part)
    return made


@fuzz
@given(st.sampled_from(sorted(SEEDS)).flatmap(lambda name: mutated_json_bytes(SEEDS[name])))
def test_a_damaged_tokenizer_keeps_the_promise(data):
    keeps_promise(lambda: use({"tokenizer.json": data}))


@fuzz
@given(mixed().flatmap(lambda seed: st.one_of(st.just(seed), mutated_json(seed, most=1))))
def test_parts_of_several_tokenizers_in_one_keep_the_promise(value):
    keeps_promise(lambda: use({"tokenizer.json": json.dumps(value).encode()}))


@fuzz
@given(mutated_json_bytes(VOCABULARY), mutated_bytes(b"#version: 0.2\na b\n"))
def test_damaged_files_of_gpt2_keep_the_promise(entries, merges):
    keeps_promise(lambda: use({"vocab.json": entries, "merges.txt": merges}))


@fuzz
@given(mutated_bytes(LINES), mutated_json_bytes({"do_lower_case": True}))
def test_damaged_files_of_bert_keep_the_promise(lines, settings):
    keeps_promise(lambda: use({"vocab.txt": lines, "tokenizer_config.json": settings}))


@pytest.mark.parametrize("name", SEEDS)
def test_the_files_that_are_damaged_were_good(name):
    assert keeps_promise(lambda: use({"tokenizer.json": json.dumps(SEEDS[name]).encode()})) is None
