"""Batches of sentences and of running text: all words once, like lengths together, and nothing by chance."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from saccade.data.loader import load_batches
from saccade.errors import DataError, UsageError
from saccade.tasks.language import batches as windows
from saccade.tasks.language.batches import Windows
from saccade.tasks.translate.batches import STEP, Buckets, Limit, Pairs, Shuffled, once
from saccade.text.vocabulary import BOS, EOS, PAD, EncodedTexts, pad


def numbered(rows):
    flat = np.array([word for row in rows for word in row], np.int32)
    return EncodedTexts(flat, np.cumsum([len(row) for row in rows], dtype=np.int64))


def pairs(count=200, seed=0, longest=30):
    rng = np.random.default_rng(seed)
    rows = [rng.integers(5, 99, rng.integers(1, longest)).tolist() for _ in range(2 * count)]
    return Pairs(numbered(rows[:count]), numbered(rows[count:]))


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=80),
    st.integers(1, 200),
    st.integers(1, 20),
    st.integers(0, 9),
)
def test_each_epoch_has_every_sentence_once_within_the_limits(lengths, tokens, sentences, seed):
    limit = Limit(tokens=tokens, sentences=sentences)
    buckets = Buckets(np.array(lengths), limit, seed)
    for epoch in (0, 1):
        batches = [buckets.rows(epoch * len(buckets) + i) for i in range(len(buckets))]
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
        for rows in batches:
            longest = max(lengths[i] for i in rows)
            assert len(rows) <= sentences
            assert len(rows) == 1 or len(rows) * longest <= tokens


def test_sentences_of_a_batch_are_of_like_length():
    found = pairs(2000, longest=60)
    buckets = Buckets(found.lengths, Limit(tokens=600))
    spreads = [np.ptp(found.lengths[buckets.rows(i)]) for i in range(len(buckets))]
    assert np.mean(spreads) < STEP
    full = sum(len(buckets.rows(i)) * found.lengths[buckets.rows(i)].max() for i in range(len(buckets)))
    assert found.lengths.sum() / full > 0.9, "less than a tenth is padding"


def test_epochs_differ_in_batches_and_in_their_order_but_not_in_number():
    buckets = Buckets(pairs(500).lengths, Limit(tokens=200))
    one, two = ([frozenset(buckets.rows(e * len(buckets) + i)) for i in range(len(buckets))] for e in (0, 1))
    assert len(set(one) & set(two)) < len(one) / 4
    lengths = [[len(batch) for batch in epoch] for epoch in (one, two)]
    assert sorted(lengths[0]) == sorted(lengths[1])
    assert lengths[0] != lengths[1]


def test_a_batch_depends_on_seed_and_number_alone():
    lengths = pairs(300).lengths
    ahead, again = (Buckets(lengths, Limit(tokens=200), seed=4) for _ in range(2))
    number = 5 * len(ahead) + 3
    for i in (0, number - 1, 7):
        again.rows(i)
    assert ahead.rows(number).tolist() == again.rows(number).tolist()
    assert ahead.rows(number).tolist() != Buckets(lengths, Limit(tokens=200), seed=5).rows(number).tolist()


def test_a_restart_and_workers_change_nothing():
    made = lambda: Shuffled(*(p := pairs(60), Buckets(p.lengths, Limit(tokens=100), 1)))  # noqa: E731
    whole = list(load_batches(made(), 0, 30))
    later = [*load_batches(made(), 0, 11), *load_batches(made(), 11, 30, workers=2)]
    assert len(later) == 30
    for a, b in zip(whole, later, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            assert_close(a[name], b[name], rtol=0, atol=0)


def test_a_batch_is_padded_on_the_right_and_framed_by_marks():
    found = Pairs(numbered([[7, 8], [9]]), numbered([[5], [6, 7, 8]])).batch(np.array([0, 1]))
    assert found["source"].tolist() == [[7, 8, EOS], [9, EOS, PAD]]
    assert found["source_mask"].tolist() == [[True, True, True], [True, True, False]]
    assert found["target_in"].tolist() == [[BOS, 5, PAD, PAD], [BOS, 6, 7, 8]]
    assert found["target_out"].tolist() == [[5, EOS, PAD, PAD], [6, 7, 8, EOS]]
    assert found["target_mask"].tolist() == [[True, True, False, False], [True] * 4]
    assert found["words"] == 6
    assert found["index"].tolist() == [0, 1]


def test_processes_share_a_batch_and_its_words_add_up():
    found = pairs(50)
    rows = np.arange(7)
    whole = found.batch(rows)
    parts = [found.batch(rows, part=(rank, 3)) for rank in range(3)]
    assert sorted(i for part in parts for i in part["index"].tolist()) == list(range(7))
    assert sum(float(part["words"]) for part in parts) == pytest.approx(float(whole["words"]))
    assert sum(int(part["target_mask"].sum()) for part in parts) == int(whole["words"])


def test_a_process_without_a_sentence_gets_one_that_does_not_count():
    part = pairs(5).batch(np.array([2]), part=(1, 2))
    assert part["index"].tolist() == [2]
    assert not part["target_mask"].any()
    assert part["source_mask"].any()


def test_scoring_sees_every_pair_once_in_whatever_parts():
    found = pairs(101)
    for size in (1, 3):
        seen = [
            i
            for rank in range(size)
            for b in once(found, Limit(tokens=90), (rank, size))
            for i in b["index"].tolist()
        ]
        assert sorted(seen) == list(range(101))


def test_what_is_too_long_can_be_left_out():
    found = pairs(100)
    kept = found.within(10)
    assert 0 < len(kept) < 100
    assert found.lengths[kept].max() <= 10


def test_empty_sentences_and_sets():
    tokens, mask = pad([np.array([], np.int64), np.array([5])])
    assert tokens.tolist() == [[PAD], [5]]
    assert mask.tolist() == [[False], [True]]
    with pytest.raises(DataError, match="no sentence pairs to train on"):
        Buckets(np.array([], np.int64), Limit())
    with pytest.raises(UsageError, match="2 sources but 1 targets"):
        Pairs(numbered([[1], [2]]), numbered([[1]]))
    with pytest.raises(UsageError, match=r"limit.tokens is 0"):
        Limit(tokens=0)


@settings(deadline=None)
@given(st.integers(2, 300), st.integers(1, 20), st.integers(1, 9), st.integers(0, 3))
def test_windows_are_neighbours_and_an_epoch_has_each_once(n, context, batch, seed):
    text = np.arange(n, dtype=np.int32)
    if n <= context:
        with pytest.raises(DataError, match="expected more than the model's context"):
            Windows(text, context, batch, seed)
        return
    made = Windows(text, context, batch, seed)
    for epoch in (0, 1):
        rows = torch.cat([made[epoch * len(made) + i]["tokens"] for i in range(len(made))])
        assert rows.shape[1] == context + 1
        assert ((rows[:, 1:] - rows[:, :-1]) == 1).all()
        starts = rows[:, 0].tolist()
        assert len(set(starts)) == len(starts)
        assert len({start % context for start in starts}) == 1
        assert len(starts) > made.count - made.batch


def test_windows_depend_on_seed_and_number_alone_and_are_shared_by_processes():
    text = np.random.default_rng(0).integers(0, 99, 5000).astype(np.int32)
    whole, again = Windows(text, 16, 8, 1), Windows(text, 16, 8, 1)
    number = 3 * len(whole) + 5
    again[2]
    assert_close(whole[number]["tokens"], again[number]["tokens"], rtol=0, atol=0)
    assert whole[number]["tokens"].tolist() != whole[number - len(whole)]["tokens"].tolist()
    parts = [Windows(text, 16, 8, 1, (rank, 2))[number] for rank in range(2)]
    joined = torch.cat([part["tokens"] for part in parts])
    assert sorted(map(tuple, joined.tolist())) == sorted(map(tuple, whole[number]["tokens"].tolist()))


def test_scoring_windows_cover_the_text_once():
    text = np.arange(100, dtype=np.int32)
    rows = torch.cat([b["tokens"] for b in windows.once(text, 9, 4)])
    assert rows[:, 1:].flatten().tolist() == list(range(1, 100))
    halves = [b["index"] for rank in range(2) for b in windows.once(text, 9, 4, (rank, 2))]
    assert sorted(torch.cat(halves).tolist()) == list(range(11))
    assert len(list(windows.once(text[:5], 9, 4))) == 1, "a text shorter than a window is one"
    with pytest.raises(DataError, match="expected two or more"):
        list(windows.once(text[:1], 9, 4))
