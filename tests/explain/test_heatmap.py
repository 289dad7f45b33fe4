"""A heatmap is its numbers; its colours are on the places the numbers are about."""

import io
import json
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from pictures import scene
from PIL import Image

from saccade.errors import ModelError, UsageError
from saccade.explain.heatmap import Heatmap


def heat(grid: object, height: int = 48, width: int = 32, **changes: object) -> Heatmap:
    given = {"target": 3, "label": "cat", "method": "rollout", "probability": 0.25, **changes}
    picture = Image.fromarray(np.full((height, width, 3), 128, dtype=np.uint8))
    return Heatmap(grid=np.array(grid, dtype=np.float32), **{"picture": picture, **given})


def spot(rows: int = 6, columns: int = 4, at: tuple[int, int] = (1, 2), value: float = 1.0) -> np.ndarray:
    grid = np.zeros((rows, columns), dtype=np.float32)
    grid[at] = value
    return grid


def colours_at(picture: Image.Image, y: float, x: float) -> np.ndarray:
    return np.asarray(picture)[int(y * picture.height), int(x * picture.width)].astype(int)


@pytest.mark.parametrize("size", [(48, 32), (50, 31), (6, 4), (224, 224)])
def test_an_overlay_has_the_size_of_the_picture_and_its_heat_at_the_place(size: tuple[int, int]) -> None:
    made = heat(spot(), *size)
    over = made.overlay()
    assert (over.height, over.width) == size
    assert over.mode == "RGB"
    bright = np.asarray(over).astype(int).sum(-1)
    y, x = np.unravel_index(bright.argmax(), bright.shape)
    assert (y * 6 // size[0], x * 4 // size[1]) == (1, 2)


def test_signs_are_red_and_blue_and_zero_is_neither() -> None:
    grid = spot() - 0.5 * spot(at=(4, 1))
    made = heat(grid, 480, 320)
    assert made.signed
    over = made.overlay()
    warm, cold, none = (
        colours_at(over, *at) for at in ((1.5 / 6, 2.5 / 4), (4.5 / 6, 1.5 / 4), (0.05, 0.05))
    )
    assert warm[0] - warm[2] > 40
    assert cold[2] - cold[0] > 40
    assert np.ptp(none) <= 3
    assert made.shades(480, 320)[0, 0] == pytest.approx(0.5, abs=1e-3)
    flipped = heat(-grid, 480, 320).shades(480, 320)
    assert np.allclose(flipped, 1 - made.shades(480, 320), atol=1e-6)


def test_a_map_without_signs_is_coloured_from_its_lowest_to_its_highest_number() -> None:
    made = heat(5 + spot())
    assert not made.signed
    shades = made.shades(48, 32)
    assert shades.min() == 0
    assert 0.9 < shades.max() <= 1
    assert np.allclose(shades, heat(spot()).shades(48, 32), atol=1e-5)


@pytest.mark.parametrize("value", [0.0, 0.3, -2.0])
def test_a_map_that_is_the_same_everywhere_has_one_colour(value: float) -> None:
    made = heat(np.full((6, 4), value))
    assert len(np.unique(made.colours(48, 32).reshape(-1, 3), axis=0)) == 1


def test_smoothing_keeps_the_range_and_leaves_a_map_of_pixels_alone() -> None:
    grid = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    made = heat(grid)
    large = made.smooth(70, 50)
    assert large.min() >= grid.min()
    assert large.max() <= grid.max()
    assert np.array_equal(made.smooth(7, 5), grid)
    assert np.abs(np.diff(large, axis=0)).max() < 0.5 * np.abs(np.diff(grid, axis=0)).max()


def test_opacity_is_the_callers() -> None:
    photo = Image.fromarray(scene())
    made = heat(spot(), picture=photo)
    assert np.array_equal(made.overlay(alpha=0.0), photo)
    far = [
        np.abs(np.asarray(made.overlay(alpha=a)).astype(int) - np.asarray(photo)).mean() for a in (0.3, 0.9)
    ]
    assert 0 < far[0] < far[1]
    for alpha in (-0.1, 1.1):
        with pytest.raises(UsageError, match=rf"alpha is {alpha}; expected a number from 0 to 1"):
            made.overlay(alpha=alpha)


def test_a_grey_picture_and_one_of_a_single_pixel_can_be_covered() -> None:
    assert heat(spot(), picture=Image.new("L", (9, 7))).overlay().size == (9, 7)
    assert heat([[0.5]], 1, 1).overlay().size == (1, 1)


def test_a_notebook_shows_it_large_enough() -> None:
    for side, shown in ((8, 224), (100, 200), (300, 300)):
        with Image.open(io.BytesIO(heat(spot(4, 4), side, side)._repr_png_())) as picture:
            assert picture.format == "PNG"
            assert picture.size == (shown, shown)


def test_a_picture_drawn_larger_keeps_its_pixels_as_squares() -> None:
    photo = Image.fromarray(scene(6, 4))
    large = np.asarray(heat(spot(), picture=photo).overlay(alpha=0.0, times=5))
    assert np.array_equal(large, np.asarray(photo).repeat(5, 0).repeat(5, 1))


def test_json_holds_the_exact_numbers() -> None:
    grid = np.random.default_rng(1).normal(size=(3, 2)).astype(np.float32) * np.float32(1e-7)
    made = heat(grid, score=0.5)
    back = json.loads(json.dumps(made.to_json(), allow_nan=False))
    assert np.array_equal(np.array(back.pop("grid"), dtype=np.float32), grid)
    assert back == {
        "method": "rollout",
        "target": 3,
        "label": "cat",
        "probability": 0.25,
        "score": 0.5,
        "height": 48,
        "width": 32,
    }
    assert len(str(made.to_json()["grid"][0][0])) <= 16


def test_it_says_what_it_is_and_does_not_change() -> None:
    made = heat(spot())
    assert repr(made) == "Heatmap(rollout for 'cat' (25.0%), 6 x 4)"
    with pytest.raises(FrozenInstanceError):
        made.target = 4  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        made.grid[0, 0] = 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(ModelError, match="the map of rollout for 'cat' is not finite"):
        heat(spot(value=value))
