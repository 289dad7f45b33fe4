"""BERT: it looks both ways, padding aside, and fills in hidden words."""

from dataclasses import replace

import laws
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from saccade.errors import UsageError
from saccade.models.text import names
from saccade.models.text.bert import BERT, BERTConfig
from saccade.models.text.decoding import Filler
from saccade.nn.block import BlockStyle

SMALL = BERTConfig(
    vocabulary=20, context=12, width=24, depth=2, heads=3, hidden=48,
    block=BlockStyle(placement="post", eps=1e-12),
)  # fmt: skip
B, N = 3, 7
MASK = torch.arange(N) < torch.tensor([[7], [1], [4]])


def made(**changes):
    return BERT(replace(SMALL, **changes)).eval(), torch.randint(20, (B, N))


def test_every_word_sees_every_other_on_both_sides():
    model, tokens = made()
    assert isinstance(model, Filler)
    z = model.embed(tokens).detach().requires_grad_()
    model.embed = lambda *_: z
    logits = model(tokens)
    for i in range(N):
        (slope,) = torch.autograd.grad(logits[:, i].square().sum(), z, retain_graph=True)
        assert slope.ne(0).any(-1).all()


@pytest.mark.parametrize("style", [SMALL.block, BlockStyle(norm="rms"), BlockStyle(norm="power")])
def test_changing_padding_leaves_the_loss_equal_to_the_last_bit(style):
    model, tokens = made(block=style)

    def loss(given):
        return F.cross_entropy(model(given, MASK)[MASK], tokens[MASK])

    laws.padding_changes_no_bit(tokens, MASK, loss)


def test_a_padded_batch_equals_its_texts_alone():
    model, tokens = made()
    batch, vectors = model(tokens, MASK), model.summary(model.encode(tokens, MASK))
    for i, length in enumerate(MASK.sum(1).tolist()):
        alone = tokens[i : i + 1, :length]
        assert_close(batch[i : i + 1, :length], model(alone), atol=1e-5, rtol=0)
        assert_close(vectors[i : i + 1], model.summary(model.encode(alone)), atol=1e-5, rtol=0)


def test_only_the_hidden_places_need_to_be_read():
    model, tokens = made()
    hidden = torch.rand(B, N) < 0.3
    assert_close(model.read(model.encode(tokens)[hidden]), model(tokens)[hidden], atol=1e-6, rtol=0)


def test_segments_matter_and_are_the_first_where_none_are_given():
    model, tokens = made()
    first = torch.zeros_like(tokens)
    assert_close(model(tokens), model(tokens, None, first))
    assert not torch.equal(model(tokens), model(tokens, None, first + 1))


def test_a_class_is_read_from_the_summary():
    model, tokens = made(classes=2)
    z = model.encode(tokens)
    assert_close(model.classify(z), model.head(model.pool(z[:, 0]).tanh()))


@pytest.mark.parametrize(
    ("changes", "call", "words"),
    [
        ({"fills": False}, lambda model, t: model(t), "has no head for hidden words; build it with fills"),
        ({"pooled": False}, lambda model, t: model.summary(model.encode(t)), "has no pooled output"),
        ({}, lambda model, t: model.classify(model.encode(t)), "this BERT has no classes; build it with"),
    ],
)
def test_a_head_that_is_not_there_is_refused_in_words(changes, call, words):
    model, tokens = made(**changes)
    with pytest.raises(UsageError, match=words):
        call(model, tokens)


def test_classes_without_a_summary_are_refused():
    with pytest.raises(UsageError, match="classes is 2, but pooled is off; classes need the pooled output"):
        replace(SMALL, classes=2, pooled=False)


@pytest.mark.parametrize("name", ["bert_mini", "bert_small"])
def test_every_parameter_of_a_small_bert_learns_from_hidden_words(name):
    model = BERT(replace(names.text_config(name, vocabulary=20), width=24, heads=3, hidden=48))
    F.cross_entropy(model(torch.randint(20, (B, N))).flatten(0, 1), torch.randint(20, (B * N,))).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


def test_bert_base_counts_as_published():
    with torch.device("meta"):
        body = BERT(BERTConfig(fills=False))
        whole = BERT(BERTConfig(classes=2))
    assert sum(p.numel() for p in body.parameters()) == 109_482_240
    assert sum(p.numel() for p in whole.parameters()) == 110_106_428


def test_it_learns_to_fill_a_word_from_its_neighbours():
    """Texts count upwards from a small number: a hidden one follows from either side."""
    model = BERT(replace(SMALL, pooled=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        tokens = torch.randint(1, 5, (32, 1), generator=generator) + torch.arange(N)
        hidden = F.one_hot(torch.randint(N, (32,), generator=generator), N).bool()
        z = model.encode(tokens.masked_fill(hidden, 0))
        loss = F.cross_entropy(model.read(z[hidden]), tokens[hidden])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.5
