"""What any file becomes: an upright RGB picture, or one sentence."""

import contextlib
import hashlib
import io
import os
import struct
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pictures import (
    BAD,
    GOOD,
    KINDS,
    Odd,
    chunk,
    encode,
    flipped,
    jpeg_with,
    noisy,
    oriented,
    png_of,
    png_with,
    scene,
    tiff,
    turned,
    write,
)
from PIL import Image, ImageFile, TiffImagePlugin

import saccade.data.image.formats
from saccade.data.image.decode import decode, to_rgb
from saccade.errors import DataError
from saccade.wording import show_name


def named(odd: Odd) -> str:
    return ascii(odd.name)[1:-1][:40]


def fingerprint(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() + str(path.stat().st_mtime_ns)
        for path in folder.iterdir()
        if path.is_file()
    }


@pytest.mark.parametrize("odd", GOOD, ids=named)
def test_every_odd_picture_shows_the_right_pixels(odd, tmp_path):
    [path] = write(tmp_path, [odd])
    picture = decode(path)
    assert picture.mode == "RGB"
    seen = np.asarray(picture)
    assert seen.shape == odd.shows.shape
    assert np.abs(seen.astype(int) - odd.shows).max() <= odd.near


@pytest.mark.parametrize("odd", BAD, ids=named)
def test_every_unusable_file_is_refused_in_words_that_name_it(odd, tmp_path):
    [path] = write(tmp_path, [odd])
    with pytest.raises(DataError) as refusal:
        decode(path)
    text = str(refusal.value)
    assert odd.says in text
    assert text.startswith(str(path))
    assert "\n" not in text


def test_the_corpus_has_the_forty_kinds_and_both_halves():
    assert len({odd.name for odd in KINDS}) == len(KINDS)
    assert len(GOOD) > 60
    assert len(BAD) > 60
    assert all(odd.says for odd in BAD)


def test_no_file_is_changed_by_being_read(tmp_path):
    files = write(tmp_path)
    before = fingerprint(tmp_path)
    for path in files:
        with contextlib.suppress(DataError):
            decode(path)
    assert fingerprint(tmp_path) == before


@pytest.mark.parametrize(
    "odd", [odd for odd in KINDS if "." in odd.name and odd.name.isascii()][::7], ids=named
)
def test_bytes_and_open_files_are_read_like_the_path(odd, tmp_path):
    [path] = write(tmp_path, [odd])
    if not path.is_file() or path.stat().st_size > 10_000_000:
        return
    content = path.read_bytes()
    for source in (content, io.BytesIO(content), str(path)):
        if odd.usable:
            assert np.array_equal(np.asarray(decode(source)), np.asarray(decode(path)))
        else:
            with pytest.raises(DataError):
                decode(source)


def test_bytes_have_no_name_so_the_picture_is_named():
    with pytest.raises(DataError, match=r"^the image is empty \(0 bytes\)"):
        decode(b"")


def test_an_open_file_is_named_read_from_where_it_stands_and_left_open(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"header" + encode(scene()))
    with path.open("rb") as file:
        file.read(6)
        assert np.array_equal(np.asarray(decode(file)), scene())
        assert not file.closed
        with pytest.raises(DataError, match=r"a\.bin is empty"):
            decode(file)


def test_a_stream_that_gives_little_at_a_time_is_read_to_its_end():
    class Drip(io.RawIOBase):
        rest = encode(scene())

        def readable(self) -> bool:
            return True

        def readinto(self, buffer) -> int:
            piece, self.rest = self.rest[:7], self.rest[7:]
            buffer[: len(piece)] = piece
            return len(piece)

    assert np.array_equal(np.asarray(decode(Drip())), scene())


def test_a_file_opened_as_text_is_refused_in_words(tmp_path):
    path = tmp_path / "words.png"
    path.write_text("words")
    with (
        path.open() as file,
        pytest.raises(
            DataError, match=r"words.png was opened as text; expected bytes; open it with mode 'rb'"
        ),
    ):
        decode(file)


NULL = "open: embedded null character in path" if sys.version_info >= (3, 13) else "embedded null byte"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nothing.png", "nothing.png does not exist; expected an image; check the path"),
        ("", "'' does not exist"),
        ("https://example.org/cat.jpg", "is a web address; expected a file; download the image first"),
        ("a\0b.png", r"'a\x00b.png' cannot be read: embedded null byte"),
        ("x" * 300, "cannot be read: File name too long; check the path and the disk"),
        ("/dev/null/x.png", "/dev/null/x.png does not exist"),
        ("/dev/null", "/dev/null is a device; expected a regular file"),
    ],
)
def test_paths_that_lead_nowhere_are_refused_in_words(path, words):
    with pytest.raises(DataError) as refusal:
        decode(path)
    assert words in str(refusal.value)


def test_a_file_without_permission_is_refused_in_words(tmp_path):
    path = tmp_path / "secret.png"
    path.write_bytes(encode(scene()))
    path.chmod(0)
    user = os.geteuid()
    if user == 0:  # root may read everything, so be somebody else for a moment
        os.seteuid(65534)
    try:
        with pytest.raises(DataError, match=r"no permission to read .*secret.png; allow it \(chmod u\+r\)"):
            decode(path)
    finally:
        os.seteuid(user)


def test_a_disk_error_while_reading_is_told_in_words(tmp_path, monkeypatch):
    def fail(stream, name):
        raise OSError(5, "Input/output error")

    path = tmp_path / "a.png"
    path.write_bytes(encode(scene()))
    monkeypatch.setattr(saccade.data.image.formats, "_drain", fail)
    with pytest.raises(DataError, match="cannot be read: Input/output error; check the path and the disk"):
        decode(path)


def test_no_descriptor_is_left_open(tmp_path):
    files = write(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for path in files:
        with contextlib.suppress(DataError):
            decode(path)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("kind", ["path", "bytes", "stream"])
def test_too_many_bytes_are_refused_before_they_are_decoded(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(saccade.data.image.formats, "BYTES", 2_000_000)
    path = tmp_path / "big.png"
    path.write_bytes(encode(scene()) + bytes(3_000_000))
    source = {"path": path, "bytes": path.read_bytes(), "stream": io.BytesIO(path.read_bytes())}[kind]
    with pytest.raises(DataError, match=r"is [23] MB; at most 2 MB are read; save a smaller copy"):
        decode(source)


def test_a_sparse_file_of_a_terabyte_is_refused_at_once(tmp_path):
    path = tmp_path / "huge.png"
    with path.open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(DataError, match=r"huge\.png is 1,000,000 MB; at most 500 MB are read"):
        decode(path)


def test_the_limits_can_be_set_and_count_the_last_pixel():
    png = encode(scene(10, 20))
    assert decode(png, pixels=200, side=20).size == (20, 10)
    with pytest.raises(DataError, match=r"has 200 pixels \(20 x 10\); at most 199 pixels are decoded"):
        decode(png, pixels=199)
    with pytest.raises(
        DataError, match=r"has a side of 20 pixels \(20 x 10\); at most 19 are decoded; cut it"
    ):
        decode(png, side=19)


def test_a_bomb_takes_no_memory_and_no_warning_escapes(recwarn):
    for side in (8_000, 10_000, 14_000, 60_000):
        with pytest.raises(DataError, match="at most 50 million pixels are decoded; make it smaller"):
            decode(png_of(side, side))
    assert not recwarn.list


def test_a_larger_limit_than_pillows_warning_is_obeyed_without_a_warning():
    with pytest.raises(DataError, match="is cut short"):  # it got past the limits: only the rows are missing
        decode(png_of(10_000, 10_000), pixels=200_000_000)


def test_pillows_own_limit_is_named_when_it_is_the_lower_one(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(DataError, match="has 1,536 pixels; at most 200 pixels are decoded"):
        decode(encode(scene()))


def test_pillows_global_settings_stay_as_they_were(tmp_path):
    before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, TiffImagePlugin.READ_LIBTIFF)
    for path in write(tmp_path):
        with contextlib.suppress(DataError):
            decode(path)
    assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, TiffImagePlugin.READ_LIBTIFF)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF"])
def test_a_cut_picture_is_refused_even_if_the_program_told_pillow_to_invent_the_rest(kind, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    data = noisy(kind)
    with pytest.raises(DataError, match="is cut short"):
        decode(data[: len(data) * 60 // 100])
    assert decode(data).size == (128, 96)


def test_warning_filters_survive_many_threads():
    noisy_files = [png_with(chunk(b"acTL", struct.pack(">II", 0, 0))), encode(scene())] * 40
    before = list(warnings.filters)
    with ThreadPoolExecutor(8) as pool:
        pictures = list(pool.map(decode, noisy_files))
    assert warnings.filters == before
    assert all(np.array_equal(np.asarray(picture), scene()) for picture in pictures)


def test_a_warning_of_somebody_else_is_not_muted_while_decoding():
    class Speaking(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            warnings.warn("mine", UserWarning, stacklevel=1)
            return super().read(size)

    with pytest.warns(UserWarning, match="mine"):
        decode(Speaking(encode(scene())))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP", "JPEG"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_each_orientation_equals_the_picture_turned_beforehand(kind, turn):
    height, width = 24, 16
    shown_pixels = scene(height, width)
    exact = kind != "JPEG"
    seen = np.asarray(decode(oriented(kind, turn, shown_pixels)))
    if exact:
        assert np.array_equal(seen, shown_pixels)
    else:
        stored = oriented(kind, turn, shown_pixels)
        without = np.asarray(Image.open(io.BytesIO(stored)))
        assert np.array_equal(turned(seen, turn), without)  # the very pixels of the JPEG, only moved


def test_a_decoded_picture_is_never_turned_twice():
    picture = decode(oriented("JPEG", 6))
    assert picture.info == {}
    assert np.array_equal(np.asarray(to_rgb(picture)), np.asarray(picture))


def test_an_open_pillow_picture_is_treated_like_its_file_and_kept_as_it_is():
    for odd_turn in (1, 6):
        data = oriented("PNG", odd_turn)
        with Image.open(io.BytesIO(data)) as picture:
            assert np.array_equal(np.asarray(to_rgb(picture)), scene())
            assert picture.getexif()[0x0112] == odd_turn
            assert picture.size == ((48, 32) if odd_turn == 1 else (32, 48))


def test_an_open_pillow_picture_with_missing_data_is_refused_in_words(tmp_path):
    path = tmp_path / "half.jpg"
    path.write_bytes(noisy("JPEG")[:4000])
    with (
        Image.open(path) as picture,
        pytest.raises(
            DataError,
            match=r"half.jpg is cut short or damaged \(image file is truncated.*open an undamaged copy",
        ),
    ):
        to_rgb(picture)


def test_a_pillow_picture_without_pixels_is_refused_in_words():
    with pytest.raises(DataError, match=r"the image has no pixels \(0 x 5\); expected 1 x 1 or more"):
        to_rgb(Image.new("RGB", (0, 5)))


def test_transparency_shows_the_background_that_was_asked_for():
    clear = Image.new("RGBA", (4, 3), (255, 0, 255, 0))
    assert np.unique(np.asarray(decode(encode(clear))).reshape(-1, 3), axis=0).tolist() == [[255, 255, 255]]
    seen = np.asarray(decode(encode(clear), background=(1, 2, 3)))
    assert np.unique(seen.reshape(-1, 3), axis=0).tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("mode", ["La", "RGBa", "PA", "RGBX", "HSV", "YCbCr", "CMYK", "1", "I;16B", "LAB"])
def test_every_mode_of_pillow_becomes_rgb(mode):
    assert to_rgb(Image.new(mode, (3, 2))).mode == "RGB"


def test_an_icc_profile_does_not_change_the_pixels():
    from PIL import ImageCms

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("XYZ")).tobytes()
    assert np.array_equal(np.asarray(decode(encode(scene(), icc_profile=profile))), scene())


def test_a_cut_jpeg_says_how_far_it_got_unless_it_is_progressive():
    data = noisy("JPEG")
    with pytest.raises(DataError, match=r"about 4\d of 96 rows are there") as refusal:
        decode(data[: len(data) * 60 // 100])
    assert f"ends after {len(data) * 60 // 100:,} bytes" in str(refusal.value)
    progressive = encode(scene(300, 300), "JPEG", progressive=True)
    with pytest.raises(DataError, match="is cut short") as refusal:
        decode(progressive[:-900])
    assert "rows" not in str(refusal.value)


def test_a_damaged_picture_carries_pillows_reason():
    jpeg = bytearray(encode(scene(200, 200), "JPEG"))
    start = jpeg.index(b"\xff\xda") + 14
    jpeg[start : start + 4] = b"\xff\xc0\0\x02"
    with pytest.raises(DataError, match=r"the image is a damaged JPEG \(.+\); copy it again or leave it out"):
        decode(bytes(jpeg))


def test_a_name_cannot_smuggle_escape_codes_into_a_terminal(tmp_path):
    path = tmp_path / "red\x1b[31m\n\u202egnp.png"
    path.write_bytes(b"")
    with pytest.raises(DataError) as refusal:
        decode(path)
    assert str(refusal.value).isprintable()
    assert "\\x1b[31m\\n\\u202egnp.png" in str(refusal.value)
    assert show_name("plain é 狐.png") == "plain é 狐.png"


@given(seed=st.sampled_from(range(12)), place=st.floats(0, 0.999), cut=st.floats(0.01, 1))
def test_a_flipped_bit_or_a_cut_gives_a_picture_or_a_sentence_and_nothing_else(seed, place, cut):
    makers = [
        lambda: encode(scene(), "JPEG"),
        lambda: encode(scene(), "JPEG", progressive=True),
        lambda: encode(scene(), "PNG"),
        lambda: encode(scene(), "WEBP"),
        lambda: encode(scene(), "WEBP", lossless=True),
        lambda: encode(scene(), "BMP"),
        lambda: encode(scene(), "GIF"),
        lambda: encode(scene(), "PPM"),
        lambda: tiff(48, 32, 8, 3, scene().tobytes(), 2),
        lambda: oriented("JPEG", 6),
        lambda: oriented("PNG", 5),
        lambda: jpeg_with(0xE2, b"ICC_PROFILE\0\x01\x01" + b"\x99" * 50),
    ]
    data = flipped(makers[seed](), place)
    try:
        mode = decode(data[: max(1, int(len(data) * cut))]).mode
    except DataError as error:
        mode = "RGB" if str(error).startswith("the image ") else str(error)
    assert mode == "RGB"
