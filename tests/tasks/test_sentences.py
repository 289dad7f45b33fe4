"""Sentence pairs and texts from files of every kind, and files that are not what they should be."""

import gzip
import json
import os
import tracemalloc

import numpy as np
import pytest

from saccade.data.splits import hold_out
from saccade.errors import DataError, UsageError
from saccade.tasks.language import data as text
from saccade.tasks.translate.data import open_pairs
from saccade.tasks.translate.pair_files import languages
from saccade.text.lines import LONGEST, lines

GERMAN = ["Ein Hund läuft.", "Zwei Männer", "Das ist gut", "Eine Frau\tliest"]
ENGLISH = ["A dog runs.", "Two men", "This is good", "A woman is reading"]


def write(path, rows, pack=False, end="\n"):
    content = "".join(row + end for row in rows).encode()
    path.write_bytes(gzip.compress(content) if pack else content)
    return path


def two(folder, german=GERMAN, english=ENGLISH, stem="train", pack=False):
    ending = ".gz" if pack else ""
    write(folder / f"{stem}.de{ending}", german, pack)
    write(folder / f"{stem}.en{ending}", english, pack)
    return folder


def pairs(found):
    return [(pair.source, pair.target) for pair in found]


WANTED = list(zip(GERMAN, ENGLISH, strict=True))


@pytest.mark.parametrize("pack", [False, True], ids=["plain", "gzip"])
def test_two_files_in_a_folder_are_read_line_by_line_and_a_tab_is_a_part_of_the_sentence(tmp_path, pack):
    found = open_pairs(str(two(tmp_path, pack=pack)))
    assert pairs(found.train) == WANTED
    assert pairs(found.train) == WANTED, "a second pass reads the files again"
    assert found.train.sides == ("de", "en")
    assert "4 sentence pairs from de to en" in found.summary


def test_the_pair_decides_the_direction(tmp_path):
    found = open_pairs(str(two(tmp_path)), "en-de")
    assert pairs(found.train) == [(b, a) for a, b in WANTED]


def test_two_files_are_named_with_a_comma_or_by_what_they_share(tmp_path):
    two(tmp_path, stem="news")
    both = f"{tmp_path / 'news.en'},{tmp_path / 'news.de'}"
    assert pairs(open_pairs(both).train) == [(b, a) for a, b in WANTED]
    assert open_pairs(both).train.sides == ("en", "de")
    assert pairs(open_pairs(str(tmp_path / "news"), "de-en").train) == WANTED
    with pytest.raises(UsageError, match="the pair is de-en, but the files are en-de"):
        open_pairs(both, "de-en")


@pytest.mark.parametrize("pack", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("header", [False, True])
def test_tsv_is_known_by_its_content_whatever_its_name(tmp_path, pack, header):
    rows = [f"{a}\t{b}\tCC-BY" for a, b in WANTED[:3]]
    path = write(tmp_path / "pairs.dat", (["de\ten\txx"] if header else []) + rows, pack)
    found = open_pairs(str(path), "de-en" if header else "")
    assert pairs(found.train) == WANTED[:3]
    assert found.train.sides == (("de", "en") if header else ("source", "target"))


def test_columns_without_names_can_be_given_by_number(tmp_path):
    path = write(tmp_path / "pairs.tsv", ["a\tb", "c\td"])
    assert pairs(open_pairs(str(path), "2-1").train) == [("b", "a"), ("d", "c")]
    with pytest.raises(UsageError, match=r"does not name its columns.*add a first line de<tab>en"):
        open_pairs(str(path), "de-en")
    with pytest.raises(UsageError, match=r"the pair is 1-3, but line 1 of pairs.tsv has 2 columns"):
        open_pairs(str(path), "1-3")


@pytest.mark.parametrize("deep", [False, True], ids=["flat", "as on the hub"])
def test_jsonl_is_read_by_its_fields(tmp_path, deep):
    rows = [{"de": a, "en": b, "fr": "x"} for a, b in WANTED]
    path = write(tmp_path / "p.json", [json.dumps({"translation": r, "id": 1} if deep else r) for r in rows])
    assert pairs(open_pairs(str(path), "de-en").train) == WANTED
    assert pairs(open_pairs(str(path), "fr-en").train)[0] == ("x", ENGLISH[0])
    with pytest.raises(UsageError, match=r"p.json has the fields de, en, fr; say which"):
        open_pairs(str(path))
    with pytest.raises(UsageError, match=r"has no 'enn'.*pair de-enn.*did you mean 'en'"):
        open_pairs(str(path), "de-enn")


def test_files_named_after_splits_are_the_splits_and_there_may_be_several_tests(tmp_path):
    for stem in ("train", "val", "test_2016", "test_2017"):
        two(tmp_path, stem=stem)
    write(tmp_path / "test_2018.de", GERMAN)
    write(tmp_path / "train.fr", ["un chien"])
    found = open_pairs(str(tmp_path), "de-en")
    assert list(found.by_name) == ["train", "val", "test_2016", "test_2017"]
    assert hold_out(found) is found
    assert "test_2018" in found.warnings[0]
    with pytest.raises(UsageError, match="has the languages de, en, fr; say which to translate"):
        open_pairs(str(tmp_path))
    with pytest.raises(UsageError, match="has no language 'es', which the pair de-es asks for; found de,"):
        open_pairs(str(tmp_path), "de-es")


def test_a_folder_of_tsv_files_may_hold_other_texts(tmp_path):
    for name in ("train", "dev"):
        write(tmp_path / f"{name}.tsv", ["a\tb"])
    write(tmp_path / "README.txt", ["read me"])
    found = open_pairs(str(tmp_path))
    assert list(found.by_name) == ["train", "val"]


def test_pairs_held_out_depend_on_their_own_words_alone(tmp_path):
    rows = [f"satz {i}\tsentence {i}" for i in range(400)]
    path = write(tmp_path / "p.tsv", rows)
    found = hold_out(open_pairs(str(path)), 0.1, seed=3)
    held = {pair.source for pair in found.val}
    assert 20 <= len(held) <= 80
    assert len(found.train) + len(found.val) == 400
    assert not held & {pair.source for pair in found.train}
    write(path, ["neu\tnew", *reversed(rows)])
    again = hold_out(open_pairs(str(path)), 0.1, seed=3)
    assert {pair.source for pair in again.val} - {"neu"} == held


def test_a_sentence_that_occurs_twice_stays_on_one_side(tmp_path):
    path = write(tmp_path / "p.tsv", [f"satz {i % 100}\tsentence {i}" for i in range(300)])
    found = hold_out(open_pairs(str(path)), 0.2)
    assert not {p.source for p in found.val} & {p.source for p in found.train}


def test_the_fingerprint_changes_with_any_word_and_with_the_split(tmp_path):
    path = write(tmp_path / "p.tsv", [f"a {i}\tb {i}" for i in range(50)])
    one = open_pairs(str(path)).train
    assert one.fingerprint() == open_pairs(str(path)).train.fingerprint()
    assert one.fingerprint() != one.take(np.arange(49)).fingerprint()
    write(path, [f"a {i}\tb {i + (i == 49)}" for i in range(50)])
    assert one.fingerprint() != open_pairs(str(path)).train.fingerprint()


def test_files_are_left_as_they_are(tmp_path):
    two(tmp_path)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}
    list(hold_out(open_pairs(str(tmp_path)), 0.5).train)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()} == before


def test_a_few_empty_lines_are_left_out_and_told_with_their_line(tmp_path):
    german = [f"satz {i}" if i != 41 else "" for i in range(200)]
    found = open_pairs(str(two(tmp_path, german, [f"sentence {i}" for i in range(200)])))
    assert len(found.train) == 199
    assert ("satz 42", "sentence 42") in pairs(found.train)
    assert found.warnings == ("line 42 of train.de and train.en has nothing in de; left out",)


BAD = {
    "empty lines": (
        lambda f: two(f, ["a", "", "", "d"], ["w", "x", "", "z"]),
        r"line 2 of train.de and train.en has nothing in de \(and 1 more such lines out of 4\)",
    ),
    "nothing but empty lines": (
        lambda f: two(f, ["", ""], ["", ""]),
        "line 1 of .* no sentence pairs were found",
    ),
    "the first file is longer": (
        lambda f: two(f, ["a", "b", "c"], ["w", "x"]),
        "train.en ends after line 2, but train.de has a line 3",
    ),
    "the second file is longer": (
        lambda f: two(f, ["a"], ["w", "x"]),
        "train.de ends after line 1, but train.en has a line 2",
    ),
    "a line of 100,000 characters": (
        lambda f: two(f, ["a", "b" * 100_000], ["w", "x"]),
        "line 2 of .*train.de has more than 20,000 characters",
    ),
    "100,000 characters of four bytes": (
        lambda f: two(f, ["a", "𝒳" * 100_000], ["w", "x"]),
        "line 2 of .*train.de has more than 20,000 characters",
    ),
    "not UTF-8": (
        lambda f: (two(f), (f / "train.de").write_bytes("gut\nschön\n".encode("latin1")))[0],
        "line 2 of .*train.de is not UTF-8 .byte 0xf6 at position 4.*iconv",
    ),
    "UTF-16": (
        lambda f: (two(f), (f / "train.de").write_bytes("gut\n".encode("utf-16")))[0],
        "train.de is UTF-16; expected UTF-8",
    ),
    "cut in a character": (
        lambda f: (two(f), (f / "train.de").write_bytes("a\nb\nc\nschö".encode()[:-1]))[0],
        "line 4 of .*train.de is not UTF-8",
    ),
    "a damaged gzip": (
        lambda f: (two(f), (f / "train.de").write_bytes(b"\x1f\x8b" + os.urandom(500)))[0],
        r"train.de cannot be read beyond line 0 .*copy it again",
    ),
    "a row of one column": (
        lambda f: write(f / "p.tsv", ["a\tb", "c", "d\te"]),
        "line 2 of p.tsv has 1 column; expected 2 or more, separated by tabs",
    ),
    "no tab at all": (lambda f: write(f / "p.tsv", ["", "a b"]), "line 2 of p.tsv has no tab"),
    "no JSON": (
        lambda f: write(f / "p.jsonl", ['{"a": "x", "b": "y"}', "{oops"]),
        "line 2 of p.jsonl is not JSON",
    ),
    "a JSON list": (
        lambda f: write(f / "p.jsonl", ['{"a": "x", "b": "y"}', "[1]"]),
        r"line 2 of p.jsonl is '\[1\]'; expected a JSON object",
    ),
    "deep JSON": (
        lambda f: write(f / "p.jsonl", ['{"a": "x", "b": "y"}', "[" * 19_000]),
        "line 2 of p.jsonl is not JSON",
    ),
    "a missing field": (
        lambda f: write(f / "p.jsonl", ['{"a": "x", "b": "y"}', '{"a": "x", "bb": "y"}']),
        "line 2 of p.jsonl has no field 'b'; found a, bb",
    ),
    "a number for a sentence": (
        lambda f: write(f / "p.jsonl", ['{"a": "x", "b": "y"}', '{"a": 3, "b": "y"}']),
        "line 2 of p.jsonl has 3 in 'a'; expected text",
    ),
    "an empty file": (lambda f: write(f / "p.tsv", []), "p.tsv is empty"),
    "an empty folder": (lambda f: f, "has no sentence pairs"),
    "nothing": (lambda f: f / "nowhere", "there is no file or folder .*nowhere"),
    "only tests": (lambda f: two(f, stem="test"), "only in test; expected some named train"),
}


@pytest.mark.parametrize(("make", "words"), BAD.values(), ids=BAD.keys())
def test_bad_files_are_refused_in_one_sentence_with_the_line(tmp_path, make, words):
    with pytest.raises(DataError, match=words) as caught:
        open_pairs(str(make(tmp_path)))
    assert "\n" not in str(caught.value)


def test_a_gzip_that_breaks_off_is_told_with_the_last_good_line(tmp_path):
    path = tmp_path / "t.txt.gz"
    path.write_bytes(gzip.compress(b"".join(b"line %d\n" % i for i in range(9999)))[:-2000])
    with pytest.raises(DataError, match=r"cannot be read beyond line \d+ .*copy it again"):
        list(lines(path))


@pytest.mark.parametrize("pair", ["de", "de-", "de-de", "de en", "-", "de-en-fr"])
def test_a_pair_that_is_none_is_refused(pair):
    with pytest.raises(UsageError, match="expected two languages as from-to"):
        languages(pair)


def test_windows_line_ends_and_a_byte_order_mark_are_no_part_of_a_sentence(tmp_path):
    path = tmp_path / "p.tsv"
    path.write_bytes(b"\xef\xbb\xbf" + b"a\tb\r\nc\td\r\n")
    assert pairs(open_pairs(str(path)).train) == [("a", "b"), ("c", "d")]


def test_files_that_change_between_two_passes_are_noticed(tmp_path):
    path = write(tmp_path / "p.tsv", ["a\tb", "c\td"])
    found = open_pairs(str(path)).train
    write(path, ["a\tb"])
    with pytest.raises(DataError, match="shrank"):
        list(found)
    write(path, ["a\tb"] * 3)
    with pytest.raises(DataError, match="grew"):
        list(found)


def test_one_line_at_a_time_is_held(tmp_path):
    path = write(tmp_path / "t.txt", ["x" * 1000] * 5000)
    tracemalloc.start()
    count = sum(1 for _ in lines(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 5000
    assert peak < 2_000_000


def test_text_is_held_out_from_its_end(tmp_path):
    path = write(tmp_path / "book.txt", [f"line {i:03d}" for i in range(100)])
    found = hold_out(text.open_text(str(path)), 0.1)
    assert "".join(found.train) + "".join(found.val) == path.read_text()
    assert next(iter(found.val)) == "line 090\n"
    assert (found.train.characters, found.val.characters) == (810, 90)
    assert found.train.fingerprint() != found.val.fingerprint()


def test_text_in_a_folder_of_splits_or_in_jsonl(tmp_path):
    write(tmp_path / "train.txt", ["one", "two"])
    write(tmp_path / "valid.txt.gz", ["three"], pack=True)
    write(tmp_path / "test.txt", ["four"])
    found = text.open_text(str(tmp_path))
    assert {name: "".join(part) for name, part in found.by_name.items()} == {
        "train": "one\ntwo\n",
        "val": "three\n",
        "test": "four\n",
    }
    path = write(tmp_path / "x.jsonl", [json.dumps({"text": "a\nb"}), json.dumps({"text": "c"})])
    assert "".join(text.open_text(str(path)).train) == "a\nb\nc\n"
    write(path, [json.dumps({"text": "a"}), json.dumps({"words": "c"})])
    with pytest.raises(DataError, match=r'line 2 of x.jsonl has no field "text"'):
        text.open_text(str(path))


def test_a_long_line_of_running_text_is_told_and_read(tmp_path):
    path = write(tmp_path / "book.txt", ["a", "b" * 100_000])
    found = text.open_text(str(path))
    assert found.warnings == ("line 2 of book.txt has 100,000 characters; it is read as running text",)
    assert found.train.characters == 100_003 > LONGEST


@pytest.mark.parametrize(
    ("rows", "words"),
    [([], "contains no text"), (["", "  "], "contains no text")],
)
def test_a_text_without_words_is_refused(tmp_path, rows, words):
    with pytest.raises(DataError, match=words):
        text.open_text(str(write(tmp_path / "t.txt", rows)))


def test_the_last_of_two_lines_is_held_out(tmp_path):
    found = hold_out(text.open_text(str(write(tmp_path / "t.txt", ["hi", "you"]))))
    assert (list(found.train), list(found.val)) == (["hi\n"], ["you\n"])


def test_a_single_line_cannot_be_parted(tmp_path):
    with pytest.raises(DataError, match="is a single line, so nothing can be held out"):
        hold_out(text.open_text(str(write(tmp_path / "t.txt", ["a"]))))


def test_multi30k_is_found_below_its_folder(data):
    found = open_pairs(str(data / "text" / "multi30k" / "data"), "de-en")
    assert {name: len(part) for name, part in found.by_name.items()} == {
        "train": 29_000,
        "val": 1014,
        "test_2016_flickr": 1000,
        "test_2017_flickr": 1000,
        "test_2017_mscoco": 461,
        "test_2018_flickr": 1071,
    }
    first = next(iter(found.train))
    assert first.source == "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche."


def test_the_share_that_is_advised_is_enough(tmp_path):
    path = write(tmp_path / "pairs.tsv", ["Hund\tdog", "Katze\t", "Kuh\tcow"])
    with pytest.raises(DataError, match=r"line 2 of pairs\.tsv has nothing in target") as refused:
        open_pairs(str(path))
    advised = float(str(refused.value).rpartition("bad=")[2].rstrip(")"))
    assert pairs(open_pairs(str(path), bad=advised).train) == [("Hund", "dog"), ("Kuh", "cow")]


def test_short_words_of_a_first_pair_are_no_names_of_columns(tmp_path):
    path = write(tmp_path / "pairs.tsv", ["ja\tyes", "nein\tno", "der Hund\tthe dog"])
    found = open_pairs(str(path))
    assert found.train.sides == ("source", "target")
    assert pairs(found.train)[0] == ("ja", "yes")


@pytest.mark.parametrize("half", ["\\ud800", "\\uDBFF"])
def test_half_a_letter_in_json_is_named_by_its_line(tmp_path, half):
    rows = ['{"de": "eins", "en": "one"}', f'{{"de": "zwei {half}", "en": "two"}}']
    path = write(tmp_path / "pairs.jsonl", rows)
    with pytest.raises(DataError, match=r"line 2 of .*pairs.jsonl.* contains half a character"):
        open_pairs(str(path), "de-en")
