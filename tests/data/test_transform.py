"""From any picture to a model's input: the geometry of timm, the numbers of torchvision, a value in JSON."""

import io
import json
import math
import pickle
import subprocess
import sys
import time
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import BAD, GOOD, encode, noisy, oriented, scene, write
from PIL import Image

from saccade.data.image.decode import decode
from saccade.data.image.preprocess import FITS, HALF, IMAGENET, INTERPOLATIONS, Preprocess
from saccade.errors import DataError, UsageError

finite = st.floats(-10, 10, allow_nan=False)
positive = st.floats(1e-3, 10, allow_nan=False)
side = st.integers(1, 40)
values = (
    st.fixed_dictionaries(  # not st.builds: the type checker draws random numbers, which hypothesis forbids
        {
            "size": st.tuples(side, side),
            "fit": st.sampled_from(FITS),
            "crop": st.floats(0.05, 1),
            "interpolation": st.sampled_from(sorted(INTERPOLATIONS)),
            "mean": st.tuples(finite, finite, finite),
            "std": st.tuples(positive, positive, positive),
            "background": st.tuples(*[st.integers(0, 255)] * 3),
        }
    )
)


def photo(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Smooth shapes and some noise, so that a shift by one pixel or a wrong filter is seen."""
    noise = np.random.default_rng(seed).normal(0, 25, (height, width, 3))
    return np.clip(scene(height, width) + noise, 0, 255).astype(np.uint8)


def timm(picture: Image.Image, size: int | tuple[int, int], crop: float, how: str, mean, std) -> torch.Tensor:
    """timm's evaluation transform, written out step by step from torchvision's definitions."""
    th, tw = (size, size) if isinstance(size, int) else size
    scale = [math.floor(n / crop) for n in (th, tw)]
    w, h = picture.size
    if scale[0] == scale[1]:  # torchvision Resize(int)
        short, long = (w, h) if w <= h else (h, w)
        new_short, new_long = scale[0], int(scale[0] * long / short)
        new_w, new_h = (new_short, new_long) if w <= h else (new_long, new_short)
    else:  # timm ResizeKeepRatio(longest=0)
        ratio = min(h / scale[0], w / scale[1])
        new_h, new_w = (round(x / ratio) for x in (h, w))
    resized = picture.resize((new_w, new_h), INTERPOLATIONS[how])
    top, left = round((new_h - th) / 2.0), round((new_w - tw) / 2.0)  # torchvision CenterCrop
    cropped = resized.crop((left, top, left + tw, top + th))
    tensor = torch.from_numpy(np.array(cropped)).permute(2, 0, 1).contiguous().float().div(255)
    return tensor.sub_(torch.tensor(mean).view(3, 1, 1)).div_(torch.tensor(std).view(3, 1, 1))


@pytest.mark.parametrize(
    "shape", [(375, 500), (500, 375), (224, 224), (224, 225), (97, 61), (1, 1), (31, 333)]
)
@pytest.mark.parametrize("crop", [0.875, 0.9, 0.95, 1.0])
@pytest.mark.parametrize("how", INTERPOLATIONS)
def test_the_default_fit_equals_timms_evaluation_to_the_last_bit(shape, crop, how):
    mean, std = IMAGENET
    array = photo(*shape)
    ours = Preprocess(size=(64, 64), crop=crop, interpolation=how, mean=mean, std=std)(array)
    assert torch.equal(torch.from_numpy(ours), timm(Image.fromarray(array), 64, crop, how, mean, std))


@pytest.mark.parametrize("size", [(48, 80), (80, 48), (64, 65), (17, 90)])
@pytest.mark.parametrize("shape", [(150, 200), (200, 150), (48, 80), (33, 90)])
def test_sides_that_differ_are_both_covered_as_timm_does(size, shape):
    array = photo(*shape)
    ours = Preprocess(size=size, crop=0.9)(array)
    assert torch.equal(torch.from_numpy(ours), timm(Image.fromarray(array), size, 0.9, "bicubic", *HALF))


@given(height=st.integers(1, 300), width=st.integers(1, 300), crop=st.floats(0.3, 1), size=st.integers(1, 64))
@settings(max_examples=60, deadline=None)
def test_the_geometry_equals_timms_for_any_size_and_crop(height, width, crop, size):
    if max(height, width) > 12 * min(height, width) or crop**2 * 16 < 12:
        crop, width = 1.0, height
    array = photo(height, width)
    ours = Preprocess(size=(size, size), crop=crop)(array)
    assert torch.equal(torch.from_numpy(ours), timm(Image.fromarray(array), size, crop, "bicubic", *HALF))


@pytest.mark.parametrize("how", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("shape", [(30, 900), (900, 30), (200, 4000), (4, 300), (1, 2000), (7, 200)])
def test_long_strips_equal_resize_then_crop_within_two_grey_levels(shape, how):
    array = photo(*shape)
    value = Preprocess(size=(32, 32), crop=0.9, interpolation=how)
    reference = timm(Image.fromarray(array), 32, 0.9, how, *HALF).numpy()
    assert np.abs(value.undo(value(array)).astype(int) - value.undo(reference)).max() <= 2


@pytest.mark.parametrize("shape", [(1, 60_000), (60_000, 1), (2, 25_000)])
@pytest.mark.parametrize("fit", FITS)
def test_a_strip_of_sixty_thousand_pixels_is_quick_and_small(shape, fit):
    started = time.perf_counter()
    array = Preprocess(fit=fit)(scene(*shape))
    assert array.shape == (3, 224, 224)
    assert np.isfinite(array).all()
    assert time.perf_counter() - started < 5  # 248 x 14,880,000 pixels would take 11 GB and a minute


def test_squash_keeps_the_whole_picture_and_forgets_its_shape():
    array = photo(50, 90)
    expected = np.asarray(Image.fromarray(array).resize((40, 30), Image.Resampling.BILINEAR))
    value = Preprocess(size=(30, 40), fit="squash", interpolation="bilinear")
    assert np.array_equal(value.undo(value(array)), expected)


@pytest.mark.slow
def test_squash_equals_hugging_faces_vit_processor():
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    array = photo(50, 90)
    theirs = ViTImageProcessorPil()(images=Image.fromarray(array), return_tensors="np")["pixel_values"][0]
    assert np.array_equal(Preprocess(fit="squash", interpolation="bilinear")(array), theirs)


def test_pad_keeps_the_whole_picture_and_fills_the_rest_with_the_background():
    value = Preprocess(size=(40, 40), fit="pad", background=(10, 20, 30))
    pixels = value.undo(value(np.full((20, 40, 3), 200, dtype=np.uint8)))
    assert (pixels[10:30] == 200).all()
    assert (pixels[:10] == (10, 20, 30)).all()
    assert (pixels[30:] == (10, 20, 30)).all()


def test_squash_and_crop_is_the_centre_of_a_larger_squash():
    array = photo(50, 70)
    larger = Preprocess(size=(40, 40), fit="squash").view(array)
    found = Preprocess(size=(32, 32), fit="squash+crop", crop=0.8).view(array)
    assert np.array_equal(np.asarray(found), np.asarray(larger)[4:36, 4:36])


def test_pad_of_a_picture_of_the_right_shape_equals_squash():
    array = photo(60, 80)
    padded, squashed = (Preprocess(size=(30, 40), fit=fit)(array) for fit in ("pad", "squash"))
    assert np.array_equal(padded, squashed)


@given(given_fields=values, height=st.integers(1, 70), width=st.integers(1, 70))
@settings(deadline=None)
def test_any_picture_gives_finite_numbers_of_the_right_shape(given_fields, height, width):
    value = Preprocess(**given_fields)
    array = value(photo(height, width))
    assert array.shape == (3, *value.size)
    assert array.dtype == np.float32
    assert array.flags.c_contiguous
    assert np.isfinite(array).all()


@given(given_fields=values)
def test_a_value_survives_its_json(given_fields):
    value = Preprocess(**given_fields)
    saved = value.to_json()
    assert Preprocess.from_json(json.loads(json.dumps(saved))) == value
    assert json.loads(json.dumps(saved)) == saved


@given(given_fields=values, seed=st.integers(0, 9))
@settings(deadline=None)
def test_undo_gives_back_the_pixels_that_the_model_saw(given_fields, seed):
    value = Preprocess(**given_fields)
    array = photo(9, 11, seed)
    close = np.abs(value.undo(value(array)).astype(int) - np.asarray(value.view(array)))
    assert close.max() <= 1


def test_undo_is_exact_for_the_published_statistics():
    samples = np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, axis=2)
    for mean, std in (IMAGENET, HALF):
        value = Preprocess(size=(16, 16), crop=1.0, mean=mean, std=std)
        assert np.array_equal(value.undo(value(samples)), samples)


def test_half_maps_bytes_to_minus_one_and_one():
    black, white = (Preprocess(size=(2, 2))(np.full((4, 4, 3), v, dtype=np.uint8)) for v in (0, 255))
    assert (black == -1).all()
    assert (white == 1).all()


def test_every_way_to_hand_over_a_picture_gives_the_same_array(tmp_path):
    value, array = Preprocess(size=(20, 20)), photo(40, 50)
    path = tmp_path / "a.png"
    path.write_bytes(encode(array))
    expected = value(array)
    with path.open("rb") as file, Image.open(path) as lazy:
        for source in (path, str(path), path.read_bytes(), file, lazy, Image.fromarray(array), array[:]):
            assert np.array_equal(value(source), expected)
    backwards = np.ascontiguousarray(array[::-1])[::-1]
    assert np.array_equal(value(backwards), expected)


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("lazy", [False, True])
def test_each_orientation_gives_the_array_of_the_upright_picture(turn, lazy):
    value, array = Preprocess(size=(16, 24)), photo(30, 50)
    data = oriented("PNG", turn, array)
    assert np.array_equal(value(Image.open(io.BytesIO(data)) if lazy else data), value(array))


@pytest.mark.parametrize("fit", FITS)
def test_the_whole_corpus_ends_in_an_array_or_a_sentence(fit, tmp_path):
    value = Preprocess(size=(16, 16), fit=fit)
    for path, odd in write(tmp_path, [*GOOD[::3], *BAD[::3]]).items():
        if odd.usable:
            assert np.isfinite(value(path)).all()
        else:
            with pytest.raises(DataError):
                value(path)


def test_a_batch_equals_its_pictures_one_by_one():
    value = Preprocess(size=(16, 16))
    sources = [photo(20, 30), encode(photo(9, 5)), Image.fromarray(photo(40, 41))]
    batch = value.batch(sources)
    assert batch.shape == (3, 3, 16, 16)
    assert all(np.array_equal(one, value(source)) for one, source in zip(batch, sources, strict=True))
    assert np.array_equal(value.batch(iter(sources)), batch)


def test_an_empty_batch_has_no_pictures_and_the_right_shape():
    assert Preprocess(size=(4, 5)).batch([]).shape == (0, 3, 4, 5)


def test_one_path_in_place_of_a_list_is_refused_in_words():
    with pytest.raises(UsageError, match="batch was given one str; expected a list of images"):
        Preprocess().batch("cat.jpg")


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (
            np.zeros((5, 5, 3), dtype=np.float32),
            r"the array is float32 of shape \(5, 5, 3\); expected uint8 RGB",
        ),
        (
            np.zeros((3, 5, 5), dtype=np.uint8),
            r"uint8 of shape \(3, 5, 5\); expected uint8 RGB of shape \(h, w, 3\)",
        ),
        (
            np.zeros((5, 5), dtype=np.uint8),
            r"uint8 of shape \(5, 5\); .*; convert it first",
        ),
        (np.zeros((5, 5, 4), dtype=np.uint8), r"uint8 of shape \(5, 5, 4\)"),
        (np.zeros((2, 5, 5, 3), dtype=np.uint8), r"uint8 of shape \(2, 5, 5, 3\)"),
        (np.zeros((5, 5, 3), dtype=np.int64), r"int64 of shape \(5, 5, 3\)"),
        (np.zeros((0, 5, 3), dtype=np.uint8), r"uint8 of shape \(0, 5, 3\)"),
    ],
)
def test_arrays_that_would_need_a_guess_are_refused_in_words(array, words):
    with pytest.raises(DataError, match=words):
        Preprocess()(array)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (
            np.zeros((5, 5, 3), dtype=np.float32),
            r"undo got float32 of shape \(5, 5, 3\); expected finite numbers",
        ),
        (
            np.full((3, 2, 2), np.nan),
            r"undo got float64 of shape \(3, 2, 2\); expected finite numbers of shape \(3, h",
        ),
        (np.zeros((1, 3, 2, 2)), r"shape \(1, 3, 2, 2\)"),
    ],
)
def test_undo_refuses_what_is_no_normalised_picture(array, words):
    with pytest.raises(UsageError, match=words):
        Preprocess().undo(array)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"size": [0, 224]}, r"size is \[0, 224\]; expected 2 whole numbers from 1 to 16384"),
        ({"size": [224, 16385]}, r"size is \[224, 16385\]; expected 2 whole numbers"),
        ({"size": [224.0, 224]}, r"size is \[224.0, 224\]; expected 2 whole numbers"),
        ({"size": 224}, "size is 224; expected 2 numbers"),
        ({"size": [True, 2]}, r"size is \[True, 2\]; expected 2 numbers"),
        ({"size": None}, "size is None; expected 2 numbers"),
        ({"fit": "stretch"}, r"fit is 'stretch'; expected one of crop, squash, squash[+]crop, pad"),
        ({"fit": []}, r"fit is \[\]; expected one of crop, squash, squash[+]crop, pad"),
        ({"interpolation": 3}, "interpolation is 3; expected one of nearest, bilinear, bicubic, lanczos"),
        ({"crop": 0}, "crop is 0; expected a number from 0.01 to 1"),
        ({"crop": 1.1}, "crop is 1.1; expected a number from 0.01 to 1"),
        ({"crop": math.nan}, "crop is nan; expected a number from 0.01 to 1"),
        ({"crop": "0.9"}, "crop is '0.9'; expected a number"),
        ({"crop": True}, "crop is True; expected a number"),
        ({"mean": [0, 0]}, r"mean is \[0, 0\]; expected 3 numbers"),
        ({"mean": [0, 0, "0"]}, r"mean is \[0, 0, '0'\]; expected 3 numbers"),
        (
            {"mean": [0, 0, math.nan]},
            r"mean is \[0, 0, nan\]; expected 3 finite numbers from -1e\+06 to 1e\+06",
        ),
        ({"mean": [0, 0, 10**400]}, r"mean is \[0, 0, 1000.*0000\]; expected 3 finite numbers"),
        ({"crop": 10**400}, "crop is 1000.*0000; expected a number from 0.01 to 1"),
        ({"size": list(range(10**6))}, r"size is \[0, 1, 2, 3, 4, 5, \.\.\.\]; expected 2 numbers"),
        ({"mean": [0, 0, math.inf]}, r"mean is \[0, 0, inf\]; expected 3 finite numbers"),
        ({"std": [1, 0, 1]}, r"std is \[1, 0, 1\]; expected 3 finite numbers from 1e-06 to 1e\+06"),
        ({"std": [1, -1, 1]}, r"std is \[1, -1, 1\]; expected 3 finite numbers"),
        ({"std": [1, 1e-50, 1]}, r"std is \[1, 1e-50, 1\]"),
        ({"background": [0, 0, 256]}, r"background is \[0, 0, 256\]; expected 3 whole numbers from 0 to 255"),
        ({"background": "white"}, "background is 'white'; expected 3 numbers"),
        ({"sise": [1, 1]}, "preprocessing has no key 'sise'; did you mean 'size'?"),
        (
            {"zzz": 1},
            "preprocessing has no key 'zzz'; expected size, fit, crop, interpolation, mean, std, background",
        ),
    ],
)
def test_a_wrong_key_or_value_is_refused_in_words_that_name_it(change, words):
    with pytest.raises(UsageError, match=words):
        Preprocess.from_json({**Preprocess().to_json(), **change})


def test_a_wrong_value_is_refused_by_the_constructor_too():
    with pytest.raises(UsageError, match=r"size is \(0, 1\); expected 2 whole numbers"):
        Preprocess(size=(0, 1))
    with pytest.raises(UsageError, match="fit is 'zoom'"):
        replace(Preprocess(), fit="zoom")


def test_json_that_is_no_object_is_refused_in_words():
    with pytest.raises(
        UsageError, match=r"preprocessing is \[1, 2\]; expected an object with size, fit, crop"
    ):
        Preprocess.from_json([1, 2])


def test_a_value_can_be_sent_to_a_worker():
    value = Preprocess(size=(3, 4), fit="pad")
    assert pickle.loads(pickle.dumps(value)) == value


@pytest.mark.parametrize("name", [field.name for field in fields(Preprocess)])
def test_a_missing_key_is_refused_in_words_that_name_it(name):
    saved = Preprocess().to_json()
    del saved[name]
    with pytest.raises(UsageError, match=f"preprocessing lacks the key '{name}'; expected size, fit"):
        Preprocess.from_json(saved)


def test_whole_numbers_of_a_json_file_become_floats():
    value = Preprocess.from_json({**Preprocess().to_json(), "mean": [0, 0, 0], "std": [1, 1, 1], "crop": 1})
    assert value == Preprocess(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), crop=1.0)
    assert all(isinstance(number, float) for number in (*value.mean, *value.std, value.crop))


def test_transparent_pixels_show_the_background_of_the_value():
    clear = Image.new("RGBA", (8, 8), (255, 0, 255, 0))
    value = Preprocess(size=(4, 4), background=(0, 128, 255))
    for source in (clear, encode(clear)):
        assert (value.undo(value(source)) == (0, 128, 255)).all()


def test_the_arrays_of_a_file_and_of_its_decoded_picture_are_equal():
    value, data = Preprocess(size=(16, 16)), oriented("JPEG", 6, photo(40, 30))
    assert np.array_equal(value(decode(data)), value(data))


def test_a_cut_file_is_refused_with_its_name(tmp_path):
    path = tmp_path / "half.jpg"
    path.write_bytes(noisy("JPEG")[:4000])
    with pytest.raises(DataError, match=r"half.jpg is cut short"):
        Preprocess()(path)


def test_the_room_does_not_import_torch():
    code = "import sys, saccade.data.image.preprocess; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
