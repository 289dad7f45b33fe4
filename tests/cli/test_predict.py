import csv
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from time import sleep

import pytest
from forked import PIPE, Forked
from terminal import picture, run, small

from saccade.api.load import load


def test_a_table_names_the_likeliest_classes_first(model, photo):
    done = run("predict", model, photo)
    assert (done.code, done.err) == (0, "")
    header, *rows = done.out.splitlines()
    assert header.split() == ["picture", "score", "label"]
    best = load(model).predict(photo)
    assert [row.split()[-1] for row in rows] == [p.label for p in best]
    assert rows[0].startswith(str(photo))
    assert f"{best[0].score:.1%}" in rows[0]


def test_json_tells_what_the_python_face_tells(model, photo):
    done = run("predict", model, photo, "--json", "--top", "2")
    (told,) = json.loads(done.out)
    best = load(model).predict(photo, top=2)
    assert told["picture"] == str(photo)
    assert [(p["label"], p["index"]) for p in told["predictions"]] == [(p.label, p.index) for p in best]
    assert [p["score"] for p in told["predictions"]] == pytest.approx([p.score for p in best], abs=1e-6)


def test_csv_has_a_line_for_each_class_named(model, photo):
    rows = list(csv.DictReader(io.StringIO(run("predict", model, photo, "--csv", "--top", "3").out)))
    assert [row["rank"] for row in rows] == ["1", "2", "3"]
    assert {row["picture"] for row in rows} == {str(photo)}
    assert sum(float(row["score"]) for row in rows) <= 1


def test_top_beyond_the_classes_names_them_all(model, photo):
    (told,) = json.loads(run("predict", model, photo, "--json", "--top", "100").out)
    assert len(told["predictions"]) == 5
    assert sum(p["score"] for p in told["predictions"]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("top", ["0", "-1"])
def test_top_must_be_positive(model, photo, top):
    done = run("predict", model, photo, "--top", top)
    assert (done.code, done.out) == (2, "")
    assert done.err == f"error: top is {top}; expected a number from 1 to 1000000\n"


def test_a_folder_gives_its_pictures_sorted_and_no_other_files(model, tmp_path):
    folder = tmp_path / "holiday"
    (folder / "sub").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    (folder / "dir.png").mkdir()
    for name in ("b.PNG", "a.png", "sub/c.png", ".d.png", ".hidden/e.png", "dir.png/f.png"):
        picture(folder / name)
    (folder / "notes.txt").write_text("no picture")
    told = json.loads(run("predict", model, folder, "--json").out)
    names = [os.path.relpath(one["picture"], folder) for one in told]
    assert names == ["a.png", "b.PNG", "dir.png/f.png", "sub/c.png"]


def test_a_dash_reads_a_picture_from_stdin(model, photo):
    (told,) = json.loads(run("predict", model, "-", "--json", stdin=photo.read_bytes()).out)
    (same,) = json.loads(run("predict", model, photo, "--json").out)
    assert told["picture"] == "-"
    assert told["predictions"] == same["predictions"]


def test_an_empty_stdin_is_told_in_words(model):
    done = run("predict", model, "-")
    assert done.code == 1
    assert "is empty (0 bytes)" in done.err


def test_an_unreadable_picture_does_not_stop_the_others(model, tmp_path):
    good = [picture(tmp_path / f"good{i}.png", i) for i in range(2)]
    bad = tmp_path / "bad.png"
    bad.write_bytes(good[0].read_bytes()[:200])
    done = run("predict", model, good[0], bad, good[1], "--json")
    told = json.loads(done.out)
    assert done.code == 1
    assert [("predictions" in one, "error" in one) for one in told] == [
        (True, False),
        (False, True),
        (True, False),
    ]
    naming = [line for line in done.err.splitlines() if str(bad) in line]
    assert len(naming) == 1
    assert naming[0].startswith("error: ")
    assert done.err.splitlines()[-1] == "1 of 3 images could not be read"
    table = run("predict", model, good[0], bad, good[1])
    assert sum("(not read)" in line for line in table.out.splitlines()) == 1
    rows = list(csv.DictReader(io.StringIO(run("predict", model, bad, "--csv").out)))
    assert [(row["picture"], row["label"]) for row in rows] == [(str(bad), "")]


def test_a_missing_picture_is_told_in_words(model, tmp_path):
    done = run("predict", model, tmp_path / "none.png")
    assert done.code == 1
    assert f"{tmp_path / 'none.png'} does not exist; expected an image; check the path" in done.err


def test_an_empty_folder_is_refused(model, tmp_path):
    (tmp_path / "empty").mkdir()
    done = run("predict", model, tmp_path / "empty")
    assert (done.code, done.out) == (3, "")
    assert "contains no images; expected JPEG, PNG" in done.err


def test_an_empty_name_does_not_mean_the_whole_current_folder(model):
    done = run("predict", model, "")
    assert done.code == 2
    assert "the name of an image is empty" in done.err
    assert run("predict", "", "x.png").code == 4


@pytest.mark.parametrize(
    "name", ["vit.safetensors", "some/where/vit.npz", "a/model.pth", "x" * 5000, "no_such_model", "a\nb"]
)
def test_a_missing_model_is_refused_in_one_sentence_and_without_the_hub(photo, name, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    done = run("predict", name, photo)
    assert (done.code, done.out) == (4, "")
    assert len(done.err.splitlines()) == 1
    assert "no model found at" in done.err or "cannot be a model (File name too long)" in done.err


def test_a_slip_in_a_local_name_suggests_the_right_one_and_asks_no_hub(model, photo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    shutil.copytree(model, tmp_path / "runs" / "pets")
    done = run("predict", "runs/pest", photo)
    assert done.code == 4
    assert "no model found at 'runs/pest', did you mean 'runs/pets'?" in done.err
    assert run("predict", "runs/pets", photo).code == 0


def test_a_model_without_a_head_is_refused_before_any_picture(photo, tmp_path):
    folder = small(classes=0).save(tmp_path / "headless")
    for engine in ((), ("--engine", "eager"), ("--engine", "onnx"), ("--engine", "auto")):
        done = run("predict", folder, photo, *engine)
        assert (done.code, done.out) == (4, "")
        assert done.err.count("\n") == 1
        assert "no head" in done.err


EVIL = ["\x1b[31mred\x1b[0m", "[red]markup[/red]", "[/]", "two\nlines", "<script>alert(1)</script>"]


def test_labels_with_escapes_or_markup_are_shown_harmlessly(photo, tmp_path):
    folder = tmp_path / "evil"
    small().save(folder, "hf")
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {str(i): label for i, label in enumerate(EVIL)}
    (folder / "config.json").write_text(json.dumps(config))
    shown = {r"\x1b[31mred\x1b[0m", "two lines", *EVIL[1:3], EVIL[4]}
    for style in ((), ("--csv",), ("--json",)):
        done = run("predict", folder, photo, *style)
        assert done.code == 0
        assert "\x1b" not in done.out
    labels = {p["label"] for p in json.loads(run("predict", folder, photo, "--json").out)[0]["predictions"]}
    assert labels == shown
    table = run("predict", folder, photo).out
    assert len(table.splitlines()) == 6
    assert all(label in table for label in shown)


NAMES = [
    b"new\nline.png",
    b"\xff\xfe.png",
    "\N{CAT FACE}.png".encode(),
    b"\x1b[31m.png",
    b"[red].png",
    b"-x.png",
]


@pytest.mark.parametrize("name", NAMES)
def test_an_odd_file_name_is_shown_on_one_line_and_told_exactly_in_json(model, tmp_path, name):
    path = os.fsencode(tmp_path) + b"/" + name
    picture(tmp_path / "plain.png")
    os.rename(tmp_path / "plain.png", path)
    table = run("predict", model, tmp_path, "--top", "1")
    assert table.code == 0
    assert len(table.out.splitlines()) == 2
    assert "\x1b" not in table.out
    assert len(run("predict", model, tmp_path, "--top", "1", "--csv").out.splitlines()) == 2
    (told,) = json.loads(run("predict", model, os.fsdecode(path), "--json").out)
    assert os.fsencode(told["picture"]) == path


def test_the_pictures_and_the_model_are_left_as_they_were(model, tmp_path):
    def digest():
        files = sorted(p for folder in (tmp_path, model) for p in folder.rglob("*"))
        return [
            (p, p.stat().st_mtime_ns, hashlib.sha256(p.read_bytes()).hexdigest())
            for p in files
            if p.is_file()
        ]

    for i in range(3):
        picture(tmp_path / f"{i}.png", i)
    (tmp_path / "bad.jpg").write_bytes(b"\xff\xd8\xff nonsense")
    before = digest()
    assert run("predict", model, tmp_path).code == 1
    assert digest() == before


def test_a_reader_that_leaves_early_is_no_error(model, tmp_path):
    for i in range(40):
        picture(tmp_path / f"{i:02}.png", i)
    command = f"{sys.executable} -m saccade predict {model} {tmp_path} --csv --top 5 | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert done.stdout == "picture,rank,label,score,index\n"
    assert done.stderr == ""
    assert done.returncode == 0


def test_a_full_disk_behind_stdout_is_told_with_its_own_exit_code():
    command = f"{sys.executable} -m saccade predict --help > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert done.stderr.startswith("error: no space is left to write the output")
    assert done.stderr.count("\n") == 1


def test_json_lines_are_the_elements_of_the_json_list(model, tmp_path):
    for i in range(20):
        picture(tmp_path / f"{i:02}.png", i)
    (tmp_path / "05.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    lines = run("predict", model, tmp_path, "--jsonl", "--top", "2")
    assert lines.code == 1
    found = [json.loads(line) for line in lines.out.splitlines()]
    whole = run("predict", model, tmp_path, "--json", "--top", "2").out
    assert found == json.loads(whole)
    assert whole == json.dumps(found, indent=2) + "\n"
    assert [i for i, each in enumerate(found) if "error" in each] == [5]


@pytest.mark.parametrize("pair", [("--json", "--csv"), ("--jsonl", "--csv"), ("--json", "--jsonl")])
def test_one_format_only(model, photo, pair):
    done = run("predict", model, photo, *pair)
    assert (done.code, done.err) == (2, f"error: {pair[0]} and {pair[1]} were both given; choose one\n")


def test_images_are_found_by_content_as_train_finds_them(model, tmp_path):
    folder = tmp_path / "mixed"
    folder.mkdir()
    for name in ("scan", "photo.dat", "plain.png", ".hidden.png", "Thumbs.db"):
        picture(folder / name)
    for name in ("notes.txt", "movie.dat"):
        (folder / name).write_text("no image")
    (folder / "back").symlink_to(folder)
    (folder / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic")
    done = run("predict", model, folder, "--json")
    names = [os.path.basename(one["picture"]) for one in json.loads(done.out)]
    assert names == ["phone.heic", "photo.dat", "plain.png", "scan"]
    assert "phone.heic is a HEIC image; expected JPEG" in done.err
    assert f"note: 2 other files skipped: {folder / 'movie.dat'}, {folder / 'notes.txt'}\n" in done.err
    assert done.code == 1


def test_many_images_are_answered_as_each_alone(model, tmp_path):
    paths = [picture(tmp_path / f"{i:02}.png", i) for i in range(30)]
    rows = list(csv.DictReader(io.StringIO(run("predict", model, tmp_path, "--csv").out)))
    assert [row["picture"] for row in rows[::5]] == list(map(str, paths))
    network = load(model)
    alone = [p for path in paths for p in network.predict(path)]
    assert [row["label"] for row in rows] == [p.label for p in alone]
    assert [float(row["score"]) for row in rows] == pytest.approx([p.score for p in alone], abs=1e-5)


def test_a_long_table_is_printed_in_blocks_with_equal_columns(model, tmp_path, monkeypatch):
    from saccade.cli import predict

    paths = [picture(tmp_path / f"{'long' * (i < 4)}{i}.png", i) for i in range(12)]
    whole = run("predict", model, *paths, "--top", "2").out
    monkeypatch.setattr(predict, "BLOCK", 9)
    assert run("predict", model, *paths, "--top", "2").out == whole


def test_ctrl_c_keeps_every_answer_so_far(model, tmp_path):
    path = picture(tmp_path / "a.png")
    for form in ("--csv", "--jsonl", "--json"):
        words = ["predict", model, *[path] * 20_000, form, "--top", "1"]
        written = tmp_path / f"out{form}"
        with (
            written.open("wb") as file,
            Forked(words, stdout=file, stderr=PIPE) as process,
        ):
            while written.stat().st_size < 1000 and process.poll() is None:
                sleep(0.01)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        out = written.read_text()
        assert process.returncode == 130, err
        assert "Traceback" not in err
        found = {
            "--csv": lambda text: text.splitlines()[1:],
            "--jsonl": lambda text: [json.loads(line) for line in text.splitlines()],
            "--json": json.loads,
        }[form](out)
        assert 5 < len(found) < 20_000
        assert out.endswith("\n")
        (count,) = re.findall(r"interrupted: ([\d,]+) images answered\n", err)
        assert 0 <= len(found) - int(count.replace(",", "")) <= 1  # the signal may come before it is counted


@pytest.fixture(scope="module")
def real(data, tmp_path_factory):
    """The published models, converted with the labels of ImageNet."""
    folder = tmp_path_factory.mktemp("real")
    for name, normalise in (("vit", "half"), ("deit", "imagenet")):
        done = run(
            "convert", data / f"{name}_tiny_patch16_224.fp16.safetensors", "--out", folder / name,
            "--labels", data / "imagenet_labels.txt", "--normalise", normalise,
        )  # fmt: skip
        assert done.code == 0, done.err
    return folder


def named(model, data, top):
    """Labels by the name of the sample."""
    told = json.loads(run("predict", model, data / "samples", "--json", "--top", top).out)
    return {os.path.basename(one["picture"]): [p["label"] for p in one["predictions"]] for one in told}


def test_published_models_name_the_animals_in_real_pictures(real, data):
    vit, deit = named(real / "vit", data, 5), named(real / "deit", data, 5)
    for found in (vit, deit):
        assert found["catdog.png"][:2] == ["bull mastiff", "boxer"]
        assert found["dogbird.png"][0] == "basset"
        assert {"kuvasz", "golden retriever"} <= set(found["dogcat2.png"])
        for sample in ("el1.png", "el2.png", "el3.png"):
            assert {"African elephant", "zebra"} <= set(found[sample])
        assert found["el4.png"][0] == found["el5.png"][0] == "zebra"
    assert "tiger cat" in deit["catdog.png"]
    assert {"Egyptian cat", "tiger cat"} & set(deit["dogcat2.png"])
    assert "lorikeet" in deit["dogbird.png"]


def test_vit_names_the_cat_beside_the_dog_among_its_first_seven(real, data):
    assert named(real / "vit", data, 7)["catdog.png"][6] == "tiger cat"
