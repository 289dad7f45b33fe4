"""The recurrent encoder-decoder: what it may see, padding, every kind of context, and why not both ways."""

from dataclasses import replace

import laws
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from saccade.errors import UsageError
from saccade.models.text.seq2seq import Seq2Seq, Seq2SeqConfig

SMALL = Seq2SeqConfig(source=20, vocabulary=23, width=8, hidden=12, dropout=0.0)
KINDS = {
    "start": replace(SMALL, cell="lstm", context="start", layers=2),
    "start, backward": replace(SMALL, cell="lstm", context="start", layers=2, encoder="backward"),
    "every": SMALL,
    "every, both": replace(SMALL, encoder="both", cell="lstm"),
    "additive": replace(SMALL, context="additive", encoder="both"),
    "additive, deep": replace(SMALL, context="additive", cell="lstm", layers=2, encoder="both"),
    "additive, fed": replace(SMALL, context="additive", feed=True),
    "dot": replace(SMALL, context="dot", cell="rnn"),
    "dot, backward": replace(SMALL, context="dot", encoder="backward"),
    "dot, fed": replace(SMALL, context="dot", feed=True),
    "general": replace(SMALL, context="general", encoder="both", layers=2),
    "general, fed": replace(SMALL, context="general", encoder="both", cell="lstm", feed=True),
}
B, M, N = 3, 6, 5
MASK = torch.arange(M) < torch.tensor([[6], [2], [4]])
each_kind = pytest.mark.parametrize("kind", KINDS)


def made(kind):
    source, target = torch.randint(20, (B, M)), torch.randint(23, (B, N))
    return Seq2Seq(KINDS[kind]).eval(), source, target


@each_kind
def test_it_fits_both_seams_and_writes_a_word_at_a_time_what_it_reads_at_once(kind):
    model, source, target = made(kind)
    assert model(source, MASK, target).shape == (B, N, 23)
    laws.word_by_word_is_the_whole_sentence(model, source, MASK, target)


@each_kind
def test_a_state_can_be_taken_in_any_order(kind):
    model, source, target = made(kind)
    laws.a_state_can_be_taken_in_any_order(model, source, MASK, target, atol=1e-6)


@each_kind
def test_no_gradient_comes_from_a_later_word(kind):
    model, source, target = made(kind)
    seen = []
    model.decoder.words.register_forward_hook(lambda _, __, out: seen.append(out.requires_grad_()) or out)
    laws.no_gradient_comes_from_a_later_word(model(source, MASK, target), seen[0])


@each_kind
def test_changing_padding_leaves_the_loss_equal_to_the_last_bit(kind):
    model, source, target = made(kind)

    def loss(given):
        return F.cross_entropy(model(given, MASK, target).flatten(0, 1), target.flatten())

    laws.padding_changes_no_bit(source, MASK, loss)


@each_kind
def test_a_padded_batch_equals_its_sentences_alone(kind):
    model, source, target = made(kind)
    laws.a_padded_batch_is_its_sentences_alone(model, source, MASK, target, atol=1e-6)


@each_kind
def test_every_parameter_learns(kind):
    model, source, target = made(kind)
    laws.every_parameter_learns(model, source, MASK, target)


@each_kind
def test_the_source_matters_and_an_alignment_is_a_distribution_over_its_words(kind):
    model, source, target = made(kind)
    logits, p = model.align(source, MASK, target)
    assert not torch.equal(logits, model((source + 1) % 20, MASK, target))
    assert_close(p.sum(-1), torch.ones(B, N))
    if model.config.looks:
        assert p.shape == (B, N, M)
        assert p.masked_select(~MASK[:, None]).eq(0).all()


def test_additive_attention_is_the_equation_of_its_paper():
    """e_j = v . tanh(W s + U h_j), alpha = softmax(e) (Bahdanau et al. 2015, section 3.1)."""
    model, source, _ = made("additive")
    memory, state = model.encode(source, MASK)
    look, s = model.decoder.look, state[0][-1]
    p = look(s[:, None], memory)[:, 0]
    for i, length in enumerate(MASK.sum(1).tolist()):
        e = [
            look.score.weight[0] @ (look.query(s[i]) + look.key(memory.values[i, j])).tanh()
            for j in range(length)
        ]
        assert_close(p[i, :length], torch.stack(e).softmax(0))


def test_an_encoder_that_reads_backward_hears_the_sentence_turned_round():
    forward, backward = Seq2Seq(SMALL).eval(), Seq2Seq(replace(SMALL, encoder="backward")).eval()
    backward.load_state_dict(forward.state_dict())
    source = torch.randint(20, (B, M))
    turned = source.clone()
    for row, length in enumerate(MASK.sum(1).tolist()):
        turned[row, :length] = source[row, :length].flip(0)
    values, state = forward.encoder(turned, MASK)
    found, last = backward.encoder(source, MASK)
    assert_close(last, state)
    for row, length in enumerate(MASK.sum(1).tolist()):
        assert_close(found[row, :length], values[row, :length].flip(0))


def test_a_decoder_that_reads_both_ways_is_refused_with_the_reason():
    words = "a decoder cannot read both ways: it would copy the words to its right in training"
    with pytest.raises(UsageError, match=words):
        replace(SMALL, decoder="both")


def test_the_leak_that_the_refusal_speaks_of_is_real():
    """A cell that reads backwards knows the next word: its gradient comes from the future."""
    from saccade.nn.text.recurrent import Recurrent

    x = torch.randn(1, 4, 8, requires_grad=True)
    y, _ = Recurrent("gru", 8, 12, bidirectional=True)(x)
    (slope,) = torch.autograd.grad(y[:, 0].sum(), x)
    assert slope[:, 1:].ne(0).any()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"context": "dot", "encoder": "both"}, "use 'general', which has a matrix between them"),
        ({"feed": True}, "feed is on, but context is 'every'; input feeding needs attention"),
        ({"context": "bahdanau"}, "context is 'bahdanau', which is not known"),
        ({"hidden": 0}, "hidden is 0; expected a number from 1"),
    ],
)
def test_a_config_that_cannot_work_is_refused_in_words(change, words):
    with pytest.raises(UsageError, match=words):
        replace(SMALL, **change)


def test_attention_learns_to_copy_and_looks_where_it_copies_from():
    model = Seq2Seq(replace(SMALL, vocabulary=20, width=24, hidden=32, context="additive"))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.015)
    generator = torch.Generator().manual_seed(0)
    for _ in range(150):
        source = torch.randint(3, 10, (24, 4), generator=generator)
        target_in = torch.cat([torch.ones_like(source[:, :1]), source[:, :-1]], dim=1)
        loss = F.cross_entropy(model(source, None, target_in).flatten(0, 1), source.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.3
    p = model.eval().align(source, None, target_in)[1]
    assert p.diagonal(dim1=1, dim2=2).mean() > 0.6  # 1 / 4 by chance
