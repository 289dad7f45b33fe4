"""Manifests, shards and Parquet files from strangers: each is read, or refused in a sentence."""

import contextlib
import json
import os
import resource
import tarfile

import pytest
from promise import command, keeps_promise
from trees import picture, tar, tree

from saccade.data.loader import fit_workers
from saccade.data.readers.open import open_images
from saccade.errors import ResourceError, UsageError, check_handles
from saccade.vision.recipe import VisionRecipe

BLOCK = 512
QUICK = ("--model", "resnet18_small_w8_16", "--set", "budget.epochs=1")


def sentence(tmp_path, source):
    refused = keeps_promise(lambda: open_images(source), tmp_path)
    return "" if refused is None else str(refused)


def jsonl(tmp_path, *rows):
    tree(tmp_path, {"a": 2, "b": 2})
    good = [{"path": "a/0.png", "label": "x"}, {"path": "b/0.png", "label": "y"}]
    lines = [row if isinstance(row, str) else json.dumps(row) for row in (*good, *rows)]
    (tmp_path / "m.jsonl").write_text("\n".join(lines))
    return tmp_path / "m.jsonl"


@pytest.mark.parametrize("half", [0xD800, 0xDC7F, 0xDFFF])
def test_half_a_letter_in_a_path_is_told_with_its_line(tmp_path, half):
    path = jsonl(tmp_path, {"path": f"a/{chr(half)}.png", "label": "x"})
    assert "line 3 of" in sentence(tmp_path, path)
    assert "a file name with a lone surrogate in it" in command("check", path, cwd=tmp_path, code=3).err


def test_half_a_letter_in_labels_splits_and_groups_is_no_harm(tmp_path):
    path = jsonl(tmp_path, {"path": "a/1.png", "label": "\ud800", "group": "\udfff"})
    assert open_images(path).train.classes == [r"\ud800", "x", "y"]
    path = jsonl(tmp_path, {"path": "a/1.png", "label": "x", "split": "\ud800" * 5000})
    assert "has the split '" in sentence(tmp_path, path)


@pytest.mark.parametrize(
    "row",
    [
        '{"path": "a/1.png", "label": ' + "9" * 5000 + "}",
        '{"path": "a/1.png", "label": "' + "9" * 5000 + '"}',
        '{"path": "a/1.png", "label": ' + "[" * 100_000 + "}",
        '{"path": "a\\u0000.png", "label": 1}',
        "[" * 5000,
    ],
)
def test_odd_json_is_told_with_its_line(tmp_path, row):
    assert command("check", jsonl(tmp_path, row), cwd=tmp_path, code=3).err


def test_a_path_of_5000_characters_is_a_file_that_is_not_there(tmp_path):
    found = open_images(jsonl(tmp_path, {"path": "x" * 5000 + ".png", "label": "x"}))
    assert "1 file of" in found.warnings[0]
    assert len(found.warnings[0]) < 600


def test_a_manifest_of_nothing_but_long_names_is_refused_in_a_short_sentence(tmp_path):
    (tmp_path / "m.csv").write_text("path,label\n" + "".join(f"{'x' * 5000}{i},{i}\n" for i in range(9)))
    assert "none of the 9 files" in sentence(tmp_path, tmp_path / "m.csv")
    (tmp_path / "m.csv").write_text(",".join(f"{'x' * 5000}{i}" for i in range(9)) + "\n")
    assert "has the columns xxx" in sentence(tmp_path, tmp_path / "m.csv")


def test_a_pipe_as_manifest_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "m.csv")
    command("check", "m.csv", "--format", "manifest", cwd=tmp_path, code=3)


def header(name, size, kind=b"0"):
    """A header whose size is taken as it is, with the right checksum."""
    block = bytearray(tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT))
    block[124:136], block[156:157], block[148:156] = size, kind, b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def good(tmp_path):
    members = {f"{i}.{end}": data for i in range(2)
               for end, data in (("png", picture(i)), ("cls", b"%d" % i))}  # fmt: skip
    return tar(tmp_path / "good.tar", members).read_bytes()


def pax(key, value):
    body = b" " + key + b"=" + value + b"\n"
    size = next(n for n in range(len(body), len(body) + 9) if n == len(body) + len(b"%d" % n))
    text = b"%d" % size + body
    return header("pax", b"%011o\0" % len(text), b"x") + text + b"\0" * (-len(text) % BLOCK)


@pytest.mark.parametrize("size", [b"9" * 5000, b"-1", b"1e3", "²".encode(), b"", b"9" * 20])
def test_a_pax_size_that_is_no_size_is_told(tmp_path, size):
    (tmp_path / "s.tar").write_bytes(pax(b"size", size) + good(tmp_path))
    done = command("check", "s.tar", cwd=tmp_path, code=3)
    assert "s.tar is damaged: the header at byte 0 gives a size of" in done.err


@pytest.mark.parametrize(
    ("size", "found"),
    [
        (b"\xff" * 12, "no number"),  # GNU's binary -1
        (b"-0000000001\0", "no number"),
        (b"\x80" + b"\xff" * 11, "is cut short"),
        (b"77777777777\0", "is cut short"),
        (b"9999\0\0\0\0\0\0\0\0", "no number"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_member_with_an_odd_size_is_told(tmp_path, size, found, first):
    bad = header("x.png", size)
    (tmp_path / "s.tar").write_bytes(bad + good(tmp_path) if first else good(tmp_path)[: 4 * BLOCK] + bad)
    assert found in sentence(tmp_path, tmp_path / "s.tar")


@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g"])
def test_a_name_of_gigabytes_is_not_read(tmp_path, kind):
    with (tmp_path / "s.tar").open("wb") as file:
        file.write(header("long", b"%011o\0" % 2**31, kind))
        file.truncate(2**31 + 4 * BLOCK)
    assert "has a header of 2,147,483,648 bytes" in sentence(tmp_path, tmp_path / "s.tar")


def test_a_pax_header_of_a_hundred_thousand_records_is_read_at_once(tmp_path):
    text = b"7 a=bc\n" * 140_000
    block = header("pax", b"%011o\0" % len(text), b"x") + text + b"\0" * (-len(text) % BLOCK)
    (tmp_path / "s.tar").write_bytes(block + good(tmp_path))
    refused = keeps_promise(lambda: open_images(tmp_path / "s.tar"), tmp_path, seconds=2)
    assert refused is None


@pytest.mark.parametrize("kind", [b"1", b"2", b"3", b"4", b"5", b"6", b"S", b"V", b"Z"])
def test_links_devices_and_sparse_files_are_passed_over(tmp_path, kind):
    (tmp_path / "s.tar").write_bytes(header("../../etc/passwd.png", b"%011o\0" % 0, kind) + good(tmp_path))
    assert len(open_images(tmp_path / "s.tar").train) == 2


def test_an_archive_in_an_archive_is_just_a_file(tmp_path):
    inner = good(tmp_path)
    members = {"a.png": picture(1), "a.cls": b"0", "b.png": inner, "b.cls": b"1"}
    images = open_images(tar(tmp_path / "s.tar", members)).train
    assert images.read(1) == inner


def test_folders_that_link_to_themselves_are_walked_once(tmp_path):
    shards = tmp_path / "shards"
    shards.mkdir()
    (shards / "0.tar").write_bytes(good(tmp_path))
    for name in "abc":
        (shards / name).symlink_to(shards)
    assert keeps_promise(lambda: open_images(shards), tmp_path, seconds=2) is None
    assert len(open_images(shards).train) == 2


@pytest.mark.parametrize(
    "pattern", ["s-{0..99999}{0..99999}.tar", "s-{9..1}.tar", "s-{0.." + "9" * 5000 + "}.tar"]
)
def test_a_pattern_of_too_many_shards_is_refused(tmp_path, pattern):
    command("check", pattern, cwd=tmp_path, code=3)


@pytest.fixture
def write(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def write(labels, names=(), images=None, **how):
        table = pyarrow.table({"image": images or [picture(i) for i in range(len(labels))], "label": labels})
        if names:
            facts = {"info": {"features": {"label": {"names": list(names)}}}}
            table = table.replace_schema_metadata({"huggingface": json.dumps(facts)})
        parquet.write_table(table, tmp_path / "s.parquet", **how)
        return tmp_path / "s.parquet"

    return write


@pytest.mark.parametrize("label", ["²", "٣", "9" * 5000, "-1", "1e3", "2"])
def test_a_parquet_label_that_is_no_number_of_a_class_is_told(tmp_path, write, label):
    write(["0", label], ["cat", "dog"])
    command("check", "s.parquet", cwd=tmp_path, code=3)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["²", "٣"], ["²", "٣"]),
        ([0.0, 1.0], ["0", "1"]),
        ([True, False], ["False", "True"]),
        ([b"a\xff", b"b"], [r"a\xff", "b"]),
        (["a", "b", None], ["a", "b"]),
    ],
)
def test_odd_types_of_labels_are_read(write, labels, classes):
    assert open_images(write(labels)).train.classes == classes


@pytest.mark.parametrize("labels", [[[1], [2]], [{"a": 1}, {"a": 2}], [[["x"] * 50], [[]]]])
def test_nested_labels_are_refused(tmp_path, write, labels):
    assert "expected one number or word per row" in sentence(tmp_path, write(labels))


def test_class_names_of_odd_types_are_named(write):
    assert open_images(write([0, 1, 2], ["", "a\nb", 3])).train.classes == ["class 0", "a b", "3"]


def test_a_file_that_unpacks_to_gigabytes_is_refused(tmp_path, write):
    path = write(["a" * 80_000_000, "b"], compression="zstd", use_dictionary=False)
    assert path.stat().st_size < 1_000_000
    assert "far more than images do" in sentence(tmp_path, path)


def test_more_rows_than_bytes_are_refused(tmp_path, write):
    pyarrow = pytest.importorskip("pyarrow")
    count = 3_000_000
    empty = pyarrow.nulls(count, pyarrow.binary())
    path = write(pyarrow.array([0] * count), images=empty, compression="zstd")
    assert "claims" in sentence(tmp_path, path)


def test_integers_of_thousands_of_digits_are_refused_as_words():
    for freeze in ("9" * 5000, "²"):
        with pytest.raises(UsageError, match="freeze"):
            VisionRecipe(freeze=freeze)


FEW = {resource.RLIMIT_NOFILE: 24}


@pytest.mark.parametrize("kind", ["folders", "shards"])
def test_many_files_are_read_where_few_may_be_open(tmp_path, kind):
    if kind == "folders":
        tree(tmp_path / "data", {"a": 30, "b": 30})
    for shard in range(30 * (kind == "shards")):
        members = {f"{i}.{end}": data for i in range(2)
                   for end, data in (("png", picture(shard * 2 + i)), ("cls", b"%d" % i))}  # fmt: skip
        tar(tmp_path / "data" / f"{shard}.tar", members)
    command("check", "data", cwd=tmp_path, limits=FEW, code=0)
    words = ("train", "data", *QUICK, "--set", "workers=2", "--out", "run")
    command(*words, cwd=tmp_path, limits=FEW, code=0, seconds=60)
    if kind == "folders":
        command("predict", "run", *(f"data/a/{i}.png" for i in range(30)), cwd=tmp_path, limits=FEW, code=0)
        command("evaluate", "run", "data", cwd=tmp_path, limits=FEW, code=0)


def test_too_many_open_files_are_no_fault_of_the_data(tmp_path):
    with pytest.raises(ResourceError, match="may not open as many files as it needs"):
        check_handles(OSError(24, "Too many open files"))
    tree(tmp_path, {"a": 2, "b": 2})
    images = open_images(tmp_path).train
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 200), hard))
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(tmp_path, os.O_RDONLY))
        with pytest.raises(ResourceError):
            images.read(0)
        with pytest.raises(ResourceError):
            open_images(tmp_path)
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_long_temporary_folder_leaves_no_room_for_sockets_so_no_workers_start(tmp_path):
    tree(tmp_path / "data", {"a": 4, "b": 4})
    deep = tmp_path / ("t" * 60) / ("u" * 60)
    deep.mkdir(parents=True)
    words = ("train", "data", *QUICK, "--set", "workers=2")
    command(*words, cwd=tmp_path, code=0, env={"TMPDIR": str(deep)}, seconds=60)


def test_workers_fit_into_the_limit_of_open_files(monkeypatch):
    limits = [(24, 24)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[0])
    made = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: made.append(both))
    assert fit_workers(2) == 0
    limits[0] = (256, 256)
    assert (fit_workers(2), fit_workers(16)) == (2, 8)
    assert made == []
    limits[0] = (256, 4096)
    assert fit_workers(16) == 16
    assert made == [(404, 4096)]


@pytest.mark.parametrize("verb", ["check", "train", "evaluate", "embed"])
def test_data_at_a_path_that_cannot_be_is_refused(tmp_path, verb):
    tree(tmp_path / "data", {"a": 2, "b": 2})
    if verb in ("evaluate", "embed"):
        command("train", "data", *QUICK, "--out", "run", cwd=tmp_path, code=0, seconds=60)
    model = ("run",) if verb in ("evaluate", "embed") else ()
    for path in ("x" * 5000, "data/a/0.png/x", "\x1b[31m"):
        command(verb, *model, path, cwd=tmp_path, code=3)


def test_columns_of_bytes_that_are_no_text_are_listed_in_short(tmp_path):
    (tmp_path / "m.csv").write_bytes(b"\xff" * 40 + b",".join([b"\xfe" * 30] * 20) + b"\n")
    assert "has the columns" in sentence(tmp_path, tmp_path / "m.csv")


def test_a_column_whose_statistics_do_not_match_does_not_end_the_process(tmp_path, write):
    """Asked about such a column, pyarrow 26 ends the process with an exception that Python cannot catch."""
    data = write([0, 1]).read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - length : -8].replace(b"\x19\x26\x00\x04\x00", b"\x19\x36\x00\x04\x00\x00")
    assert len(footer) > length
    made = data[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    (tmp_path / "s.parquet").write_bytes(made)
    command("check", "s.parquet", cwd=tmp_path)
