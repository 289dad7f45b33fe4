"""Augmentation: nothing changes unless asked, everything is decided by the chance, and as often as asked."""

import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import encode, scene
from PIL import Image
from scipy import stats

from saccade.data.image.augment import (
    LIMITS,
    ONE_SIDED,
    OPERATIONS,
    POLICIES,
    Augment,
    crop_box,
    erase,
    operate,
)
from saccade.data.image.decode import decode
from saccade.data.image.preprocess import FITS, Preprocess
from saccade.data.randomness import Draws
from saccade.errors import UsageError
from saccade.values import from_json, to_json

OFF = Augment(crop=(1.0, 1.0), flip=0.0)
ALL = Augment(policy="randaugment", colour=0.4, erase=0.5)
SMALL = Preprocess(size=(24, 32))
GREY = (127, 127, 127)


def photo(height: int = 40, width: int = 56, seed: int = 0) -> Image.Image:
    grain = np.random.default_rng(seed).normal(0, 25, (height, width, 3))
    return Image.fromarray(np.clip(scene(height, width) + grain, 0, 255).astype(np.uint8))


def chances(count: int) -> list[Draws]:
    return [Draws(0, 0, i) for i in range(count)]


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("shape", [(40, 56), (24, 32), (7, 90), (1, 1)])
def test_with_everything_off_the_input_is_that_of_preprocess(fit, shape):
    value = Preprocess(size=(24, 32), fit=fit)
    assert np.array_equal(OFF(photo(*shape), value, Draws(0, 0, 0)), value(photo(*shape), fast=True))


def test_files_bytes_and_pictures_give_the_same(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(encode(photo()))
    expected = ALL(photo(), SMALL, Draws(0, 0, 0))
    for source in (path, path.read_bytes(), np.asarray(photo())):
        assert np.array_equal(ALL(source, SMALL, Draws(0, 0, 0)), expected)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("pad", [0, 4])
def test_the_chance_decides_everything(policy, pad):
    augment = Augment(policy=policy, colour=0.4, erase=0.5, pad=pad)
    first = [augment(photo(), SMALL, chance) for chance in chances(6)]
    again = [augment(photo(), SMALL, chance) for chance in reversed(chances(6))]
    assert all(np.array_equal(a, b) for a, b in zip(first, again[::-1], strict=True))
    assert len({array.tobytes() for array in first}) == 6
    assert not np.array_equal(first[0], augment(photo(), SMALL, Draws(0, 1, 0)))
    assert not np.array_equal(first[0], augment(photo(), SMALL, Draws(1, 0, 0)))


def test_one_option_does_not_change_the_draws_of_another():
    plain, coloured = Augment(flip=0.5), Augment(flip=0.5, colour=1e-9)
    for chance in chances(5):
        assert np.array_equal(plain(photo(), SMALL, chance), coloured(photo(), SMALL, chance))


@pytest.mark.parametrize("shape", [(1, 1), (1, 500), (500, 1), (2, 3), (700, 30)])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("pad", [0, 3, 50])
def test_extreme_pictures_give_finite_numbers_of_the_right_shape(shape, policy, pad):
    augment = Augment(policy=policy, colour=1.0, erase=1.0, pad=pad)
    for value in (SMALL, Preprocess(size=(1, 1)), Preprocess(size=(5, 3), fit="pad")):
        for chance in chances(3):
            array = augment(photo(*shape), value, chance)
            assert array.shape == (3, *value.size)
            assert array.dtype == np.float32
            assert array.flags.c_contiguous
            assert np.isfinite(array).all()


def test_the_picture_itself_is_not_changed():
    picture = photo()
    before = picture.tobytes()
    for chance in chances(10):
        ALL(picture, SMALL, chance)
    assert picture.tobytes() == before


def test_the_area_of_a_crop_is_uniform_and_its_place_too():
    boxes = [crop_box((1000, 1000), (0.2, 0.9), (1.0, 1.0), chance) for chance in chances(800)]
    areas = [tall * wide / 1e6 for _, _, tall, wide in boxes]
    assert stats.kstest(areas, stats.uniform(0.2, 0.7).cdf).pvalue > 1e-3
    for place in (
        [top / (1000 - tall) for top, _, tall, _ in boxes],
        [left / (1000 - w) for _, left, _, w in boxes],
    ):
        assert stats.kstest(place, "uniform").pvalue > 1e-3


def test_the_shape_of_a_crop_favours_neither_upright_nor_lying():
    boxes = [crop_box((900, 900), (0.1, 0.3), (0.5, 2.0), chance) for chance in chances(800)]
    shapes = [math.log2(wide / tall) for _, _, tall, wide in boxes]
    assert stats.kstest(shapes, stats.uniform(-1, 2).cdf).pvalue > 1e-3


@given(height=st.integers(1, 300), width=st.integers(1, 300), sample=st.integers(0, 99))
def test_a_crop_stays_inside_the_picture(height, width, sample):
    top, left, tall, wide = crop_box((height, width), (0.08, 1.0), (0.75, 4 / 3), Draws(0, 0, sample))
    assert 0 <= top < top + tall <= height
    assert 0 <= left < left + wide <= width


def test_a_strip_gets_a_centred_crop_of_the_nearest_shape():
    assert crop_box((10, 1000), (0.9, 1.0), (0.75, 4 / 3), Draws(0, 0, 0)) == (0, 493, 10, 13)
    assert crop_box((1000, 10), (0.9, 1.0), (0.75, 4 / 3), Draws(0, 0, 0)) == (493, 0, 13, 10)


def test_a_crop_shows_what_is_inside_its_box_and_nothing_else():
    augment, picture, chance = Augment(crop=(0.2, 0.5), flip=0.0), photo(60, 60), Draws(0, 0, 3)
    top, left, tall, wide = crop_box((60, 60), augment.crop, augment.ratio, chance)
    value = Preprocess(size=(24, 32), fit="squash")
    expected = value(picture.crop((left, top, left + wide, top + tall)), fast=True)
    assert np.array_equal(augment(picture, value, chance), expected)


def test_a_large_jpeg_is_decoded_smaller_and_stays_the_same_picture():
    data, value = encode(photo(1200, 1200), "JPEG", quality=90), Preprocess(size=(32, 32))
    small, whole = (Augment(flip=0.0)(source, value, Draws(0, 0, 1)) for source in (data, decode(data)))
    assert not np.array_equal(small, whole)
    assert np.abs(value.undo(small).astype(int) - value.undo(whole)).mean() < 4


def test_flips_are_as_frequent_as_asked():
    augment, value = Augment(crop=(1.0, 1.0), flip=0.3), Preprocess(size=(4, 4), fit="squash")
    picture = photo(4, 4)
    plain = value(picture, fast=True)
    mirrored = 0
    for chance in chances(600):
        found = augment(picture, value, chance)
        mirrored += np.array_equal(found, plain[..., ::-1])
        assert np.array_equal(found, plain[..., ::-1]) or np.array_equal(found, plain)
    assert stats.binomtest(mirrored, 600, 0.3).pvalue > 1e-3


def test_erasing_covers_one_rectangle_of_the_size_in_the_paper_with_noise():
    pixels = np.full((100, 100, 3), 7, dtype=np.uint8)
    for chance in chances(200):
        changed = (erase(pixels, chance) != 7).any(axis=-1)
        rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
        area = (rows[-1] - rows[0] + 1) * (columns[-1] - columns[0] + 1)
        assert 0.018 <= area / 10_000 <= 0.42
        assert changed.sum() > 0.98 * area  # one in 256 samples is 7 by chance
    assert (pixels == 7).all()


def test_erasing_is_as_frequent_as_asked():
    augment, value = Augment(crop=(1.0, 1.0), flip=0.0, erase=0.25), Preprocess(size=(16, 16))
    plain = value(photo(16, 16), fast=True)
    count = sum(not np.array_equal(augment(photo(16, 16), value, chance), plain) for chance in chances(500))
    assert stats.binomtest(count, 500, 0.25).pvalue > 1e-3


@pytest.mark.parametrize("pad", [1, 4, 40])
def test_padding_shifts_the_picture_and_reflects_its_edges(pad):
    value = Preprocess(size=(20, 30), fit="squash")
    picture, seen = photo(20, 30), set()
    padded = np.pad(np.asarray(picture), ((pad, pad), (pad, pad), (0, 0)), mode="reflect")
    windows = {
        padded[y : y + 20, x : x + 30].tobytes(): (y, x)
        for y in range(2 * pad + 1)
        for x in range(2 * pad + 1)
    }
    for chance in chances(60):
        seen.add(windows[value.undo(Augment(pad=pad, flip=0.0)(picture, value, chance)).tobytes()])
    assert len(seen) > (8 if pad == 1 else 30)


@pytest.mark.parametrize("policy", LIMITS)
@pytest.mark.parametrize("name", [name for name in OPERATIONS if name not in ("autocontrast", "equalize")])
@pytest.mark.parametrize("negative", [False, True])
def test_every_operation_with_a_magnitude_is_the_identity_at_zero(policy, name, negative):
    found = operate(photo(), policy, name, 0.0, negative, GREY)
    assert np.array_equal(np.asarray(found), np.asarray(photo()))


@pytest.mark.parametrize("policy", LIMITS)
@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "identity"])
def test_every_operation_at_full_strength_changes_the_picture_and_keeps_its_size(policy, name):
    found = [operate(photo(), policy, name, 1.0, negative, GREY) for negative in (False, True)]
    for picture in found:
        assert picture.size == photo().size
        assert picture.mode == "RGB"
        assert not np.array_equal(np.asarray(picture), np.asarray(photo()))
    one_sided = name in ONE_SIDED or name not in LIMITS[policy]
    assert np.array_equal(*map(np.asarray, found)) == one_sided


def test_operations_do_what_they_are_called():
    picture, limits = photo(), LIMITS["randaugment"]
    samples = np.asarray(picture).astype(int)
    shown = {
        name: np.asarray(operate(picture, "randaugment", name, 1.0, True, GREY)).astype(int)
        for name in OPERATIONS
    }
    assert np.array_equal(shown["solarize"], 255 - samples)
    assert np.array_equal(shown["posterize"], samples & 0xF0)
    assert shown["brightness"].mean() < 0.2 * samples.mean()
    assert shown["contrast"].std() < 0.2 * samples.std()
    assert np.ptp(shown["colour"], axis=-1).mean() < 0.2 * np.ptp(samples, axis=-1).mean()
    assert np.abs(np.diff(shown["sharpness"], axis=1)).mean() < np.abs(np.diff(samples, axis=1)).mean()
    right = round(limits["translate_x"] * picture.width)
    assert (shown["translate_x"][:, : right - 1] == GREY).all()
    assert np.array_equal(shown["translate_y"][:2], np.full((2, picture.width, 3), 127))
    assert (shown["rotate"][0, 0] == GREY).all()
    for sheared in (shown["shear_x"], shown["shear_y"].transpose(1, 0, 2)):  # the last row moves the farthest
        filled = (sheared == GREY).all(axis=-1).sum(axis=1)
        assert filled[0] == 0
        assert filled[-1] > 8
        assert (np.diff(filled) >= 0).all()


def test_what_comes_into_sight_has_the_mean_colour():
    value = Preprocess(size=(32, 32), mean=(0.2, 0.4, 0.6), std=(1.0, 1.0, 1.0))
    white = Image.new("RGB", (32, 32), (255, 255, 255))
    augment = Augment(crop=(1.0, 1.0), policy="randaugment", operations=1, magnitude=10.0)
    colours = {
        tuple(pixel)
        for chance in chances(60)
        for pixel in value.undo(augment(white, value, chance)).reshape(-1, 3)
    }
    assert (51, 102, 153) in colours


@pytest.mark.parametrize(
    ("policy", "operations", "count"), [("randaugment", 3, 3), ("trivial", 3, 1), ("none", 3, 0)]
)
def test_a_policy_applies_as_many_operations_as_its_paper_says(policy, operations, count, monkeypatch):
    applied = []

    def note(picture, policy, name, strength, negative, fill):
        applied.append((name, strength, negative))
        return picture

    monkeypatch.setattr("saccade.data.image.augment.operate", note)
    augment = Augment(policy=policy, operations=operations, magnitude=7.0, colour=0.1)
    for chance in chances(400):
        augment(photo(4, 4), Preprocess(size=(2, 2)), chance)
    assert len(applied) == 400 * count
    if not count:
        return
    names, strengths, signs = zip(*applied, strict=True)
    counts = [names.count(name) for name in OPERATIONS]
    assert stats.chisquare(counts).pvalue > 1e-3
    assert stats.binomtest(sum(signs), len(signs), 0.5).pvalue > 1e-3
    expected = {0.7} if policy == "randaugment" else {i / 30 for i in range(31)}
    assert set(strengths) == expected


def test_colour_jitter_stays_within_its_share():
    value = Preprocess(size=(8, 8), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    plain = Image.new("RGB", (8, 8), (100, 100, 100))  # only brightness changes a plain grey
    augment = Augment(crop=(1.0, 1.0), colour=0.3)
    means = [255 * augment(plain, value, chance).mean() for chance in chances(300)]
    assert 69 <= min(means) < 75
    assert 125 < max(means) <= 131
    assert stats.kstest(means, stats.uniform(69.5, 61).cdf).pvalue > 1e-3


augments = st.fixed_dictionaries(
    {
        "crop": st.tuples(st.floats(0.01, 0.5), st.floats(0.5, 1)),
        "ratio": st.tuples(st.floats(0.1, 1), st.floats(1, 10)),
        "flip": st.floats(0, 1),
        "policy": st.sampled_from(POLICIES),
        "operations": st.integers(1, 14),
        "magnitude": st.floats(0, 10),
        "colour": st.floats(0, 1),
        "erase": st.floats(0, 1),
        "pad": st.integers(0, 8),
    }
)


@given(fields=augments)
@settings(deadline=None)
def test_any_value_survives_its_json_and_can_be_sent_to_a_worker(fields):
    augment = Augment(**fields)
    assert from_json(Augment, json.loads(json.dumps(to_json(augment)))) == augment
    assert pickle.loads(pickle.dumps(augment)) == augment


@given(fields=augments, height=st.integers(1, 60), width=st.integers(1, 60), sample=st.integers(0, 9))
@settings(deadline=None)
def test_any_value_gives_finite_numbers_for_any_picture(fields, height, width, sample):
    array = Augment(**fields)(photo(height, width), Preprocess(size=(9, 7)), Draws(0, 0, sample))
    assert array.shape == (3, 9, 7)
    assert np.isfinite(array).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"crop": (0.0, 1.0)}, "augment.crop is 0.0; expected a number from 0.01 to 1"),
        ({"crop": (0.5, 1.5)}, "augment.crop is 1.5; expected a number from 0.01 to 1"),
        ({"crop": (0.9, 0.5)}, r"augment.crop is \(0.9, 0.5\); expected the smaller number first"),
        ({"ratio": (0.0, 1.0)}, "augment.ratio is 0.0; expected a number from 0.1 to 10"),
        ({"flip": 1.5}, "augment.flip is 1.5; expected a number from 0 to 1"),
        ({"policy": "randaugmnet"}, "augment.policy is 'randaugmnet'.*did you mean 'randaugment'"),
        ({"operations": 0}, "augment.operations is 0; expected a number from 1 to 14"),
        ({"magnitude": 30.0}, "augment.magnitude is 30.0; expected a number from 0 to 10"),
        ({"colour": -1.0}, "augment.colour is -1.0; expected a number from 0 to 1"),
        ({"erase": math.nan}, "augment.erase is nan; expected a number from 0 to 1"),
        ({"pad": -1}, "augment.pad is -1; expected a number from 0 to 1024"),
    ],
)
def test_a_value_out_of_range_is_refused_in_words(change, words):
    with pytest.raises(UsageError, match=words):
        Augment(**change)
