"""The numbers of a classifier equal scikit-learn's, and are defined where scikit-learn warns."""

import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve

from saccade.metrics.classify import BINS, ClassifyScores, scores
from saccade.metrics.interval import interval_words, wilson

cases = st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(2, 12), st.floats(0.1, 20))
few = settings(max_examples=60, deadline=None)


def case(seed, n, classes, sharpness):
    """Random probabilities and labels; with few pictures some classes are in neither."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    logits = rng.normal(size=(n, classes)) * sharpness
    logits[np.arange(n), labels] += rng.normal(size=n) * sharpness
    p = np.exp(logits - logits.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True), labels


def quietly(function, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **options)


@given(cases)
@few
def test_counts_equal_scikit_learn(drawn):
    p, labels = case(*drawn)
    answers, every = p.argmax(1), range(p.shape[1])
    found = scores(p, labels)
    precision, recall, f1, support = sk.precision_recall_fscore_support(
        labels, answers, labels=every, zero_division=0
    )
    assert (found.confusion == sk.confusion_matrix(labels, answers, labels=every)).all()
    assert (found.support == support).all()
    assert found.accuracy == pytest.approx(sk.accuracy_score(labels, answers))
    for ours, theirs in ((found.precision, precision), (found.recall, recall), (found.f1, f1)):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)
    assert found.macro_f1 == pytest.approx(sk.f1_score(labels, answers, average="macro", zero_division=0))
    expected = quietly(sk.balanced_accuracy_score, labels, answers)
    assert found.balanced_accuracy == pytest.approx(expected)


@given(cases)
@few
def test_probabilities_are_judged_as_in_scikit_learn(drawn):
    p, labels = case(*drawn)
    classes = p.shape[1]
    found = scores(p, labels)
    assert found.loss == pytest.approx(sk.log_loss(labels, p, labels=range(classes)), rel=1e-9, abs=1e-12)
    one_hot = np.eye(classes)[labels]
    assert found.brier == pytest.approx(((p - one_hot) ** 2).sum(1).mean(), abs=1e-12)
    if classes > 2:
        theirs = sk.brier_score_loss(labels, p, labels=list(range(classes)), scale_by_half=False)
        assert found.brier == pytest.approx(theirs, abs=1e-12)
    if classes > 5:
        top = quietly(sk.top_k_accuracy_score, labels, p, k=5, labels=range(classes))
        assert found.top5 == pytest.approx(top)
    else:
        assert found.top5 == 1


@given(cases)
@few
def test_bins_are_the_reliability_diagram(drawn):
    p, labels = case(*drawn)
    found = scores(p, labels)
    hit = (p.argmax(1) == labels).astype(int)
    accuracy, confidence = calibration_curve(hit, p.max(1), n_bins=BINS) if hit.any() else (None, None)
    filled = [b for b in found.bins if b.count]
    if accuracy is not None:
        np.testing.assert_allclose([b.accuracy for b in filled], accuracy)
        np.testing.assert_allclose([b.confidence for b in filled], confidence)
    assert sum(b.count for b in found.bins) == found.count == len(labels)
    by_hand = sum(
        abs(hit[inside].mean() - p.max(1)[inside].mean()) * inside.mean()
        for b in filled
        for inside in [(p.max(1) > b.low) & (p.max(1) <= b.high)]
    )
    assert found.ece == pytest.approx(by_hand)
    assert found.confidence == pytest.approx(p.max(1).mean())


@given(cases, st.randoms(use_true_random=False))
@few
def test_the_order_of_pictures_does_not_matter(drawn, random):
    p, labels = case(*drawn)
    order = random.sample(range(len(labels)), len(labels))
    ours, theirs = scores(p, labels).to_json(), scores(p[order], labels[order]).to_json()
    assert ours["confusion"] == theirs["confusion"]
    assert ours["loss"] == pytest.approx(theirs["loss"])


@given(cases)
@few
def test_json_holds_everything_and_comes_back(drawn):
    found = scores(*case(*drawn))
    text = json.dumps(found.to_json(), allow_nan=False)
    assert ClassifyScores.from_json(json.loads(text)).to_json() == found.to_json()
    assert {"accuracy", "top5", "loss", "macro_f1", "balanced_accuracy", "ece", "brier"} <= set(
        json.loads(text)
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_lower_precision_gives_nearly_the_same(dtype):
    p, labels = case(3, 50, 7, 2.0)
    low, high = scores(p.astype(dtype), labels.astype(np.int32)), scores(p, labels)
    assert low.loss == pytest.approx(high.loss, rel=5e-3)
    assert low.brier == pytest.approx(high.brier, rel=5e-3)


def test_one_class_everywhere_is_defined_without_warnings():
    p = np.tile([1.0, 0.0, 0.0], (4, 1))
    found = scores(p, np.zeros(4, dtype=int))
    assert found.accuracy == found.macro_f1 == found.balanced_accuracy == 1
    assert found.precision.tolist() == found.recall.tolist() == [1, 0, 0]
    assert found.loss == found.ece == found.brier == 0


def test_certain_and_wrong_is_a_large_but_finite_loss():
    found = scores(np.array([[1.0, 0.0]]), np.array([1]))
    assert found.loss == pytest.approx(36.04, abs=0.01)
    assert found.brier == 2
    assert found.ece == 1


def test_equal_probabilities_rank_by_class_number_as_the_answer_does():
    p = np.full((10, 10), 0.1)
    found = scores(p, np.arange(10))
    assert found.accuracy == 0.1
    assert found.top5 == 0.5


def test_scores_cannot_be_changed():
    found = scores(*case(0, 5, 3, 1.0))
    with pytest.raises(ValueError, match="read-only"):
        found.confusion[0, 0] = 9


@pytest.mark.parametrize(
    ("p", "labels", "words"),
    [
        (np.zeros((0, 3)), [], "0 images of 3 classes cannot be scored"),
        (np.full((1, 2), 0.5), [2], "label 2 is outside 0 to 1"),
        (np.full((1, 2), 0.5), [-1], "label -1 is outside 0 to 1"),
        (np.array([[0.5, 0.5], [3.0, -1.0]]), [0, 0], "row 1 of the probabilities sums to 2 and has"),
        (np.array([[1.5, -0.5]]), [0], "a minimum of -0.5; expected a sum of 1"),
        (np.array([[np.nan, 0.5]]), [0], "row 0 of the probabilities sums to nan"),
    ],
)
def test_what_cannot_be_scored_is_refused_in_words(p, labels, words):
    with pytest.raises(ValueError, match=words):
        scores(p, np.array(labels, dtype=int))


@pytest.mark.parametrize(
    "change",
    [
        {"confusion": [[1, 2]]},
        {"confusion": []},
        {"confusion": [[0, 0], [0, 0]]},
        {"confusion": [[1, -1], [0, 1]]},
        {"confusion": [[1, 2], [3]]},
        {"loss": None},
        {"bins": 3},
        {"bins": [{"low": 0}]},
        {"bins": []},
        {"bins": [{"low": 0, "high": 1, "count": 5, "confidence": 0.5, "accuracy": 7}]},
        {"bins": [{"low": 0, "high": 1, "count": 5, "confidence": float("nan"), "accuracy": 1}]},
    ],
)
def test_other_json_is_refused(change):
    with pytest.raises(ValueError, match=r"scores lack a field|the confusion matrix is not|the bins do not"):
        ClassifyScores.from_json({**scores(*case(0, 5, 3, 1.0)).to_json(), **change})


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
@few
def test_the_wilson_interval_holds_the_share_and_mirrors(drawn):
    hits, n = drawn
    low, high = wilson(hits, n)
    assert 0 <= low <= hits / n <= high <= 1
    assert wilson(n - hits, n) == pytest.approx((1 - high, 1 - low))
    assert np.diff(wilson(hits * 4, n * 4)) < high - low


def test_the_wilson_interval_of_nothing_is_refused():
    assert interval_words(48, 50) == "95% CI 86.5% to 98.9%"
    assert interval_words(0, 10) == "95% CI 0.0% to 27.8%"
    with pytest.raises(ValueError, match="0 of 0 has no interval"):
        wilson(0, 0)


def test_the_metrics_do_not_import_torch():
    code = "import sys, saccade.metrics.classify; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
