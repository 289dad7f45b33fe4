"""Manifests, tar shards and Parquet files, damaged in thousands of ways: opened, or refused in a sentence."""

import io
import json
import tarfile

import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from mutations import NASTY, mutated_bytes, mutated_json
from promise import fuzz, keeps_promise
from trees import picture, tree

from saccade.data.readers.open import open_images
from saccade.errors import DataError

BLOCK = 512
ROWS = [
    {"path": f"{name}/{i}.png", "label": i, "label_name": name, "split": split, "group": f"{name}{i}"}
    for name, split in (("a", "train"), ("b", "train"), ("a", "val"))
    for i in range(2)
]
CSV = "".join(",".join(map(str, line)) + "\r\n" for line in (ROWS[0], *(row.values() for row in ROWS)))


def open_all(path):
    """Open a source and use it as training would: names, keys, sizes, bytes."""
    for images in open_images(path, least=1).by_name.values():
        images.fingerprint()
        images.keys()
        for i in range(min(len(images), 20)):
            images.name(i)
            try:
                images.read(i)
            except DataError as error:
                note(str(error))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tree(tmp_path_factory.mktemp("readers"), {"a": 2, "b": 2})


def tries(folder, name, data):
    path = folder / name
    path.write_bytes(data)
    return keeps_promise(lambda: open_all(path), folder)


@fuzz
@given(st.one_of(mutated_bytes(CSV.encode()), mutated_bytes(CSV.encode("utf-16")), st.binary(max_size=300)))
def test_csv(folder, data):
    tries(folder, "m.csv", data)


@st.composite
def odd_cells(draw):
    """A table whose form is right and whose cells are not."""
    texts = st.sampled_from(
        [str(word) for word in NASTY] + ["a/0.png", "b/1.png", "train", "a", "=a", "\udcff"]
    )
    rows = draw(st.lists(st.lists(texts | st.text(max_size=20), min_size=3, max_size=3), max_size=6))
    cells = [",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows]
    return "\n".join(["path,label,split", *cells]).encode("utf-8", "surrogatepass")


@fuzz
@given(odd_cells())
def test_csv_of_odd_cells(folder, data):
    tries(folder, "m.csv", data)


@fuzz
@given(mutated_json(ROWS), mutated_bytes(b"\n".join(json.dumps(row).encode() for row in ROWS)), st.booleans())
def test_jsonl(folder, rows, data, whole):
    if whole:
        rows = rows if isinstance(rows, list) else [rows]
        data = b"\n".join(json.dumps(row).encode() for row in rows)
    tries(folder, "m.jsonl", data)


def shard(form):
    names = [
        "a" * 90 + "/" + "b" * 60 if form == tarfile.USTAR_FORMAT else "a" * 150,
        "b/c",
        "d",
        "e",
    ]  # the first is too long for a plain header
    members = {f"{name}.{end}": data for i, name in enumerate(names)
               for end, data in (("png", picture(i)), ("json", b'{"label": "%d"}' % (i % 2)))}  # fmt: skip
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = (
                len(data),
                {"size": str(len(data))} if form == tarfile.PAX_FORMAT else {},
            )
            archive.addfile(info, io.BytesIO(data))
    return made.getvalue()


def signed(data):
    """Give every header its right checksum again, so that a reader believes the other fields."""
    made = bytearray(data)
    for start in range(0, len(made) - BLOCK + 1, BLOCK):
        if made[start + 257 : start + 262] == b"ustar":
            made[start + 148 : start + 156] = b" " * 8
            made[start + 148 : start + 156] = b"%06o\0 " % sum(made[start : start + BLOCK])
    return bytes(made)


SHARDS = [shard(form) for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)]
FIELDS = (b"", b"\0" * 12, b" " * 12, b"\xff" * 12, b"\x80" + b"\xff" * 11, b"77777777777\0",
          b"00000000001\0", b"-0000000001\0", b"8\0", b"\x80" + b"\0" * 11)  # fmt: skip


@st.composite
def odd_tars(draw):
    """Bytes damaged anywhere, or sizes and kinds of members changed, with right checksums."""
    data = bytearray(draw(st.sampled_from(SHARDS)))
    if draw(st.booleans()):
        data = bytearray(draw(mutated_bytes(bytes(data))))
    starts = [s for s in range(0, len(data) - BLOCK + 1, BLOCK) if data[s + 257 : s + 262] == b"ustar"]
    for _ in range(draw(st.integers(0, 3)) if starts else 0):
        start = draw(st.sampled_from(starts))
        if draw(st.booleans()):
            field = draw(st.sampled_from(FIELDS) | st.binary(min_size=12, max_size=12))
            data[start + 124 : start + 124 + len(field)] = field
        else:
            data[start + 156] = draw(st.sampled_from(b"01234567LKxgSDVM\0z"))
    return signed(data) if draw(st.integers(0, 9)) else bytes(data)


@fuzz
@given(odd_tars())
def test_tar(folder, data):
    tries(folder, "s.tar", data)


@st.composite
def odd_records(draw):
    """A pax header whose records are odd."""
    digits = st.sampled_from([b"9" * 5000, b"-1", b"1", b"", "²".encode(), b"0x10", b"1" * 19, b"1" * 20])
    key = st.sampled_from([b"path", b"size", b"GNU.sparse.size", b"", b"a" * 2000])
    value = (
        digits
        | st.binary(max_size=20)
        | st.sampled_from([b"x\0y.png", b"../../x.png", b"/" * 3000 + b"y.png"])
    )
    text = b""
    for k, v in draw(st.lists(st.tuples(key, value), max_size=4)):
        body = b" " + k + b"=" + v + b"\n"
        size = len(body) + 1
        while len(b"%d" % size) + len(body) != size:
            size += 1
        text += b"%d" % size + body
    info = tarfile.TarInfo("pax")
    info.size, info.type = len(text), draw(st.sampled_from([b"x", b"g", b"L", b"K"]))
    return info.tobuf(tarfile.USTAR_FORMAT) + text + b"\0" * (-len(text) % BLOCK) + SHARDS[0]


@fuzz
@given(odd_records())
def test_tar_with_odd_extended_headers(folder, data):
    tries(folder, "s.tar", data)


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder = tmp_path_factory.mktemp("parquet")
    names = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    for words, pack in (
        ([0, 1, 0, 1], "snappy"),
        (["a", "b", "a", None], "zstd"),
        ([0.0, 1.0, 1.0, 0.0], "none"),
    ):
        image = [{"bytes": picture(i), "path": None} for i in range(4)]
        table = pyarrow.table({"image": image, "label": words})
        if words[0] == 0:
            table = table.replace_schema_metadata({"huggingface": json.dumps(names)})
        parquet.write_table(table, folder / f"{pack}.seed", row_group_size=2, compression=pack)
    return folder


@fuzz
@given(st.data())
def test_parquet(parquet, data):
    """Damaged anywhere, or only in the description at its end, or only in the pages."""
    seed = (parquet / f"{data.draw(st.sampled_from(('snappy', 'zstd', 'none')))}.seed").read_bytes()
    length = int.from_bytes(seed[-8:-4], "little")
    body, footer = seed[: -8 - length], seed[-8 - length : -8]
    kind = data.draw(st.sampled_from(("all", "footer", "body")))
    if kind == "footer":
        footer = data.draw(mutated_bytes(footer))
        made = body + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    elif kind == "body":
        made = data.draw(mutated_bytes(body)) + seed[len(body) :]
    else:
        made = data.draw(mutated_bytes(seed))
    tries(parquet, "s.parquet", made)


def test_a_fair_share_of_what_is_tried_gets_past_the_first_check(folder):
    seen = {True: 0, False: 0}

    @fuzz
    @given(odd_tars())
    def count(data):
        error = tries(folder, "s.tar", data)
        seen[error is None or "is not a tar archive" not in str(error)] += 1

    count()
    assert seen[True] > seen[False]
