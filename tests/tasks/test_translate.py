"""Translation as a task: padding counts for nothing, own words come in time, and it learns."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from texts import SMALL, WORDS, Silent, copies, shuffled, small, train
from torch import nn
from torch.testing import assert_close

from saccade.data.loader import load_batches
from saccade.data.randomness import uniforms
from saccade.errors import UsageError
from saccade.metrics.text import corpus_bleu
from saccade.models.modules import bare
from saccade.nn.block import BlockStyle
from saccade.tasks.translate.batches import Limit, once
from saccade.tasks.translate.loss import (
    TranslationLoss,
    TranslationTally,
    exposure,
    own_words,
    smoothed_loss,
)
from saccade.text.generate import Decoding, translations
from saccade.text.recipe import SCHEDULES, Own
from saccade.text.vocabulary import BOS
from saccade.train.loop import Learner, Plan, TrainState, fit
from saccade.train.optim import adamw


def batch(count=8, part=(0, 1)):
    pairs, _ = copies(40)
    return pairs.batch(np.arange(count), 0, part)


@pytest.mark.parametrize("name", SMALL)
def test_changing_pad_tokens_changes_no_bit_of_loss_or_gradient(name):
    module = small(name)
    task = TranslationLoss(module, WORDS)
    assert isinstance(task, Learner)
    given = batch()
    assert not given["source_mask"].all()
    other = {key: value.clone() for key, value in given.items()}
    chance = torch.Generator().manual_seed(1)
    for key, mask in (("source", "source_mask"), ("target_in", "target_mask"), ("target_out", "target_mask")):
        noise = torch.randint(5, len(WORDS), other[key].shape, generator=chance)
        other[key] = torch.where(other[mask], other[key], noise)
    found = []
    for b in (given, other):
        module.zero_grad()
        loss = task.loss(b)["loss"]
        loss.backward()
        found.append((loss.item(), [p.grad.clone() for p in module.parameters() if p.grad is not None]))
    assert found[0][0] == found[1][0]
    for a, b in zip(found[0][1], found[1][1], strict=True):
        assert_close(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_torchs_mean_over_the_words(smoothing):
    logits, target = torch.randn(3, 4, 9), torch.randint(9, (3, 4))
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)
    loss, right = smoothed_loss(logits, target, mask, smoothing)
    ignored = target.masked_fill(~mask, -100)
    wanted = F.cross_entropy(logits.flatten(0, 1), ignored.flatten(), label_smoothing=smoothing)
    assert_close(loss / 7, wanted)
    assert right == ((logits.argmax(-1) == target) & mask).sum()


def test_the_mean_over_processes_is_the_mean_over_words():
    task = TranslationLoss(small("transformer_mini").eval(), WORDS)
    whole = task.loss(batch(7))["loss"]
    parts = [task.loss(batch(7, (rank, 3)))["loss"] for rank in range(3)]
    assert_close(sum(parts) / 3, whole)


def test_a_process_without_a_sentence_has_no_loss_but_gradients():
    module = small("transformer_mini")
    loss = TranslationLoss(module, WORDS).loss(batch(1, (1, 2)))["loss"]
    loss.backward()
    assert loss.item() == 0
    assert all(p.grad is not None and not p.grad.any() for p in module.parameters())


def by_hand(module, given, own):
    """Scheduled sampling as the paper has it: one word after the other, each from what was chosen before."""
    state, token = module.start(given["source"], given["source_mask"], BOS)
    losses = []
    for t in range(given["target_in"].shape[1]):
        log_p, state = module.step(state, token)
        losses.append(F.nll_loss(log_p, given["target_out"][:, t], reduction="none"))
        if t + 1 < given["target_in"].shape[1]:
            token = torch.where(own[:, t + 1], log_p.argmax(-1), given["target_in"][:, t + 1])
    return (torch.stack(losses, 1) * given["target_mask"]).sum() / given["words"]


@pytest.mark.parametrize("name", SMALL)
def test_own_words_in_one_pass_are_own_words_one_by_one(name):
    module, given = small(name), batch()
    task = TranslationLoss(module, WORDS, smoothing=0.0, own=Own(most=0.5), seed=3, done=lambda: 1.0)
    drawn = uniforms("own words", 3, 0, given["index"].tolist(), given["target_in"].shape[1])
    own = (torch.from_numpy(drawn) < 0.5) & given["target_mask"]
    mixed = own_words(module, given, 0.5, 3)
    assert (mixed != given["target_in"]).any()
    assert (mixed == given["target_in"])[~own].all()
    gradients = []
    for loss in (task.loss(given)["loss"], by_hand(module, given, own)):
        module.zero_grad()
        loss.backward()
        gradients.append((loss.detach(), [p.grad.clone() for p in module.parameters() if p.grad is not None]))
    assert_close(gradients[0][0], gradients[1][0])
    for a, b in zip(gradients[0][1], gradients[1][1], strict=True):
        assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_at_the_start_every_word_is_the_teachers_and_at_most_1_none_is():
    module, given = small("seq2seq_lstm"), batch()
    task = TranslationLoss(module, WORDS, own=Own(most=1.0), done=lambda: 0.0)
    forced = TranslationLoss(module, WORDS)
    assert task.loss(given)["loss"].item() == forced.loss(given)["loss"].item()
    mixed = own_words(module, given, 1.0, 0)
    assert (mixed[:, 0] == BOS).all()
    assert (mixed[:, 1:] == given["target_in"][:, 1:])[given["target_mask"][:, 1:]].float().mean() < 0.5


def test_which_words_are_own_depends_on_seed_epoch_sentence_and_place_alone():
    index = [3, 14, 15]
    whole = uniforms("own words", 1, 2, index, 9)
    assert np.array_equal(uniforms("own words", 1, 2, index[1:2], 9), whole[1:2])
    assert np.array_equal(uniforms("own words", 1, 2, index, 5), whole[:, :5])
    for seed, epoch in ((0, 2), (1, 3)):
        assert (uniforms("own words", seed, epoch, index, 9) != whole).all()
    assert abs(uniforms("own words", 0, 0, range(1000), 20).mean() - 0.5) < 0.01


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_share_of_own_words_rises_to_the_most(schedule):
    shares = [Own(most=0.4, schedule=schedule).share(i / 20) for i in range(21)]
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx(0, abs=2e-3)
    assert shares[-1] == pytest.approx(0.4, abs=2e-3)


def test_settings_outside_their_range_are_refused():
    with pytest.raises(UsageError, match=r"own.most is 2"):
        Own(most=2.0)
    with pytest.raises(UsageError, match=r"own.schedule is 'cosine', which is not known"):
        Own(schedule="cosine")
    with pytest.raises(UsageError, match="smoothing is 1"):
        TranslationLoss(small("seq2seq_lstm"), WORDS, smoothing=1.0)


@pytest.fixture(scope="module")
def copier():
    torch.manual_seed(0)
    pairs, _ = copies(600)
    task = TranslationLoss(small("transformer_mini"), WORDS, smoothing=0.0)
    train(task, shuffled(pairs, 600), 200, lr=5e-3)
    return task


def test_copying_is_learnt_and_scored(copier):
    pairs, texts = copies(60, seed=9)
    scores = copier.score(copier.module, once(pairs, Limit(tokens=100)))
    assert next(iter(scores)) == "bleu"
    assert scores["accuracy"] > 0.95
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]))
    assert scores["count"] == 60
    assert copier.module.training, "left as it was"
    written = [best[0].text for best in translations(copier.module, WORDS, WORDS, texts, batch=16)]
    assert np.mean([a == b for a, b in zip(written, texts, strict=True)]) > 0.9
    assert scores["bleu"] == pytest.approx(corpus_bleu(written, texts).score)
    assert scores["bleu"] > 80
    wider = translations(copier.module, WORDS, WORDS, texts[:9], Decoding(beams=3))
    assert np.mean([best[0].text == text for best, text in zip(wider, texts[:9], strict=True)]) > 0.8


def test_the_tallies_of_parts_make_the_score_of_the_whole(copier):
    pairs, _ = copies(61, seed=9)
    parts = [copier.tally(copier.module, once(pairs, Limit(tokens=100), (rank, 3))) for rank in range(3)]
    summed = TranslationTally.of(np.sum([part.numbers() for part in parts], axis=0).tolist())
    wanted = copier.score(copier.module, once(pairs, Limit(tokens=100)))
    assert copier.scores(summed) == pytest.approx(wanted, rel=1e-5)


def test_exposure_is_compared_place_by_place(copier):
    pairs, texts = copies(80, seed=5)
    found = exposure(copier.module, once(pairs, Limit(tokens=200)))
    assert found.forced.count.tolist() == found.free.count.tolist()
    assert found.forced.count[0] == 80
    assert found.forced.count.sum() == sum(len(text.split()) + 1 for text in texts)
    assert found.forced.accuracy[0] == found.free.accuracy[0], "before the first word both know the same"
    untrained = exposure(small("transformer_mini"), once(pairs, Limit(tokens=200)))
    assert untrained.forced.mean < 0.5 < found.free.mean <= found.forced.mean + 1e-9


def test_training_that_is_cut_in_two_ends_with_the_same_weights():
    pairs, _ = copies(60)
    ends = []
    for cuts in ([12], [5, 12]):
        torch.manual_seed(0)
        module = small("transformer_mini")
        state = TrainState(module, adamw(module, 1e-3, 0.0), steps=12)
        task = TranslationLoss(module, WORDS, own=Own(most=0.5), done=lambda state=state: state.done)
        for cut in cuts:
            watch, batches = Silent(cut), shuffled(pairs, 60, seed=2)
            fit(task, load_batches(batches, state.step, 99), Plan(steps=12, epoch=4, lr=1e-3), state, watch)
        assert state.step == 12
        ends.append(module.state_dict())
    for name, value in ends[0].items():
        assert_close(value, ends[1][name], rtol=0, atol=0)


def test_a_wrapped_module_writes_by_the_one_inside():
    module = small("seq2seq_lstm")
    wrapped = nn.Module()
    wrapped.module = module
    assert bare(wrapped) is module
    assert bare(module) is module


def test_an_empty_or_hopeless_translation_is_no_error():
    module = small("seq2seq_lstm").eval()
    assert len(translations(module, WORDS, WORDS, ["cat", "漢字"])) == 2
    assert translations(module, WORDS, WORDS, []) == []
    assert TranslationLoss(module, WORDS).scores(TranslationTally())["bleu"] == 0


def test_no_norm_counts_the_words_that_a_model_writes_for_itself():
    module, given = small("transformer_mini", block=BlockStyle(norm="power")).train(), batch()
    before = {name: value.clone() for name, value in module.named_buffers()}
    own_words(module, given, 0.5, 0)
    assert before
    assert all(torch.equal(before[name], value) for name, value in module.named_buffers())
    assert module.training
