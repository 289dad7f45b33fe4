"""The next word and the hidden word as tasks."""

import math

import numpy as np
import pytest
import torch
from texts import train
from torch.testing import assert_close

from saccade.errors import UsageError
from saccade.models.text.bert import BERT, BERTConfig
from saccade.models.text.gpt import GPT, GPTConfig
from saccade.nn.block import BlockStyle
from saccade.tasks.language.batches import Windows, once
from saccade.tasks.language.loss import HiddenWord, NextWord, hide
from saccade.text.generate import Decoding, completions, fillings
from saccade.text.tokenizer_files import vocabulary
from saccade.text.vocabulary import BOS, MARKS, MASK, learn
from saccade.train.loop import Learner

TEXT = "the cat sat on the mat and the dog sat on the log. " * 60
LETTERS = learn([TEXT], "characters")
NUMBERS = np.array(LETTERS.encode(TEXT), np.int32)
SIZES = {"width": 32, "depth": 1, "heads": 4, "hidden": 64, "context": 17}


def gpt():
    return GPT(GPTConfig(vocabulary=len(LETTERS), block=BlockStyle(eps=1e-5), **SIZES))


def bert(vocabulary):
    block = BlockStyle(placement="post", eps=1e-5)
    return BERT(BERTConfig(vocabulary=vocabulary, pooled=False, block=block, **SIZES))


def test_one_pass_over_a_window_is_a_pass_for_each_of_its_words():
    module = gpt().eval()
    task = NextWord(module)
    assert isinstance(task, Learner)
    batch = Windows(NUMBERS, 8, 2)[0]
    losses = [
        -module(batch["tokens"][:, :n])[:, -1].log_softmax(-1).gather(1, batch["tokens"][:, n : n + 1]).mean()
        for n in range(1, 9)
    ]
    assert_close(task.loss(batch)["loss"], torch.stack(losses).mean(), atol=1e-5, rtol=0)


def test_an_untrained_model_is_as_unsure_as_among_all_words_and_a_trained_one_is_not():
    module = gpt()
    task = NextWord(module)
    before = task.score(module, once(NUMBERS[:500], 16, 8))
    assert before["perplexity"] == pytest.approx(len(LETTERS), rel=0.1)
    train(task, Windows(NUMBERS, 16, 16), 130, lr=1e-2)
    after = task.score(module, once(NUMBERS[:500], 16, 8))
    assert next(iter(after)) == "accuracy"
    assert after["accuracy"] > 0.8
    assert after["perplexity"] == pytest.approx(math.exp(after["loss"]))
    assert after["perplexity"] < 2.5
    assert after["count"] == 31 * 16
    assert module.training
    ((told,),) = completions(module, LETTERS, ["the cat sat on the m"], Decoding(most=6))
    assert told.text.startswith("at and")


def test_of_the_words_a_seventh_is_hidden_and_of_these_8_in_10_masked_1_exchanged_1_kept():
    tokens = torch.full((400, 100), 200)
    found = hide(tokens, torch.arange(400), 0, torch.arange(5, 8000), MASK, seed=0)
    assert (found.places.sum(1) == 15).all()
    hidden = found.shown[found.places]
    assert (hidden == MASK).float().mean().item() == pytest.approx(0.8, abs=0.02)
    assert (hidden == 200).float().mean().item() == pytest.approx(0.1, abs=0.015)
    other = hidden[(hidden != MASK) & (hidden != 200)]
    assert other.min() >= len(MARKS)
    assert other.max() < 8000
    assert len(other.unique()) > 500
    assert (found.shown == tokens)[~found.places].all()
    assert (found.places.float().mean(0) > 0.08).all(), "every place has its turn"


def test_what_is_hidden_depends_on_seed_epoch_and_window_alone():
    tokens, words = torch.randint(5, 99, (6, 20)), torch.arange(5, 99)
    index = torch.tensor([7, 3, 11, 0, 5, 2])
    whole = hide(tokens, index, 4, words, MASK, seed=1)
    some = hide(tokens[2:4], index[2:4], 4, words, MASK, seed=1)
    assert_close(whole.shown[2:4], some.shown, rtol=0, atol=0)
    for epoch, seed in ((5, 1), (4, 2)):
        assert (hide(tokens, index, epoch, words, MASK, seed).places != whole.places).any()


def test_naming_only_the_hidden_places_is_naming_all_and_choosing():
    module = bert(len(LETTERS)).eval()
    task = HiddenWord(module, LETTERS, seed=3)
    batch = Windows(NUMBERS, 17, 4)[5]
    logits, wanted = task.answers(module, batch)
    tokens = batch["tokens"][:, :-2]
    found = hide(tokens, batch["index"], 0, task.words, MASK, 3)
    shown = torch.cat([torch.full((4, 1), BOS), found.shown], dim=1)
    assert_close(logits, module(shown)[:, 1:][found.places])
    assert_close(wanted, tokens[found.places])
    assert shown.shape[1] == 17


def test_windows_are_framed_by_the_marks_of_whoever_made_the_vocabulary():
    names = ["[PAD]", "[UNK]", "the", "cat", "[CLS]", "sat", "on", "[SEP]", "mat", "[MASK]", "."]
    pieces = vocabulary({"vocab.txt": "\n".join(names).encode()})
    module, seen = bert(len(names)), []
    task = HiddenWord(module, pieces)
    module.words.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    numbers = np.array(pieces.encode("the cat sat on the mat . " * 40), np.int32)
    for i in range(8):
        _, wanted = task.answers(module, Windows(numbers, 17, 8)[i])
        assert not {*wanted.tolist()} & {*pieces.marks}
    shown = torch.cat(seen)
    assert shown.shape[1] == 17
    assert (shown[:, 0] == 4).all()
    assert (shown[:, -1] == 7).all()
    assert {*shown[:, 1:-1].flatten().tolist()} == {2, 3, 5, 6, 8, 9, 10}, "words and [MASK], no other mark"
    without = vocabulary({"vocab.txt": "\n".join(names[:-2]).encode()})
    with pytest.raises(UsageError, match="has no mark for a hidden word"):
        HiddenWord(gpt(), without)


def test_hidden_words_are_learnt_and_filled_in():
    told = [" ".join([word] * 30) for word in ("cat", "dog", "fish", "bird", "horse")]
    pieces = learn(told)
    numbers = np.array([number for text in told * 5 for number in pieces.encode(text)], np.int32)
    module = bert(len(pieces))
    task = HiddenWord(module, pieces)
    train(task, Windows(numbers, 17, 16), 140, lr=5e-3)
    scores = task.score(module, once(numbers, 17, 8))
    assert scores["accuracy"] > 0.8
    assert task.score(module, once(numbers, 17, 8)) == scores, "the same words are hidden each time"
    ((found,),) = fillings(module, pieces, ["dog dog dog [MASK] dog dog dog"], top=3)
    assert found[0].word == "dog"
    assert 0 < found[2].p <= found[0].p <= 1


def test_smoothing_is_for_learning_only():
    module = gpt().eval()
    batch = Windows(NUMBERS, 16, 4)[0]
    plain, smooth = NextWord(module), NextWord(module, smoothing=0.3)
    assert plain.loss(batch)["loss"] != smooth.loss(batch)["loss"]
    assert plain.score(module, [batch]) == smooth.score(module, [batch])
    with pytest.raises(UsageError, match="smoothing is 2"):
        NextWord(module, smoothing=2.0)
