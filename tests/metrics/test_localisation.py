"""Maps against masks: equal to scikit-learn where it has the number, by hand elsewhere."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, average_precision_score, jaccard_score

from saccade.metrics.localisation import above_mean, average_precision, hits, localisation_scores, overlap


def made(seed: int, levels: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A map that knows a little of its mask; few levels make many ties."""
    rng = np.random.default_rng(seed)
    mask = rng.choice([-1, 0, 1], size=(12, 9), p=[0.2, 0.5, 0.3])
    map_ = (rng.random((12, 9)) + 0.3 * (mask == 1)).astype(np.float32)
    return (np.round(map_ * levels) / levels if levels else map_).astype(np.float32), mask


@pytest.mark.parametrize("levels", [0, 3])
@pytest.mark.parametrize("seed", range(5))
def test_the_numbers_are_those_of_scikit_learn(seed: int, levels: int) -> None:
    map_, mask = made(seed, levels)
    counted = mask >= 0
    truth, told = mask[counted], above_mean(map_)[counted].astype(int)
    found = overlap(map_, mask)
    assert found.accuracy == pytest.approx(accuracy_score(truth, told))
    assert found.iou == pytest.approx(jaccard_score(truth, told, average="macro"))
    both = average_precision_score(truth, map_[counted]), average_precision_score(1 - truth, -map_[counted])
    assert found.average_precision == pytest.approx(np.mean(both))


def test_pixels_of_a_set_are_added_up_before_they_are_divided() -> None:
    pairs = [made(seed) for seed in range(4)]
    truth = np.concatenate([mask[mask >= 0] for _, mask in pairs])
    told = np.concatenate([above_mean(map_)[mask >= 0] for map_, mask in pairs]).astype(int)
    found = localisation_scores([overlap(*pair) for pair in pairs])
    assert found.count == 4
    assert found.pixel_accuracy == pytest.approx(accuracy_score(truth, told))
    assert found.iou == pytest.approx(jaccard_score(truth, told, average="macro"))
    assert found.average_precision == pytest.approx(np.mean([overlap(*p).average_precision for p in pairs]))


def test_the_mask_itself_is_the_perfect_map_and_its_negative_the_worst() -> None:
    _, mask = made(0)
    best = localisation_scores([overlap((mask == 1).astype(np.float32), mask)])
    assert (best.pixel_accuracy, best.iou, best.average_precision, best.pointing) == (1, 1, 1, 1)
    worst = localisation_scores([overlap(-(mask == 1).astype(np.float32), np.abs(mask))])
    assert worst.pointing == 0
    assert worst.iou < 0.3


def test_ignored_pixels_count_for_nothing() -> None:
    map_, mask = made(1)
    other = np.where(mask == -1, map_.mean() - 1, map_).astype(np.float32)
    other += above_mean(map_).mean() * 0  # only what is ignored differs
    kept = mask >= 0
    assert np.array_equal(map_[kept], other[kept])
    truth, score = mask[kept] == 1, map_[kept].astype(np.float64)
    both = average_precision(score, truth), average_precision(-score, ~truth)
    assert overlap(other, mask).average_precision == pytest.approx(np.mean(both))
    assert overlap(other, mask).pixels.sum() == kept.sum()


def test_the_pointing_game_asks_where_the_maximum_is() -> None:
    mask = np.zeros((4, 4), dtype=int)
    mask[1, 1] = 1
    map_ = np.zeros((4, 4), dtype=np.float32)
    map_[1, 1] = 1
    assert hits(map_, mask)
    map_[3, 3] = 1
    assert not hits(map_, mask), "one of two equal maxima is beside the object"
    assert not hits(np.zeros((4, 4), dtype=np.float32), mask), "a map that points everywhere points nowhere"


def test_a_flat_map_takes_nothing_for_the_object() -> None:
    mask = np.zeros((4, 4), dtype=int)
    mask[:2] = 1
    found = overlap(np.full((4, 4), 0.1, dtype=np.float32), mask)
    assert found.pixels.tolist() == [[8, 0], [8, 0]]
    assert found.average_precision == pytest.approx(0.5)


def test_nothing_to_score_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="expected one or more"):
        localisation_scores([])
