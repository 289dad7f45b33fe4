"""Confident learning: worked by hand, and equal to its definition written as loops."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.metrics.label_errors import SLACK, LabelError, find_label_errors, thresholds


def slowly(p, labels):
    """The definition, picture by picture: {row: the class that it looks like}."""
    means = {c: p[labels == c, c].mean() for c in set(labels.tolist())}
    found = {}
    for row, label in enumerate(labels.tolist()):
        likely = [c for c in means if c != label and p[row, c] >= means[c] - SLACK]
        best = max(likely, key=lambda c: (p[row, c], -c), default=label)
        if p[row, best] > p[row, label]:
            found[row] = best
    return found


def test_a_case_worked_by_hand():
    p = np.array([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.1, 0.9], [0.4, 0.6], [0.55, 0.45]])
    labels = np.array([0, 0, 0, 1, 1, 1])
    np.testing.assert_allclose(thresholds(p, labels), [0.6, 0.65])
    [found] = find_label_errors(p, labels)  # the last row prefers class 0 too, but not as surely as 0.6
    assert (found.row, found.answer, found.p_answer, found.p_label) == (2, 1, 0.8, 0.2)
    assert found.margin == pytest.approx(0.6)


def test_a_timid_class_is_taken_at_its_word():
    """Class 2 is never surer than 0.5 of its own; class 0 always is: 0.45 suffices for 2 and not for 0."""
    p = np.array(
        [[0.95, 0.03, 0.02], [0.3, 0.25, 0.45], [0.28, 0.3, 0.42], [0.45, 0.35, 0.2], [0.1, 0.9, 0.0]]
    )
    labels = np.array([0, 1, 2, 1, 1])
    assert [(found.row, found.answer) for found in find_label_errors(p, labels)] == [(1, 2)]


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(2, 8), st.floats(0.1, 10))
@settings(max_examples=80, deadline=None)
def test_all_are_found_and_ranked_by_margin(seed, n, classes, sharpness):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, classes)) * sharpness
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    labels = rng.integers(0, classes, n)
    found = find_label_errors(p, labels)
    assert {each.row: each.answer for each in found} == slowly(p, labels)
    margins = [each.margin for each in found]
    assert margins == sorted(margins, reverse=True)
    assert all(
        each.p_answer == p[each.row, each.answer] > p[each.row, labels[each.row]] == each.p_label
        for each in found
    )


def test_a_class_without_pictures_is_never_suspected():
    p = np.array([[0.05, 0.05, 0.9], [0.1, 0.8, 0.1]], np.float32)
    assert thresholds(p, np.array([0, 1]))[2] == np.inf
    assert find_label_errors(p, np.array([0, 1])) == []


def test_rounding_does_not_save_a_wrong_label():
    """All are 0.7 of class 0; their mean in floating point may be a little more, and they still reach it."""
    p = np.tile(np.array([[0.7, 0.3]], np.float32), (1001, 1))
    labels = np.zeros(1001, int)
    labels[-1] = 1
    assert [each.row for each in find_label_errors(p, labels)] == [1000]


def test_nothing_is_no_doubt_and_a_label_outside_is_refused():
    assert find_label_errors(np.zeros((0, 3)), np.zeros(0, int)) == []
    with pytest.raises(ValueError, match="labels from 0 to 5 were found; expected 0 to 1"):
        find_label_errors(np.full((2, 2), 0.5), np.array([0, 5]))
    assert LabelError(0, 1, 0.75, 0.25).margin == 0.5


def test_doubt_does_not_import_torch():
    code = "import sys, saccade.metrics.label_errors; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
