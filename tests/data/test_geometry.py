"""Geometry: a dot is found where the map says, boxes and masks follow, and the way back is the way back."""

import io

import numpy as np
import pytest
from PIL import Image

from saccade.data.image import augment as augmentation
from saccade.data.image.augment import MOVES, Augment
from saccade.data.image.geometry import Geometry
from saccade.data.image.preprocess import FITS, Preprocess
from saccade.data.randomness import Draws

BLACK = {"background": (0, 0, 0), "mean": (0.0, 0.0, 0.0)}
PLAIN = Augment(crop=(1.0, 1.0), flip=0.0)
WAYS = {
    "crop": Augment(crop=(0.3, 0.8), flip=0.0),
    "flip": Augment(crop=(1.0, 1.0), flip=1.0),
    "pad": Augment(pad=4, flip=0.0),
    "all": Augment(crop=(0.5, 0.9), flip=0.5, policy="randaugment", operations=3, magnitude=4.0, colour=0.1),
    **{name: Augment(crop=(1.0, 1.0), flip=0.0, policy="randaugment", operations=1) for name in MOVES},
}
SPOTS = [(40.0, 30.0), (66.0, 25.0), (50.0, 55.0), (30.0, 60.0)]


def dot(x, y, size=(80, 100), radius=4.0):
    """A white dot, with soft edges, around a point."""
    rows, columns = np.indices(size) + 0.5
    bright = np.clip(radius + 0.5 - np.hypot(columns - x, rows - y), 0, 1)
    return np.repeat((255 * bright).astype(np.uint8)[..., None], 3, axis=2)


def centre(pixels):
    """The centre of what is bright."""
    bright = pixels[..., 0].astype(float)
    rows, columns = np.indices(bright.shape) + 0.5
    return np.array([(columns * bright).sum(), (rows * bright).sum()]) / bright.sum()


def whole(geometry, point, margin=6):
    """Whether the dot is all inside the result."""
    [(x, y)] = geometry.points(np.array([point]))
    return margin < x < geometry.size[1] - margin and margin < y < geometry.size[0] - margin


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("size", [(64, 64), (96, 60), (120, 150)])
def test_preprocessing_puts_a_dot_where_it_says(fit, fast, size):
    found = 0
    for point in SPOTS:
        pixels, geometry = Preprocess(size=size, fit=fit, **BLACK).trace(dot(*point), fast=fast)
        assert geometry.source == (80, 100)
        assert geometry.size == size == pixels.shape[:2]
        if whole(geometry, point):
            assert np.abs(centre(pixels) - geometry.points(np.array([point]))[0]).max() < 0.3
            found += 1
    assert found >= 2


@pytest.mark.parametrize("way", WAYS)
def test_augmentation_puts_a_dot_where_it_says(way, monkeypatch):
    if way in MOVES:
        monkeypatch.setattr(augmentation, "_NAMES", (way,))
    if way == "all":  # what only changes colours may change which pixels are bright
        monkeypatch.setattr(augmentation, "_NAMES", tuple(MOVES))
    preprocess, found, maps = Preprocess(size=(90, 110), **BLACK), 0, set()
    for sample in range(12):
        for point in SPOTS:
            draws = Draws(0, 0, sample)
            pixels, geometry = WAYS[way].trace(dot(*point), preprocess, draws)
            maps.add(geometry.six)
            assert np.array_equal(preprocess.normalise(pixels), WAYS[way](dot(*point), preprocess, draws))
            if whole(geometry, point, 8):
                assert np.abs(centre(pixels) - geometry.points(np.array([point]))[0]).max() < 0.4
                found += 1
    assert found > 12
    assert len(maps) > 1 or way == "flip"


@pytest.mark.parametrize("turn", [1, 3, 6, 8])
def test_a_jpeg_decoded_smaller_and_turned_is_measured_in_pixels_of_the_upright_file(turn):
    upright = Image.fromarray(dot(500.0, 300.0, (801, 1203), 60.0))
    stored = upright.rotate({1: 0, 3: 180, 6: 90, 8: -90}[turn], expand=True)
    stream, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = turn
    stored.save(stream, "JPEG", quality=95, exif=exif)
    pixels, geometry = Preprocess(size=(64, 64), **BLACK).trace(stream.getvalue(), fast=True)
    assert geometry.source == (801, 1203)
    [wanted] = geometry.points(np.array([(500.0, 300.0)]))
    assert np.abs(centre(np.where(pixels > 60, pixels, 0)) - wanted).max() < 0.3


def some_maps():
    preprocess = Preprocess(size=(48, 40), **BLACK)
    for sample in range(20):
        yield WAYS["all"].trace(dot(40, 30), preprocess, Draws(1, 0, sample))[1]


def test_there_and_back_is_the_identity():
    points = np.random.default_rng(0).uniform(-50, 150, (9, 2))
    for geometry in some_maps():
        assert np.allclose(geometry.inverse.points(geometry.points(points)), points)
        assert np.allclose((geometry.inverse @ geometry).matrix, np.eye(3)[:2])
        assert (geometry.inverse @ geometry).size == geometry.source
        assert np.allclose(geometry.inverse.inverse.matrix, geometry.matrix)


def test_a_product_of_maps_is_one_after_the_other():
    first = Geometry.of(Image.new("RGB", (30, 20))).resize((40, 90)).flip()
    second = Geometry.of(Image.new("RGB", (90, 40))).crop((-3, 5), (50, 60))
    points = np.random.default_rng(1).uniform(0, 20, (5, 2))
    assert np.allclose((second @ first).points(points), second.points(first.points(points)))
    assert ((second @ first).source, (second @ first).size) == ((20, 30), (50, 60))


def test_boxes_follow_and_are_cut_at_the_border():
    image = np.zeros((80, 100, 3), np.uint8)
    image[20:50, 30:70] = 255
    box = np.array([[30, 20, 70, 50]])
    for way in ("crop", "flip", "pad"):
        for sample in range(8):
            pixels, geometry = WAYS[way].trace(
                image, Preprocess(size=(90, 110), **BLACK), Draws(0, 0, sample)
            )
            rows, columns = np.nonzero(pixels[..., 0] > 127)
            found = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            assert np.abs(geometry.boxes(box)[0] - found).max() <= 1
    turned = Geometry.of(Image.fromarray(image)).then((0.0, -1.0, 80.0, 1.0, 0.0, 0.0), (100, 80))
    assert turned.boxes(box).tolist() == [[30, 30, 60, 70]]
    outside = Geometry.of(Image.fromarray(image)).crop((60, 0), (20, 100))
    assert outside.boxes(box).tolist() == [[30, 0, 70, 0]]
    assert outside.boxes(box, clip=False).tolist() == [[30, -40, 70, -10]]


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64])
def test_masks_follow_and_come_back(dtype):
    mask = np.zeros((80, 100), dtype)
    mask[30:55, 35:70] = 1
    image = np.repeat(255 * mask.astype(np.uint8)[..., None], 3, axis=2)
    for sample in range(8):
        draws = Draws(0, 0, sample)
        pixels, geometry = WAYS["rotate"].trace(image, Preprocess(size=(90, 110), fit="pad", **BLACK), draws)
        moved = geometry.mask(mask)
        assert moved.dtype == dtype
        assert (moved.astype(bool) != (pixels[..., 0] > 127)).sum() < 0.08 * moved.sum()
        again = geometry.inverse.mask(moved)
        assert (again != mask).sum() < 0.1 * mask.sum()


def test_a_picture_is_warped_as_the_points_are():
    geometry = next(some_maps())
    warped = geometry.picture(Image.fromarray(dot(40, 30)))
    assert (warped.height, warped.width) == geometry.size
    assert np.abs(centre(np.asarray(warped)) - geometry.points(np.array([(40.0, 30.0)]))[0]).max() < 0.3
    grey = geometry.picture(Image.fromarray(dot(40, 30)[..., 0]), "nearest", fill=9)
    assert 9 in np.asarray(grey)
