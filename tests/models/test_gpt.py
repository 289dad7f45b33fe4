"""GPT: it never looks ahead, caches what it knows, shares its table, and counts as published."""

from dataclasses import replace

import laws
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from saccade.errors import ModelError, UsageError
from saccade.models import names
from saccade.models.build import build, from_json, text_kinds, to_json
from saccade.models.text import names as text
from saccade.models.text.decoding import Marks, NextToken, Writer, greedy
from saccade.models.text.gpt import GPT, GPTConfig
from saccade.nn.block import BlockStyle

SMALL = GPTConfig(
    vocabulary=20, context=12, width=24, depth=2, heads=3, hidden=48, block=BlockStyle(eps=1e-5)
)
KINDS = {
    "gpt2": replace(SMALL, block=BlockStyle(eps=1e-5, gelu="tanh")),
    "untied, sines": replace(SMALL, tied=False, position="sinusoidal", bend="relu"),
    "no places": replace(SMALL, position="none"),
    "post": replace(SMALL, block=BlockStyle(placement="post", norm="rms")),
    "power": replace(SMALL, block=BlockStyle(norm="power")),
}
B, N = 3, 7
MASK = torch.arange(N) < torch.tensor([[7], [1], [4]])
each_kind = pytest.mark.parametrize("kind", KINDS)


def made(kind):
    return GPT(KINDS[kind]).eval(), torch.randint(20, (B, N))


@each_kind
def test_cached_writing_equals_full_recomputation(kind):
    model, tokens = made(kind)
    assert isinstance(model, Writer)
    assert isinstance(model, NextToken)
    expected = model(tokens).log_softmax(-1)
    state, word = model.start(tokens[:, :3], None, -1)
    assert torch.equal(word, tokens[:, 2])
    for i in range(3, N + 1):
        log_p, state = model.step(state, word)
        assert_close(log_p, expected[:, i - 1], atol=1e-5, rtol=0)
        word = tokens[:, min(i, N - 1)]


@each_kind
def test_beginnings_of_unequal_length_go_on_as_each_would_alone(kind):
    model, tokens = made(kind)
    state, word = model.start(tokens, MASK, -1)
    order = torch.tensor([1, 2, 0, 1])
    for _ in range(3):
        log_p, state = model.step(state, word)
        word = log_p.argmax(-1)
    log_p, _ = model.step(state.reorder(order), word[order])
    for row, i in enumerate(order.tolist()):
        alone = tokens[i : i + 1, : MASK.sum(1)[i]]
        for _ in range(3):
            alone = torch.cat([alone, model(alone)[:, -1:].argmax(-1)], dim=1)
        assert_close(log_p[row], model(alone)[0, -1].log_softmax(-1), atol=1e-5, rtol=0)


def test_a_short_beginning_keeps_its_words_when_another_fills_the_context():
    model = GPT(SMALL).eval()
    long, short = torch.randint(20, (1, 11)), torch.randint(20, (1, 3))
    both = torch.cat([long, F.pad(short, (0, 8))])
    mask = torch.arange(11) < torch.tensor([[11], [3]])
    marks = Marks()
    together = greedy(model, both, mask, marks, 8)
    for tokens, found in zip((long, short), together, strict=True):
        (alone,) = greedy(model, tokens, None, marks, 8)
        assert found.tokens == alone.tokens
        assert found.log_p == pytest.approx(alone.log_p, abs=1e-4)


def test_a_context_of_one_word_is_refused():
    with pytest.raises(UsageError, match="context is 1; expected a number from 2"):
        replace(SMALL, context=1)


@each_kind
def test_no_gradient_comes_from_a_later_word(kind):
    model, tokens = made(kind)
    z = model.embed(tokens).detach().requires_grad_()
    model.embed = lambda *_: z
    laws.no_gradient_comes_from_a_later_word(model(tokens), z)


@each_kind
def test_the_losses_of_all_places_equal_those_of_each_beginning_alone(kind):
    model, tokens = made(kind)
    logits = model(tokens)
    for i in range(1, N + 1):
        assert_close(logits[:, i - 1], model(tokens[:, :i])[:, -1], atol=1e-5, rtol=0)


@each_kind
def test_changing_padding_leaves_the_loss_equal_to_the_last_bit(kind):
    model, tokens = made(kind)

    def loss(given):
        return F.cross_entropy(model(given, MASK)[MASK], tokens[MASK])

    laws.padding_changes_no_bit(tokens, MASK, loss)


@each_kind
def test_padding_on_the_left_and_on_the_right_are_the_same(kind):
    model, tokens = made(kind)
    pad, words = torch.zeros_like(tokens[:, :2]), torch.ones_like(tokens, dtype=torch.bool)
    right = model(torch.cat([tokens, pad], 1), F.pad(words, (0, 2)))[:, :N]
    left = model(torch.cat([pad, tokens], 1), F.pad(words, (2, 0)))[:, 2:]
    assert_close(left, right, atol=1e-5, rtol=0)
    assert_close(right, model(tokens), atol=1e-5, rtol=0)


def test_every_earlier_word_changes_the_last_answer():
    model, tokens = made("gpt2")
    last = model(tokens)[:, -1]
    for i in range(N):
        other = tokens.clone()
        other[:, i] = (other[:, i] + 1) % 20
        assert model(other)[:, -1].ne(last).any()


def test_a_tied_table_learns_from_both_ends_and_an_untied_one_is_its_own():
    tied, untied = GPT(SMALL), GPT(replace(SMALL, tied=False))
    assert "unembed.own" not in tied.state_dict()
    untied.load_state_dict(tied.state_dict() | {"unembed.own": tied.words.table.weight.detach().clone()})
    tokens = torch.randint(20, (B, N))
    for model in (tied, untied):
        F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
    both = untied.words.table.weight.grad + untied.unembed.own.grad
    assert_close(tied.words.table.weight.grad, both, atol=1e-6, rtol=0)


def test_a_lookup_is_a_product_with_a_one_hot_vector():
    model, tokens = made("no places")
    table = model.words.table.weight
    assert torch.equal(model.words(tokens), F.one_hot(tokens, 20).float() @ table)


def test_writing_goes_on_when_the_context_is_full_and_forgets_its_older_half():
    model, tokens = made("gpt2")
    written = greedy(model, tokens[:1], None, Marks(), most=40)[0]
    assert len(written.tokens) == 40
    state, word = model.start(tokens[:1], None, -1)
    whole = tokens[0].tolist()
    while len(whole) < 12 + 3:
        log_p, state = model.step(state, word)
        word = log_p.argmax(-1)
        whole.append(int(word))
    log_p, _ = model.step(state, word)
    kept = torch.tensor([whole[12 - 6 :]])  # at the thirteenth word, the last six of twelve were read again
    assert_close(log_p, model(kept)[:, -1].log_softmax(-1), atol=1e-5, rtol=0)


def test_of_a_beginning_longer_than_the_context_the_end_is_read():
    model, _ = made("gpt2")
    tokens = torch.randint(20, (2, 30))
    mask = torch.arange(30) < torch.tensor([[30], [5]])
    state, word = model.start(tokens, mask, -1)
    log_p, _ = model.step(state, word)
    assert_close(log_p[:1], model(tokens[:1, -12:])[:, -1].log_softmax(-1), atol=1e-5, rtol=0)
    assert_close(log_p[1:], model(tokens[1:, :5])[:, -1].log_softmax(-1), atol=1e-5, rtol=0)


def test_an_empty_beginning_starts_from_the_mark_or_is_refused():
    model, _ = made("gpt2")
    empty = torch.zeros(1, 0, dtype=torch.long)
    state, word = model.start(empty, None, 7)
    log_p, _ = model.step(state, word)
    assert_close(log_p, model(torch.tensor([[7]]))[:, -1].log_softmax(-1), atol=1e-5, rtol=0)
    with pytest.raises(UsageError, match="the prompt is empty; give at least one word"):
        model.start(empty, None, -1)


def test_a_text_longer_than_the_context_is_refused_in_words():
    with pytest.raises(UsageError, match="the text has 13 tokens, but this model was built for 12; give it"):
        GPT(SMALL)(torch.zeros(1, 13, dtype=torch.long))


def test_it_learns_two_texts_by_heart():
    model = GPT(SMALL)
    tokens = torch.randint(20, (2, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(60):
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1
    written = greedy(model, tokens[:, :2], None, Marks(), most=8)
    assert [s.tokens for s in written] == [tuple(row[2:]) for row in tokens.tolist()]


@pytest.mark.parametrize("name", text.EXAMPLES)
def test_every_name_builds_and_comes_back_from_json(name):
    source = 90 if name.startswith(("seq2seq", "transf")) else None
    config = text.text_config(name, vocabulary=100, source=source)
    assert config.vocabulary == 100
    assert from_json(to_json(config), text_kinds()) == config
    with torch.device("meta"):
        assert build(config).config == config


def test_names_say_what_was_published():
    assert count(text.text_config("gpt2")) == 124_439_808
    mini = text.text_config("gpt_mini", vocabulary=65)
    assert (mini.depth, mini.heads, mini.width, mini.context) == (4, 4, 128, 64)
    assert text.text_config("gpt_mini_256").context == 256
    attention = text.text_config("seq2seq_attention")
    assert (attention.cell, attention.encoder, attention.context) == ("gru", "both", "additive")
    assert text.text_config("seq2seq_lstm").encoder == "backward"
    assert text.text_config("transformer_small_pre_rms").block.norm == "rms"


def count(config):
    with torch.device("meta"):
        return sum(p.numel() for p in build(config).parameters())


def test_a_wrong_name_gets_the_nearest_right_ones_and_pictures_keep_theirs():
    with pytest.raises(UsageError, match="no text model is named 'gpt-2'; did you mean 'gpt2'"):
        text.text_config("gpt-2")
    with pytest.raises(UsageError, match="'gpt2' is a text model; expected a vision model, such as vit_b16"):
        names.config("gpt2")
    assert names.config("vit_b16").width == 768


def test_json_that_is_no_config_is_refused_in_words():
    found = to_json(SMALL)
    for damage, words in (
        ({"kind": "gtp"}, "the model's kind is 'gtp'; expected one of seq2seq, transformer, captioner, gpt"),
        ({"depth": 10**9}, "depth is 1000000000; expected a number from 1 to 1024"),
        ({"tied": 1}, "tied is 1; expected bool"),
    ):
        with pytest.raises(ModelError, match=words):
            from_json(found | damage, text_kinds())
