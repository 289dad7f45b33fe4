"""Greedy, drawn and beam-searched texts, against every text there is."""

from itertools import product

import pytest
import torch
from torch import nn

from saccade.errors import UsageError
from saccade.models.text.decoding import DecodingState, Marks, NextToken, Sentence, beam, greedy, sample
from saccade.models.text.gpt import GPT, GPTConfig
from saccade.models.text.seq2seq import Seq2Seq, Seq2SeqConfig
from saccade.models.text.transformer import Transformer, TransformerConfig
from saccade.nn.block import BlockStyle

MARKS = Marks(bos=1, eos=2, pad=0)
V = 6
STYLE = BlockStyle(eps=1e-5)
MODELS = {
    "seq2seq": Seq2Seq(
        Seq2SeqConfig(source=V, vocabulary=V, width=8, hidden=8, context="additive", feed=True)
    ),
    "transformer": Transformer(
        TransformerConfig(source=V, vocabulary=V, width=8, depth=1, heads=2, hidden=8, block=STYLE)
    ),
    "gpt": GPT(GPTConfig(vocabulary=V, context=32, width=8, depth=1, heads=2, hidden=8, block=STYLE)),
}
B, M = 4, 5
MASK = torch.arange(M) < torch.tensor([[5], [2], [4], [3]])
each_model = pytest.mark.parametrize("name", MODELS)


def made(name, scale=2.0):
    """A model that is sure of something: random weights, larger than usual."""
    generator = torch.Generator().manual_seed(3)
    model = MODELS[name].eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale / 8**0.5)
    return model, torch.randint(3, V, (B, M), generator=generator)


def log_probability(model, source, tokens, ended):
    """Of one text, word by word, from the model itself."""
    state, word = model.start(source, None, MARKS.bos)
    total = 0.0
    for token in (*tokens, *([MARKS.eos] if ended else [])):
        log_p, state = model.step(state, word)
        total += log_p[0, token].item()
        word = torch.tensor([token])
    return total


@each_model
def test_a_beam_of_width_one_is_greedy(name):
    model, source = made(name)
    lone = [texts[0] for texts in beam(model, source, MASK, MARKS, most=9, width=1)]
    found = greedy(model, source, MASK, MARKS, most=9)
    assert [(s.tokens, s.ended) for s in lone] == [(s.tokens, s.ended) for s in found]
    assert [s.log_p for s in lone] == pytest.approx([s.log_p for s in found], abs=1e-4)


@each_model
def test_a_sentence_in_a_batch_is_written_as_it_would_be_alone(name):
    model, source = made(name)
    whole = beam(model, source, MASK, MARKS, most=7, width=3), greedy(model, source, MASK, MARKS, most=7)
    for i, length in enumerate(MASK.sum(1).tolist()):
        alone = source[i : i + 1, :length]
        texts = beam(model, alone, None, MARKS, most=7, width=3)[0]
        assert [s.tokens for s in texts] == [s.tokens for s in whole[0][i]]
        assert greedy(model, alone, None, MARKS, most=7)[0].tokens == whole[1][i].tokens


@each_model
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_a_wide_beam_finds_the_best_of_all_texts(name, alpha):
    model, source = made(name)
    most, words = 3, range(3, V)
    texts = [(t, True) for n in range(most) for t in product(words, repeat=n)]
    texts += [(t, False) for t in product(words, repeat=most)]
    with torch.no_grad():
        scored = [Sentence(t, log_probability(model, source[:1], t, end), end) for t, end in texts]
    scored.sort(key=lambda s: -s.score(alpha))
    found = beam(model, source[:1], None, MARKS, most=most, width=60, alpha=alpha)[0]
    assert [s.tokens for s in found[:20]] == [s.tokens for s in scored[:20]]
    assert [s.log_p for s in found[:20]] == pytest.approx([s.log_p for s in scored[:20]], abs=1e-4)
    assert len(found) == len(texts)


@each_model
def test_a_wider_beam_is_never_worse_here_and_scores_are_those_of_its_texts(name):
    model, source = made(name)
    found = beam(model, source[:1], None, MARKS, most=5, width=4, alpha=0.0)[0]
    assert len(found) == 4
    assert found[0].log_p >= greedy(model, source[:1], None, MARKS, most=5)[0].log_p - 1e-6
    with torch.no_grad():
        for text in found:
            expected = log_probability(model, source[:1], text.tokens, text.ended)
            assert text.log_p == pytest.approx(expected, abs=1e-4)


@each_model
def test_marks_are_never_written_and_no_text_is_longer_than_asked(name):
    model, source = made(name)
    ways = [
        greedy(model, source, MASK, MARKS, most=6),
        sample(model, source, MASK, MARKS, most=6, temperature=5.0),
        [s for texts in beam(model, source, MASK, MARKS, most=6, width=4) for s in texts],
    ]
    for texts in ways:
        assert all(set(s.tokens) <= set(range(3, V)) for s in texts)
        assert all(len(s.tokens) + s.ended <= 6 for s in texts)
        assert all(s.ended or len(s.tokens) == 6 for s in texts)


@each_model
def test_the_same_seed_draws_the_same_text_and_another_seed_another(name):
    model, source = made(name, scale=0.5)
    texts = [[s.tokens for s in sample(model, source, MASK, MARKS, seed=seed)] for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]


class Fixed(nn.Module):
    """Scores words by a table: the next depends on the last."""

    def __init__(self, p):
        super().__init__()
        self.log_p = torch.tensor(p).log()

    def start(self, source, mask, bos):
        return Nothing(), torch.full((source.shape[0],), bos)

    def step(self, state, token):
        return self.log_p[token], state


class Nothing:
    def reorder(self, index):
        return self


TABLE = [[0.0] * 6, [0, 0, 0.1, 0.4, 0.3, 0.2]] + [[0, 0, 1.0, 0, 0, 0]] * 4


def drawn(count=4000, **settings):
    """How often each word is drawn after the beginning."""
    model = Fixed(TABLE)
    assert isinstance(model, NextToken)
    assert isinstance(Nothing(), DecodingState)
    texts = sample(model, torch.zeros(count, 1), None, MARKS, most=1, **settings)
    words = torch.tensor([2 if s.ended else s.tokens[0] for s in texts])
    return (torch.bincount(words, minlength=6) / count).tolist()[2:]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.1, 0.4, 0.3, 0.2]),
        ({"top_k": 2}, [0, 4 / 7, 3 / 7, 0]),
        ({"top_k": 1}, [0, 1, 0, 0]),
        ({"top_p": 0.7}, [0, 4 / 7, 3 / 7, 0]),
        ({"top_p": 0.71}, [0, 4 / 9, 3 / 9, 2 / 9]),
        ({"top_p": 1e-6}, [0, 1, 0, 0]),
        ({"temperature": 0.5}, [1 / 30, 16 / 30, 9 / 30, 4 / 30]),
    ],
)
def test_words_are_drawn_by_their_probability_within_the_limits(settings, expected):
    assert drawn(**settings) == pytest.approx(expected, abs=0.03)
    assert [e for e, f in zip(drawn(**settings), expected, strict=True) if f == 0 and e > 0] == []


def test_beam_search_finds_what_greed_misses():
    greedy_first = [[0.0] * 6, [0, 0, 0, 0.6, 0.4, 0], [0, 0, 1.0, 0, 0, 0]]
    table = [*greedy_first, [0, 0, 0.5, 0, 0, 0.5], [0, 0, 1.0, 0, 0, 0], [0, 0, 1.0, 0, 0, 0]]
    model, source = Fixed(table), torch.zeros(1, 1)
    assert greedy(model, source, None, MARKS)[0].tokens[0] == 3
    assert beam(model, source, None, MARKS, width=3, alpha=0.0)[0][0].tokens == (4,)


def test_a_long_text_wins_only_with_length_normalisation():
    short, long = Sentence((3,), -2.0, True), Sentence((3, 4, 5, 3, 4, 5, 3), -2.5, True)
    assert short.score(0.0) > long.score(0.0)
    assert short.score(0.6) < long.score(0.6)
    assert long.score(1.0) == pytest.approx(-2.5 / (13 / 6))


def test_one_mark_for_both_ends_may_end_a_text():
    assert Marks(bos=5, eos=5).unwritten == []
    assert Marks(bos=5, eos=6, pad=0).unwritten == [0, 5]
    assert Marks().unwritten == []


def test_a_model_in_training_is_asked_without_dropout_and_is_in_training_again():
    model, source = made("seq2seq")
    model.train()
    texts = [greedy(model, source, MASK, MARKS, most=5) for _ in range(2)]
    assert texts[0] == texts[1]
    assert model.training
    model.eval()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": 0.0}, "temperature is 0.0; expected a number from 0.001"),
        ({"top_p": 0.0}, "top_p is 0.0; expected a number from 1e-06 to 1"),
        ({"top_k": -1}, "top_k is -1; expected"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_words(settings, words):
    with pytest.raises(UsageError, match=words):
        sample(Fixed(TABLE), torch.zeros(1, 1), None, MARKS, **settings)


def test_a_beam_of_no_width_is_refused():
    with pytest.raises(UsageError, match="width is 0; expected a number from 1"):
        beam(Fixed(TABLE), torch.zeros(1, 1), None, MARKS, width=0)
