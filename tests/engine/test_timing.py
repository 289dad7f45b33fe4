"""One timer for all: contestants in turns, medians and quartiles."""

import subprocess
import sys

from saccade.engine.timing import Timing, race, stopwatch


def test_contestants_take_turns_and_every_other_round_is_reversed():
    order = []

    def clock(name):
        return lambda: order.append(name) or float(len(order))

    rows = race([clock("a"), clock("b")], 0.0, least=2, most=5, warmup=1)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert rows == [[4.0, 5.0], [3.0, 6.0]], "the warm-up is not counted"


def test_a_race_ends_with_its_time_or_its_rounds():
    assert len(race([stopwatch(lambda: None)], 60.0, least=2, most=7)[0]) == 7
    assert len(race([stopwatch(lambda: None, pause=0.02)], 0.01, least=3, most=7)[0]) == 3


def test_rounds_are_summed_up_as_median_and_quartiles():
    found = Timing.of([8.0, 1.0, 3.0, 2.0, 5.0])
    assert (found.median, found.low, found.high, found.p95, found.rounds) == (3.0, 2.0, 5.0, 8.0, 5)
    assert Timing.ratio([4.0, 4.0, 6.0, 8.0], [2.0] * 4) == Timing(2.5, 2.0, 3.0, 4.0, 4)
    assert Timing.of([1.0]) == Timing(1.0, 1.0, 1.0, 1.0, 1)


def test_the_timer_is_loaded_without_torch():
    program = "import sys, saccade.engine.timing; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"
