"""Random numbers by counting: as good as random, and the same wherever and whenever they are drawn."""

import pickle
import subprocess
import sys
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from saccade.data.randomness import Draws, _absorb, _absorb_each, permutation

COUNT = 4000
# one test in a thousand would fail by bad luck, but the luck here is always the same
LUCK = 1e-3

DRAWS = {
    "by sample": lambda i: Draws(0, 0, i).uniform("flip"),
    "by epoch": lambda i: Draws(0, i, 0).uniform("flip"),
    "by seed": lambda i: Draws(i, 0, 0).uniform("flip"),
    "by number": lambda i: Draws(0, 0, 0).uniform("flip", i),
    "by operation": lambda i: Draws(0, 0, 0).uniform(f"operation {i}"),
}


@cache
def along(draw) -> np.ndarray:
    return np.array([draw(i) for i in range(COUNT)])


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_draws_are_uniform_along_every_counter(draw):
    found = along(draw)
    assert ((found >= 0) & (found < 1)).all()
    assert stats.kstest(found, "uniform").pvalue > LUCK
    assert stats.chisquare(np.histogram(found, bins=100, range=(0, 1))[0]).pvalue > LUCK


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
@pytest.mark.parametrize("lag", [1, 2, 8, 64])
def test_neighbouring_counters_know_nothing_of_each_other(draw, lag):
    found = along(draw)
    pairs, _, _ = np.histogram2d(found[:-lag], found[lag:], bins=8, range=[(0, 1), (0, 1)])
    assert abs(np.corrcoef(found[:-lag], found[lag:])[0, 1]) < 4 / COUNT**0.5
    assert stats.chisquare(pairs.ravel()).pvalue > LUCK


def test_no_two_counters_can_be_exchanged():
    draws = {Draws(a, b, c).uniform("x", d) for a, b, c, d in product(range(6), repeat=4)}
    assert len(draws) == 6**4


@pytest.mark.parametrize("other", ["crop", "flip2", "Flip", " flip", "flip "])
def test_operations_of_one_sample_are_independent(other):
    first = along(lambda i: Draws(3, 1, i).uniform("flip"))
    second = along(lambda i: Draws(3, 1, i).uniform(other))
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / COUNT**0.5


def test_every_bit_of_a_counter_turns_half_the_bits_of_the_result():
    for bit in range(64):
        turned = [(_absorb(5, i) ^ _absorb(5, i ^ (1 << bit))).bit_count() for i in range(40)]
        assert abs(np.mean(turned) - 32) < 4


RECORDED = [
    ((0, 0, 0), "flip", 0, 0.16876794609530577),
    ((0, 0, 1), "flip", 0, 0.8612678299550767),
    ((0, 1, 0), "flip", 0, 0.018400941589788),
    ((1, 0, 0), "flip", 0, 0.7966639721891633),
    ((0, 0, 0), "crop", 0, 0.9685775767099872),
    ((0, 0, 0), "flip", 1, 0.4085620013359995),
    ((2**40, 3, 10**9), "erase", 7, 0.5073632125936932),
]
"""Another algorithm would be as random, and would end every saved run differently: a decision, not a slip."""


@pytest.mark.parametrize(("chance", "operation", "number", "value"), RECORDED)
def test_the_algorithm_is_the_one_that_saved_runs_were_made_with(chance, operation, number, value):
    assert Draws(*chance).uniform(operation, number) == value


def test_the_other_draws_are_the_ones_that_saved_runs_were_made_with():
    chance = Draws(1, 2, 3)
    assert permutation(0, 0, 10).tolist() == [4, 9, 2, 3, 0, 8, 6, 7, 5, 1]
    assert chance.noise("erase", 8).tolist() == [39, 67, 217, 48, 179, 156, 236, 152]
    assert chance.integer("crop", 1000) == 488
    assert chance.normal("noise") == pytest.approx(0.582252074945993, abs=1e-12)  # libm may differ in a bit
    assert chance.beta("mixup", 0.2, 0.2) == pytest.approx(0.9998063935559278, abs=1e-12)


def test_another_process_draws_the_same():
    draws = "c.uniform('a', 3), c.beta('b', 0.3, 2.0), c.normal('c'), permutation(1, 2, 9).tolist()"
    code = f"from saccade.data.randomness import *; c = Draws(7, 8, 9); print(({draws}))"
    here = eval(draws, {"c": Draws(7, 8, 9), "permutation": permutation})
    for salt in ("1", "2"):  # Python's own hash of a word differs between these two
        command, environment = [sys.executable, "-c", code], {"PYTHONHASHSEED": salt}
        there = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        assert there.stdout.strip() == str(here)


def test_the_order_of_drawing_changes_nothing():
    names = ["crop", "flip", "erase"]
    forward = [Draws(0, 0, i).uniform(name) for i in range(4) for name in names]
    backward = [Draws(0, 0, i).uniform(name) for i in reversed(range(4)) for name in reversed(names)]
    assert forward == backward[::-1]


def test_a_chance_is_a_value_that_can_be_sent_to_a_worker():
    chance = Draws(1, 2, 3)
    sent = pickle.loads(pickle.dumps(chance))
    assert sent == chance == Draws(seed=1, epoch=2, sample=3)
    assert sent.uniform("flip") == chance.uniform("flip")
    assert repr(chance) == "Draws(seed=1, epoch=2, sample=3)"


@given(seed=st.integers(), epoch=st.integers(), sample=st.integers(), number=st.integers())
def test_any_whole_number_can_be_a_counter(seed, epoch, sample, number):
    assert 0 <= Draws(seed, epoch, sample).uniform("", number) < 1


@given(low=st.floats(-1e6, 1e6), high=st.floats(-1e6, 1e6), sample=st.integers(0, 99))
def test_between_stays_between(low, high, sample):
    low, high = sorted((low, high))
    assert low <= Draws(0, 0, sample).between("x", low, high) <= high


@given(n=st.integers(1, 2**40), sample=st.integers(0, 99))
def test_an_integer_is_below_its_limit(n, sample):
    assert 0 <= Draws(0, 0, sample).integer("x", n) < n


def test_integers_are_equally_frequent():
    found = along(lambda i: Draws(0, 0, i).integer("x", 14))
    assert stats.chisquare(np.bincount(found.astype(int), minlength=14)).pvalue > LUCK


def test_flip_is_never_for_zero_always_for_one_and_as_often_as_asked_between():
    assert not along(lambda i: Draws(0, 0, i).flip("x", 0.0)).any()
    assert along(lambda i: Draws(0, 0, i).flip("x", 1.0)).all()
    heads = int(along(lambda i: Draws(0, 0, i).flip("x", 0.3)).sum())
    assert stats.binomtest(heads, COUNT, 0.3).pvalue > LUCK


def test_normal_is_normal():
    assert stats.kstest(along(lambda i: Draws(0, 0, i).normal("x")), "norm").pvalue > LUCK


SHAPES = [(0.2, 0.2), (1.0, 1.0), (0.4, 3.0), (8.0, 8.0), (0.05, 1.0), (150.0, 2.0)]


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_beta_is_distributed_as_scipys(a, b):
    found = np.array([Draws(0, 0, i).beta("x", a, b) for i in range(1500)])
    assert stats.kstest(found, stats.beta(a, b).cdf).pvalue > LUCK


@pytest.mark.parametrize("alpha", [1e-300, 1e-6, 1e-3, 1e3, 1e9])
def test_beta_of_an_extreme_shape_is_a_number_from_zero_to_one(alpha):
    found = np.array([Draws(0, 0, i).beta("x", alpha, alpha) for i in range(300)])
    assert ((found >= 0) & (found <= 1)).all()
    assert (np.minimum(found, 1 - found) < 1e-9).all() if alpha <= 1e-6 else True
    assert 0.4 < found.mean() < 0.6


@pytest.mark.parametrize("n", [0, 1, 2, 1000])
def test_an_order_holds_every_sample_once(n):
    assert sorted(permutation(0, 0, n)) == list(range(n))


def test_orders_differ_between_epochs_and_seeds():
    orders = {tuple(permutation(seed, epoch, 50)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_all_orders_are_equally_frequent():
    found = [tuple(permutation(0, epoch, 4)) for epoch in range(2400)]
    _, counts = np.unique(found, axis=0, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > LUCK


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 10_000])
def test_noise_has_as_many_bytes_as_asked(n):
    assert Draws(0, 0, 0).noise("x", n).shape == (n,)


def test_the_bytes_of_noise_are_equally_frequent():
    found = Draws(0, 0, 0).noise("x", 100_000)
    assert stats.chisquare(np.bincount(found, minlength=256)).pvalue > LUCK


@given(state=st.integers(0, 2**64 - 1))
def test_many_draws_at_once_equal_one_after_the_other(state):
    assert _absorb_each(state, 5).tolist() == [_absorb(state, i) for i in range(5)]
