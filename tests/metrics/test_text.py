"""BLEU, perplexity and accuracy by place, against worked examples and sacrebleu itself."""

import gzip
import math
import sys
from random import Random

import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.errors import UsageError
from saccade.metrics.text import (
    NOWHERE,
    BleuCounts,
    by_position,
    corpus_bleu,
    perplexity,
    signature,
    simple_bleu,
)

ANSWER, REFERENCE = list("ABBCD"), list("ABCDEF")
SENTENCES = st.lists(st.sampled_from("abcd"), max_size=8)


@pytest.mark.parametrize(("k", "score"), [(2, 0.681477), (3, 0.594034)])
def test_the_form_for_teaching_gives_the_worked_example(k, score):
    assert simple_bleu(ANSWER, REFERENCE, k) == pytest.approx(score, abs=5e-7)


@settings(deadline=None)
@given(SENTENCES, SENTENCES, st.integers(1, 6))
def test_it_is_a_number_from_0_to_1_for_any_output_however_short(answer, reference, k):
    score = simple_bleu(answer, reference, k)
    assert 0 <= score <= 1
    assert simple_bleu(answer, answer, k) == 1
    if not set(answer) & set(reference) and (answer or reference):
        assert score == 0


def test_repeating_a_word_does_not_help():
    assert simple_bleu(["the"] * 4, ["the", "cat", "is", "here"], 1) == pytest.approx(0.25**0.5)


def test_too_short_an_answer_is_punished_and_too_long_a_one_is_not():
    assert simple_bleu(list("AB"), list("ABCD"), 1) == pytest.approx(math.exp(-1))
    assert simple_bleu(list("ABCD"), list("AB"), 1) == pytest.approx(0.5**0.5)


def texts(data):
    """Real references, and the same with words dropped, doubled and exchanged."""
    path = data / "text" / "multi30k" / "data" / "task1" / "raw" / "test_2016_flickr.en.gz"
    references = gzip.decompress(path.read_bytes()).decode().splitlines()[:200]
    chance = Random(0)
    answers = []
    for text in references:
        words = [word for word in text.split() if chance.random() > 0.1]
        chance.shuffle(words) if chance.random() < 0.2 else None
        answers.append(" ".join(word for word in words for _ in range(1 + (chance.random() < 0.05))))
    return answers, references


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("tokenize", ["13a", "none", "zh", "char"])
def test_corpus_bleu_is_sacrebleus_and_so_is_its_signature(data, lowercase, tokenize):
    answers, references = texts(data)
    metric = sacrebleu.metrics.BLEU(lowercase=lowercase, tokenize=tokenize)
    wanted = metric.corpus_score(answers, [references]).score
    found = corpus_bleu(answers, references, lowercase=lowercase, tokenize=tokenize)
    assert found.score == pytest.approx(wanted, abs=1e-9)
    assert 20 < wanted < 99
    assert found.signature == str(metric.get_signature()) == signature(lowercase, tokenize)
    assert f"tok:{tokenize}" in found.signature
    assert str(found) == f"BLEU {wanted:.2f} ({found.signature})"


def test_the_counts_of_parts_add_up_to_those_of_the_whole(data):
    answers, references = texts(data)
    whole = corpus_bleu(answers, references)
    parts = [corpus_bleu(answers[i::3], references[i::3]).counts for i in range(3)]
    total = sum(parts, BleuCounts())
    assert total == whole.counts
    assert total.score() == pytest.approx(whole.score, abs=1e-9)
    assert BleuCounts.of([float(number) for number in total.numbers()]) == total


def test_outputs_without_a_word_score_nothing_and_divide_nothing_by_zero():
    assert corpus_bleu([""], ["a cat"]).score == 0
    assert corpus_bleu(["", ""], ["", ""]).score == 0
    assert corpus_bleu([], []).score == BleuCounts().score() == 0
    assert corpus_bleu(["a"], ["a"]).score >= 0
    with pytest.raises(UsageError, match="1 answers but 2 references"):
        corpus_bleu(["a"], ["a", "b"])


def test_a_missing_library_is_answered_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(UsageError, match=r"pip install 'saccade\[text\]'"):
        corpus_bleu(["a"], ["a"])


def test_perplexity_of_a_fair_die_is_its_number_of_faces_and_is_never_an_error():
    assert perplexity(math.log(6)) == pytest.approx(6)
    assert perplexity(1e6) == math.inf


def test_each_place_is_counted_by_itself():
    wanted = np.array([[1, 2, 3], [4, 5, 0]])
    answer = np.array([[1, 9, 3], [4, 9, 0]])
    mask = np.array([[True, True, True], [True, True, False]])
    found = by_position(answer, wanted, mask)
    assert found.accuracy.tolist() == [1, 0, 1]
    assert found.mean == 3 / 5
    longer = NOWHERE + found + by_position(np.array([[1]]), np.array([[2]]), np.array([[True]]))
    assert longer.accuracy.tolist() == pytest.approx([2 / 3, 0, 1])
    nothing = by_position(answer, wanted, np.zeros_like(mask))
    assert np.isnan(nothing.accuracy).all()
    assert nothing.mean == NOWHERE.mean == 0
