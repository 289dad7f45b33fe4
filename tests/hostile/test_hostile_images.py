"""Images made to keep a decoder busy: each is refused in a sentence, and the next one is read."""

import io
import json
import os
import signal
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest
from bombs import BOMBS, bmp_rle, jpeg_scans, png_idats, segment, tiff_strips
from forked import PIPE, Forked
from pictures import encode, scene
from PIL import Image
from promise import command, keeps_promise
from terminal import small

from saccade.data.image.decode import busy, decode, header

SLOW = {
    "slow.ppm": lambda: b"P3 2000 2000 255 " + b"1 " * 12_000_000,  # in Python
    "slow.jpg": lambda: jpeg_scans(20, 7000),  # in libjpeg
}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return small().save(tmp_path_factory.mktemp("model") / "small")


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_a_sentence_before_it_is_decoded(name, tmp_path):
    make, words = BOMBS[name]
    path = tmp_path / name
    path.write_bytes(make())
    refused = keeps_promise(lambda: decode(path), tmp_path, mebibytes=300)
    assert words in str(refused)
    assert str(refused).startswith(str(path))
    again = keeps_promise(lambda: header(str(path), path.read_bytes()), tmp_path, mebibytes=300)
    assert str(again) == str(refused)
    assert not busy


def grey_levels(data: bytes) -> np.ndarray:
    return np.asarray(decode(data))[..., 0]


@pytest.mark.parametrize("scans", [2, 10, 100])
def test_a_progressive_jpeg_within_the_limit_is_decoded(scans):
    assert decode(jpeg_scans(scans)).size == (1000, 1000)


def test_scans_after_the_end_of_a_jpeg_are_not_counted():
    film = bytes(1000) + segment(0xDA, b"\1\1\0\1\x3f\x10") * 5000  # phones put a film behind the image
    assert decode(jpeg_scans(10, tail=b"\xff\xd9" + film)).size == (1000, 1000)


def test_a_multi_picture_jpeg_is_counted_too():
    kept = encode(scene(), "MPO", save_all=True, append_images=[Image.fromarray(scene())], progressive=True)
    assert decode(kept).size == (48, 32)
    mpf = kept[kept.index(b"\xff\xe2") :][
        : 2 + int.from_bytes(kept[kept.index(b"\xff\xe2") + 2 :][:2], "big")
    ]
    bomb = jpeg_scans(20_000)
    refused = keeps_promise(lambda: decode(bomb[:2] + mpf + bomb[2:]))
    assert "has 20,000 scans" in str(refused)


def test_a_png_in_60_000_chunks_is_decoded():
    assert np.array_equal(np.asarray(decode(png_idats(60_000))), scene())


def test_strips_of_one_row_are_decoded_however_many():
    rows = np.arange(65_535, dtype=np.uint32).astype(np.uint8)
    offsets = list(range(65_535))
    data = tiff_strips(1, 65_535, 1, offsets, [1] * 65_535, tail=rows.tobytes())
    assert np.array_equal(grey_levels(data)[:, 0], rows)


@pytest.mark.parametrize(
    "compression", ["tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg", "zstd", "lzma"]
)
def test_compressed_strips_are_decoded(compression):
    data = encode(scene(700, 500), "TIFF", compression=compression)
    assert np.abs(np.asarray(decode(data)).astype(int) - scene(700, 500)).max() <= 12


def test_a_run_length_bmp_is_decoded():
    assert decode(bmp_rle(200, 3, b"\xc8\x05\0\0" * 3 + b"\0\1")).size == (200, 3)


@pytest.mark.parametrize("most", [1, 7, 100, 254, 256, 1023, 4095, 65_535])
@pytest.mark.parametrize("magic", [b"P5", b"P6"])
def test_a_ppm_of_any_depth_has_the_pixels_that_pillow_gives_it(magic, most):
    bands = 1 if magic == b"P5" else 3
    samples = np.random.default_rng(most).integers(0, most + 1, (9, 11, bands))
    body = samples.astype(">u2" if most > 255 else "u1").tobytes()
    data = magic + b" 11 9 %d\n" % most + body
    with Image.open(io.BytesIO(data)) as picture:
        theirs = np.asarray(picture).reshape(9, 11, bands)
    theirs = theirs >> 8 if picture.mode.startswith("I") else theirs
    assert np.array_equal(np.asarray(decode(data)), np.broadcast_to(theirs, (9, 11, 3)))
    assert "is cut short: the PPM ends after" in str(keeps_promise(lambda: decode(data[:-1])))


def test_a_large_deep_ppm_takes_seconds_and_not_minutes():
    data = b"P6 5000 4000 65535\n" + bytes(5000 * 4000 * 6)
    assert keeps_promise(lambda: decode(data), seconds=5, mebibytes=400) is None


@pytest.mark.parametrize("name", SLOW)
def test_the_slowest_image_that_is_allowed_takes_seconds(name):
    data = SLOW[name]()
    assert keeps_promise(lambda: decode(data), seconds=15, mebibytes=900) is None


def folder(root: Path, count: int = 3) -> Path:
    """Class folders of good images with one bomb among them."""
    for label in ("a", "b"):
        (root / label).mkdir(parents=True)
        for i in range(count):
            (root / label / f"{i}.png").write_bytes(encode(scene() + np.uint8((7 * i + ord(label)) % 256)))
    (root / "a" / "1.jpg").write_bytes(jpeg_scans(20_000))
    return root


def test_predict_continues_with_the_next_image(model, tmp_path):
    done = command("predict", model, folder(tmp_path / "data"), "--json", cwd=tmp_path, code=1)
    assert "1.jpg has 20,000 scans in its JPEG; at most 100 are read; save it again" in done.err
    assert "1 of 7 images could not be read" in done.err
    assert [("error" in each) for each in json.loads(done.out)].count(True) == 1


def test_check_names_the_image_and_continues(tmp_path):
    data = folder(tmp_path / "data")
    for quick in ([], ["--quick"]):
        done = command("check", data, *quick, "--json", cwd=tmp_path, code=1)
        [found] = json.loads(done.out)["unreadable"]
        assert "has 20,000 scans in its JPEG" in found["reason"]


def test_training_and_evaluation_continue_with_the_other_images(tmp_path):
    data = folder(tmp_path / "data", 60)
    done = command(
        "train", data, "--out", "run", "--set", "budget.steps=4", "--set", "budget.batch=16",
        "--set", "workers=1", cwd=tmp_path, code=0, seconds=60,
    )  # fmt: skip
    assert "1.jpg has 20,000 scans" in done.err + done.out
    done = command("evaluate", "run", data, cwd=tmp_path, seconds=60)
    assert done.code in {0, 1}
    done = command("embed", "run", data, "--out", "x.npz", cwd=tmp_path, seconds=60)
    assert done.code in {0, 1}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", SLOW)
def test_a_slow_image_can_be_interrupted_and_is_named(model, tmp_path, name, number):
    slow = [tmp_path / f"{i}-{name}" for i in range(30)]
    slow[0].write_bytes(SLOW[name]())
    for path in slow[1:]:
        os.link(slow[0], path)
    (tmp_path / "empty.jpg").touch()
    with Forked(["predict", model, tmp_path / "empty.jpg", *slow], stderr=PIPE) as process:
        assert "empty.jpg is empty" in process.stderr.readline()  # the slow ones are next
        sleep(0.5)
        process.send_signal(number)
        start = monotonic()
        try:
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert monotonic() - start < 10
    assert process.returncode == 130, said
    assert "Traceback" not in said
    if name == "slow.ppm":  # the other is decoded in half a second, and resized in as much
        assert f"interrupted while reading {tmp_path}" in said
        assert name in said


def test_check_is_interrupted_within_an_image_of_each_thread(tmp_path):
    for label in ("a", "b"):
        (tmp_path / "data" / label).mkdir(parents=True)
    data = SLOW["slow.ppm"]()  # nearly all of its time is reading, whatever the machine
    for i in range(8):
        (tmp_path / "data" / "ab"[i % 2] / f"{i}-slow.ppm").write_bytes(data + b"%d " % i)
    with Forked(["check", tmp_path / "data"], stderr=PIPE) as process:
        process.stderr.readline()
        sleep(2)
        process.send_signal(signal.SIGTERM)
        start = monotonic()
        try:
            _, said = process.communicate(timeout=80)
        finally:
            process.kill()
    assert monotonic() - start < 40
    assert process.returncode == 130, said
    assert "interrupted while reading" in said
    assert "slow.ppm" in said
