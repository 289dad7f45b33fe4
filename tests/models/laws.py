"""What holds for every model of text: cached or not, padded or not, and never ahead of its time."""

import torch
import torch.nn.functional as F
from torch.testing import assert_close

from saccade.models.text.decoding import NextToken, Translator


def word_by_word_is_the_whole_sentence(model, source, mask, target):
    assert isinstance(model, Translator)
    assert isinstance(model, NextToken)
    state, first = model.start(source, mask, 1)
    assert first.tolist() == [1] * source.shape[0]
    rows = []
    for word in target.unbind(1):
        log_p, state = model.step(state, word)
        rows.append(log_p)
    assert_close(torch.stack(rows, 1), model(source, mask, target).log_softmax(-1), atol=1e-5, rtol=0)


def a_state_can_be_taken_in_any_order(model, source, mask, target, atol=1e-5):
    state, _ = model.start(source, mask, 1)
    _, state = model.step(state, target[:, 0])
    order = torch.tensor([2, 0, 2, 1])
    found, _ = model.step(state.reorder(order), target[order, 1])
    assert_close(found, model.step(state, target[:, 1])[0][order], atol=atol, rtol=0)


def no_gradient_comes_from_a_later_word(logits, vectors):
    """`vectors` are the words that the logits were computed from, in a graph."""
    for i in range(logits.shape[1]):
        (slope,) = torch.autograd.grad(logits[:, i].square().sum(), vectors, retain_graph=True)
        assert slope[:, i + 1 :].eq(0).all()
        assert slope[:, : i + 1].ne(0).any()


def padding_changes_no_bit(tokens, mask, loss):
    """`loss` is that of tokens in which the padding may be anything."""
    losses = []
    for seed in range(2):
        noise = torch.randint(20, tokens.shape, generator=torch.Generator().manual_seed(seed))
        losses.append(loss(tokens.where(mask, noise)))
    assert torch.equal(*losses)


def a_padded_batch_is_its_sentences_alone(model, source, mask, target, atol=1e-5):
    batch = model(source, mask, target)
    for i, length in enumerate(mask.sum(1).tolist()):
        alone = model(source[i : i + 1, :length], None, target[i : i + 1])
        assert_close(batch[i : i + 1], alone, atol=atol, rtol=0)


def every_parameter_learns(model, source, mask, target):
    F.cross_entropy(model.train()(source, mask, target).flatten(0, 1), target.flatten()).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
