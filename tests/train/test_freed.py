"""Freed memory is kept: a step after the first ones asks the system for next to no pages."""

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys, torch
from saccade.train.freed import keep_freed
if sys.argv[1] == "keep" and not keep_freed():
    raise SystemExit(77)
def step():
    held = [torch.ones(1 << 20) for _ in range(20)]
    return sum(float(x[0]) for x in held)
step(), step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    command = [sys.executable, "-c", SCRIPT, how]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("this system's C library has no mallopt")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_a_step_reuses_what_the_last_one_freed() -> None:
    assert faults("keep") < 500 < faults("return")
