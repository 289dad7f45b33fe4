"""The fast way to a model's input: the same picture but for the rounding, and only where it was asked for."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pictures import BAD, GOOD, encode, noisy, oriented, scene, write
from PIL import Image

from saccade.data.image.decode import decode
from saccade.data.image.preprocess import FITS, INTERPOLATIONS, Preprocess
from saccade.data.image.resize import window
from saccade.errors import DataError


def photo(height: int, width: int, seed: int = 0) -> Image.Image:
    grain = np.random.default_rng(seed).normal(0, 25, (height, width, 3))
    return Image.fromarray(np.clip(scene(height, width) + grain, 0, 255).astype(np.uint8))


def gap(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.abs(first.astype(int) - second.astype(int))


sides = st.tuples(st.integers(1, 80), st.integers(1, 80))


@given(
    given_sides=sides,
    whole=sides,
    how=st.sampled_from(["bilinear", "bicubic"]),
    place=st.floats(0, 1),
    harsh=st.booleans(),
)
@example(given_sides=(1, 34), whole=(1, 35), how="bilinear", place=0.5, harsh=False)
@example(given_sides=(2, 34), whole=(1, 35), how="bicubic", place=0.5, harsh=False)
@settings(deadline=None)
def test_fast_is_within_three_grey_levels_of_pillow_along_the_rows_first(
    given_sides, whole, how, place, harsh
):
    size = tuple(max(1, round(side * (1 - place / 2))) for side in whole)
    top, left = (round((side - part) * place) for side, part in zip(whole, size, strict=True))
    picture = photo(*given_sides)
    if harsh:  # only black and white: bicubic overshoots at every edge
        picture = picture.point(lambda level: 255 * (level > 127))
    rows = picture.resize((whole[1], picture.height), INTERPOLATIONS[how])
    expected = np.asarray(rows.resize(whole[::-1], INTERPOLATIONS[how]))
    fast = window(picture, whole, size, (top, left), how, fast=True)
    assert fast.shape == (*size, 3)
    assert gap(fast, expected[top : top + size[0], left : left + size[1]]).max() <= (
        3 if how == "bicubic" else 2
    )


@given(given_sides=sides, whole=sides, how=st.sampled_from(sorted(INTERPOLATIONS)))
@settings(deadline=None)
def test_a_window_of_everything_is_pillows_resize(given_sides, whole, how):
    picture = photo(*given_sides)
    expected = picture.resize(whole[::-1], INTERPOLATIONS[how])
    assert np.array_equal(window(picture, whole, whole, interpolation=how), np.asarray(expected))


@pytest.mark.parametrize("how", ["nearest", "lanczos"])
def test_filters_that_torch_lacks_stay_pillows(how):
    picture = photo(50, 70)
    exact, fast = (
        window(picture, (20, 30), (20, 30), interpolation=how, fast=fast) for fast in (False, True)
    )
    assert np.array_equal(exact, fast)


@pytest.mark.parametrize("fast", [False, True])
def test_a_picture_of_the_right_size_is_only_cut(fast):
    picture = photo(40, 50)
    found = window(picture, (40, 50), (10, 20), (3, 5), fast=fast)
    assert np.array_equal(found, np.asarray(picture)[3:13, 5:25])


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("shape", [(375, 500), (500, 375), (64, 64), (31, 333), (1, 1), (1, 500), (500, 1)])
def test_the_fast_input_is_the_exact_one_but_for_the_rounding(fit, shape):
    value, picture = Preprocess(size=(64, 48), fit=fit), photo(*shape)
    found = gap(value.pixels(picture), value.pixels(picture, fast=True))
    assert found.max() <= 2
    assert found.mean() < 0.1
    assert np.array_equal(value(picture, fast=True), value.normalise(value.pixels(picture, fast=True)))


def test_the_default_is_exact_and_batch_and_view_agree_with_it():
    value, picture = Preprocess(size=(64, 64)), photo(100, 150)
    assert np.array_equal(value(picture), value(picture, fast=False))
    assert not np.array_equal(value(picture), value(picture, fast=True))
    assert np.array_equal(value.batch([picture])[0], value(picture))
    assert np.array_equal(np.asarray(value.view(picture)), value.pixels(picture))


def test_threads_and_repetition_do_not_change_the_fast_result():
    import torch

    value, picture = Preprocess(size=(64, 64)), photo(300, 400)
    expected = value(picture, fast=True)
    try:
        torch.set_num_threads(2)
        assert np.array_equal(value(picture, fast=True), expected)
    finally:
        torch.set_num_threads(1)


def test_a_jpeg_of_the_size_needed_is_decoded_whole():
    data = encode(photo(375, 500), "JPEG", quality=90)
    value = Preprocess()
    assert gap(value.pixels(data), value.pixels(data, fast=True)).max() <= 1


@pytest.mark.parametrize("fit", FITS)
def test_a_large_jpeg_is_decoded_smaller_and_stays_the_same_picture(fit):
    value = Preprocess(size=(32, 32), fit=fit)
    data = encode(photo(400, 500), "JPEG", quality=90)
    found = gap(value.pixels(data), value.pixels(data, fast=True))
    assert 0 < found.mean() < 4


@pytest.mark.parametrize(
    ("enough", "size"), [((60, 80), (160, 120)), ((61, 80), (320, 240)), ((1, 1), (80, 60))]
)
def test_decoding_stops_shrinking_where_it_would_not_be_enough(enough, size):
    data = encode(photo(480, 640), "JPEG")
    double = tuple(2 * side for side in enough)
    assert decode(data).size == (640, 480)
    found = decode(data, enough=double)
    assert found.height >= double[0]
    assert found.width >= double[1]
    assert found.size == size


@pytest.mark.parametrize("turn", range(1, 9))
def test_enough_is_meant_as_the_picture_is_seen(turn):
    data = oriented("JPEG", turn, np.asarray(photo(480, 200)))
    assert decode(data, enough=(240, 100)).size == (100, 240)
    assert decode(data, enough=(100, 240)).size == (200, 480)


def test_every_unusable_file_is_refused_when_decoded_smaller_too(tmp_path):
    for path, odd in write(tmp_path, BAD).items():
        with pytest.raises(DataError) as refusal:
            decode(path, enough=(1, 1))
        assert odd.says.partition(" (about")[0] in str(refusal.value)


def test_every_odd_picture_can_be_decoded_smaller(tmp_path):
    for path in write(tmp_path, GOOD):
        assert decode(path, enough=(1, 1)).mode == "RGB"


def test_a_cut_jpeg_decoded_smaller_counts_no_rows():
    data = noisy("JPEG")
    with pytest.raises(DataError, match="is cut short") as refusal:
        decode(data[: len(data) * 60 // 100], enough=(1, 1))
    assert "rows" not in str(refusal.value)


def test_a_png_is_not_decoded_smaller():
    assert decode(encode(photo(480, 640)), enough=(1, 1)).size == (640, 480)


def test_the_exact_way_does_without_torch():
    code = (
        "import sys, numpy as np; from saccade.data.image.preprocess import Preprocess; "
        "Preprocess()(np.zeros((9, 9, 3), dtype=np.uint8)); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
