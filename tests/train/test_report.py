"""The report: one file, offline, escaped, accessible, true to the numbers, whatever is missing or hostile."""

import json
import math
import re
import shlex
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from report_page import report
from runs import BEGAN, HOSTILE, judged, make, thumbnail
from typer.main import get_command

from saccade.cli.app import VERBS, build_app
from saccade.errors import UsageError
from saccade.metrics.classify import scores
from saccade.report import curves
from saccade.report.html import tag, text
from saccade.report.plots import DARK, LIGHT, Plot, render
from saccade.report.run_record import NAN, read_history, read_record
from saccade.tasks import find_task
from saccade.tasks.classify import report as sections
from saccade.tasks.classify.task import Classify
from saccade.wording import count, duration, moment, number, percent, trend

PLOTS = ("loss", "lr", "accuracy", "confusion", "classes", "calibration", "time")
PARTS = ["summary", "curves", "confusions", "mistakes", "by-class", "reliability", "shown", "next", "data",
         "schedule", "repeat"]  # fmt: skip
VOID = {"img", "meta", "source"}


def accuracy(record):
    return curves.metric(record, "accuracy", Classify.metrics["accuracy"])


CURVES = (lambda record: curves.loss(record, ""), accuracy, curves.lr, curves.pace)


class Page(HTMLParser):
    """What a browser would see: elements, text, tables; unbalanced tags are an error."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.open, self.words, self.tables = [], [], [], {}
        self.feed(html)
        assert not self.open

    def handle_starttag(self, name, pairs):
        attributes = dict(pairs)
        self.elements.append((name, attributes))
        if name not in VOID:
            self.open.append(name)
        if name == "table":
            self.rows = self.tables[attributes.get("id")] = []
        elif name == "tr":
            self.rows.append([])
        elif name in ("td", "th") and self.rows:
            self.rows[-1].append("")
        elif name == "data":
            self.rows[-1][-1] = float(attributes["value"])

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, words):
        if "style" not in self.open:
            self.words.append(words)
        if ("td" in self.open or "th" in self.open) and isinstance(self.rows[-1][-1], str):
            self.rows[-1][-1] += words

    @property
    def text(self):
        return "".join(self.words)

    def all(self, name):
        return [attributes for kind, attributes in self.elements if kind == name]


def opened(folder):
    return Page(report(folder).read_text(encoding="utf-8"))


def shorter(folder, **options):
    return make(folder, **{"classes": 4, "pictures": 40, "epochs": 3, "per_epoch": 4, **options})


@pytest.fixture(scope="module")
def pets(tmp_path_factory):
    folder = make(tmp_path_factory.mktemp("runs") / "pets")
    return folder, opened(folder)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "<b>evil"
    make(folder, classes=10, pictures=60, epochs=2, per_epoch=3, names=HOSTILE, killed=True)
    evaluation = json.loads((folder / "evaluation.json").read_text())
    p, labels = judged(10, 60, skill=1.0)
    evaluation |= {"split": "<i>val</i>", "scores": scores(p, labels).to_json()}
    evaluation["mistakes"] = [
        {"picture": name, "path": name, "label": name, "predicted": name, "score": 0.5, "thumbnail": thumb}
        for name, thumb in zip(
            HOSTILE,
            ["javascript:alert(1)", '"><script>', None, 7, "", thumbnail(1), "PHN2Zz4=", "é", [], {}],
            strict=True,
        )
    ]
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    (folder / "command.txt").write_text("saccade train '</pre><script>'\n\x1b[2J--out x\n")
    (folder / "recipe.json").write_text(json.dumps({"<u>": {"\u202e": HOSTILE}, "model": "<script>"}))
    (folder / "env.json").write_text(json.dumps({"half": "\ud800", "deep": {"a": [], "b": {}}}))
    return folder, opened(folder)


# what the page is


def test_the_page_is_one_small_file_that_asks_for_nothing(pets):
    folder, page = pets
    assert (folder / "report.html").stat().st_size < 3_000_000
    names = {name for name, _ in page.elements}
    assert not names & {"script", "link", "iframe", "object", "embed", "form", "base"}
    for _, attributes in page.elements:
        for key in ("src", "srcset", "href"):
            assert re.match(r"data:image/(png|jpeg);base64,[\w+/=]+$|#[\w-]+$", attributes.get(key) or "#a")
    style = re.search(r"<style>(.*?)</style>", (folder / "report.html").read_text(), re.DOTALL)[1]
    assert "url(" not in style
    assert "@import" not in style


def test_ids_are_unique_and_every_link_leads_somewhere(pets):
    _, page = pets
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {link["href"][1:] for link in page.all("a")}
    assert set(PARTS) <= targets <= set(ids)
    assert [part for part in ids if part in PARTS] == PARTS  # mistakes after confusion, schedule last
    labels = {
        attributes["aria-labelledby"] for _, attributes in page.elements if "aria-labelledby" in attributes
    }
    assert labels <= set(ids)


def test_every_picture_has_words_made_from_the_data(pets):
    _, page = pets
    alts = [image.get("alt") for image in page.all("img")]
    assert all(alts)
    assert len(alts) == len(PLOTS) + 12 + 8
    assert "Validation accuracy rises from 27.8% to 94.3% over 20 epochs." in alts
    assert any(
        re.match(r"Breed \d+_\d+.jpg, labelled Breed \d+, predicted Breed \d+ \(", alt) for alt in alts
    )


def test_the_page_is_built_for_phones_dark_rooms_and_screen_readers(pets):
    _, page = pets
    assert page.all("html") == [{"lang": "en"}]
    metas = {meta.get("name"): meta["content"] for meta in page.all("meta") if "content" in meta}
    assert metas["viewport"] == "width=device-width, initial-scale=1"
    assert metas["color-scheme"] == "light dark"
    assert len(page.all("source")) == len(PLOTS)
    assert all(source["media"] == "(prefers-color-scheme: dark)" for source in page.all("source"))
    assert all("scope" in head for head in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))
    headings = [int(name[1]) for name, _ in page.elements if re.fullmatch(r"h\d", name)]
    assert headings[0] == 1
    assert all(b - a <= 1 for a, b in pairwise(headings))


@pytest.mark.parametrize("name", PLOTS)
def test_the_numbers_beside_a_plot_equal_its_json(pets, name):
    folder, page = pets
    told = json.loads((folder / "plots" / f"{name}.json").read_text())
    head, *rows = page.tables[f"{name}-numbers"]
    assert head == told["columns"]
    assert len(rows) == len(told["rows"]) > 0
    for shown, exact in zip(rows, told["rows"], strict=True):
        for cell, value in zip(shown, exact, strict=True):
            match value:
                case None:
                    assert cell == "–"
                case int():
                    assert cell == f"{value:,}"
                case _:
                    assert cell == value
    assert (folder / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert told["message"] in page.text


def test_the_plots_json_equals_the_scores(pets):
    folder, _ = pets
    evaluated = json.loads((folder / "evaluation.json").read_text())["scores"]
    told = {name: json.loads((folder / "plots" / f"{name}.json").read_text()) for name in PLOTS}
    assert [row[1:] for row in told["confusion"]["rows"]] == evaluated["confusion"]
    f1 = {row[0]: row[4] for row in told["classes"]["rows"]}
    assert f1 == {f"Breed {i}": value for i, value in enumerate(evaluated["f1"])}
    assert [row[2] for row in told["calibration"]["rows"]] == [b["count"] for b in evaluated["bins"]]


def test_the_summary_tells_what_was_trained_and_how_sure_that_is(pets):
    _, page = pets
    for words in (
        "vit_ti16 on pets",
        "vit_ti16 (5.5 million parameters) was trained on 1,110 images of 37 classes for 20 epochs",
        "(700 steps) in 3 min",
        "of 370 validation images were classified correctly",
        "(95% Wilson interval)",
        "The best epoch was chosen on these same images",
        "Always answering Breed 0 would reach 2.7%.",
        "saccade train photos/pets --model vit_ti16",
        "is empty",
        "optim.lr",
        "2.13.0",
        "the head was replaced",
    ):
        assert words in page.text
    assert "left out" not in page.text
    assert "That is wide" not in page.text


def test_few_pictures_are_called_few(tmp_path, quick):
    assert "That is wide, because 40 images are few" in opened(shorter(tmp_path / "a")).text


def test_the_same_folder_gives_the_same_bytes(tmp_path):
    folder = shorter(tmp_path / "run")
    first = [path.read_bytes() for path in (report(folder), *sorted((folder / "plots").iterdir()))]
    second = [path.read_bytes() for path in (report(folder), *sorted((folder / "plots").iterdir()))]
    assert first == second
    assert len(first) == 1 + 2 * len(PLOTS)
    assert not list(folder.rglob("*.tmp"))


# what a newcomer reads


def changed(folder, name, **entries):
    """Change some entries of a JSON file of a run."""
    known = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(known | entries))


def test_mistakes_have_their_maps_beside_them_and_there_are_correct_examples(tmp_path, quick):
    folder = shorter(tmp_path / "run", pictures=200)
    wrong = json.loads((folder / "evaluation.json").read_text())["mistakes"]
    wrong[0]["map"], wrong[1]["map"] = thumbnail(7), "javascript:alert(1)"
    right = [{"label": "Breed 1", "predicted": "Breed 1", "score": 0.9, "thumbnail": thumbnail(8)}]
    changed(folder, "evaluation.json", mistakes=wrong, correct=right, maps="Beside each image, a map.")
    page = opened(folder)
    assert "Beside each image, a map." in page.text
    assert [alt for image in page.all("img") if "The evidence for" in (alt := image["alt"])] == [
        f"The evidence for {wrong[0]['predicted']} in it"
    ]
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert ids.index("mistakes") < ids.index("correct") < ids.index("by-class")


def test_the_data_are_described_without_internal_notes_or_empty_rows(tmp_path, quick):
    folder = shorter(tmp_path / "run")
    told = {"source": "x/birds", "kind": "auto", "task": "classify", "told": "class folders", "warnings": []}
    told |= {"train": {"pictures": 30, "fingerprint": "0123456789abcdef" * 4}, "skipped": 0}
    (folder / "data.json").write_text(json.dumps(told))
    page = opened(folder)
    section = page.text[page.text.index("Images per split") :]
    assert "0123456789ab" in section
    assert "0123456789abc" not in section
    for words in ("data.json has no list", "auto", "told", "warnings"):
        assert words not in section
    changed(folder, "data.json", warnings=["2 leaks"], kind="tar")
    section = opened(folder).text
    assert "2 leaks" in section
    assert "tar" in section


def test_half_an_epoch_is_called_half_an_epoch(tmp_path, quick):
    folder = shorter(tmp_path / "run", epochs=1, per_epoch=48)
    changed(folder, "recipe.json", budget={"batch": 32})
    (folder / "data.json").write_text(json.dumps({"train": {"pictures": 2934}, "val": {"pictures": 736}}))
    text = opened(folder).text
    assert "for 0.52 epochs (48 steps)" in text
    assert "after 0.52 epochs" in text
    changed(folder, "data.json", train={"characters": 54_000})  # its batches are windows of the text
    assert "for 1 epoch (48 steps)" in opened(folder).text
    changed(folder, "data.json", train={"pictures": 48 * 32 + 20})  # a last batch that is not full
    assert "for 1 epoch (48 steps)" in opened(folder).text


@pytest.mark.parametrize(("epoch", "limits"), [(1, (0, 3)), (0.52, (0, 2)), (7, (6, 9))])
def test_one_epoch_is_a_marker_on_an_axis_of_whole_numbers(epoch, limits):
    axes = Figure().subplots()
    curves.lines(axes, LIGHT, [(epoch, 0.5)], ("accuracy",), "epoch")
    assert axes.get_xlim() == limits
    assert all(tick == int(tick) for tick in axes.get_xticks())
    assert axes.lines[0].get_marker() == "o"


def test_precision_and_recall_use_the_whole_axis(tmp_path):
    record, axes = read_record(shorter(tmp_path / "run")), Figure().subplots()
    labels = np.arange(40) % 4
    good = scores(np.where(np.arange(40)[:, None] == 0, np.eye(4)[1], np.eye(4)[labels]), labels)
    plot = sections.classes(record, good)
    plot.draw(axes, LIGHT)
    assert 70 < axes.get_xlim()[0] < 90 < 100 < axes.get_xlim()[1]
    assert "The axis starts at 80%." in plot.note
    poor = sections.classes(record, scores(np.roll(np.eye(4)[labels], 1, axis=1), labels))
    assert "The axis starts" not in poor.note


@pytest.mark.parametrize(
    ("sure", "mix", "said"),
    [
        (0.95, {}, "The model is over-confident by 15.0 points: it is right less often than it says."),
        (0.81, {}, "They agree, so a confidence can be read as the probability of being right."),
        (0.6, {}, "The model is under-confident by 20.0 points: it is right more often than it says. The"),
        (0.6, {"smoothing": 0.1, "mixup": 0.0, "cutmix": 0.5}, "mix.smoothing, mix.cutmix teaches that."),
        (0.6, {"smoothing": 0.1}, "train with --set mix.smoothing=0, or divide its logits by a temperature"),
        (0.6, {"smoothing": "x"}, "train longer, or divide"),
    ],
)
def test_calibration_says_why_and_what_to_do(sure, mix, said):
    labels = np.zeros(20, dtype=int)
    p = np.where(np.arange(20)[:, None] < 16, [sure, 1 - sure], [1 - sure, sure])
    plot = sections.calibration(scores(p, labels), mix)
    assert said in plot.message
    assert "(0% = perfectly calibrated)" in plot.note


def test_the_command_is_shown_as_it_is_typed(tmp_path, quick):
    folder = shorter(tmp_path / "run")
    (folder / "command.txt").write_text("/home/me/.venv/bin/saccade train /data/saccade x\n")
    assert "How to repeat itsaccade train /data/saccade x" in opened(folder).text


@pytest.mark.parametrize(
    ("task", "model", "commands"),
    [
        ("classify", "vit_ti16", ["predict", "explain", "check", "export"]),
        ("translate", "transformer", ["translate"]),
        ("language", "gpt_mini", ["complete"]),
        ("language", "bert_mini", ["fill"]),
        ("caption", "captioner", []),
    ],
)
def test_the_next_steps_are_commands_that_exist(tmp_path, task, model, commands):
    folder = shorter(tmp_path / "my run")
    changed(folder, "recipe.json", model=model)
    steps = find_task(task).next_steps(read_record(folder))
    assert [shlex.split(command)[1] for _, command in steps] == commands
    known = get_command(build_app(VERBS)).commands
    for _, command in steps:
        first, verb, *words = shlex.split(command)
        assert first == "saccade"
        assert str(folder) in words
        known[verb].make_context(verb, words, resilient_parsing=False).close()


# hostile words


def test_hostile_names_are_only_text(hostile):
    folder, page = hostile
    html = (folder / "report.html").read_text(encoding="utf-8")
    assert "<script" not in html
    assert not [key for _, attributes in page.elements for key in attributes if key.startswith("on")]
    assert not [c for c in html if c != "\n" and not c.isprintable()]
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    for words in (
        "\\x1b[31mred",
        "gnp\\u202eexe",
        "猫",
        "كلب",
        "$\\frac{1}{0}$",
        "& &amp; 'quoted'",
        "\\ud800",
    ):
        assert words in page.text
    assert page.text.count("n" * 200) == 0
    assert len([image for image in page.all("img") if image["src"].startswith("data:image/jpeg")]) == 1


def test_a_killed_run_loses_its_half_line_only(hostile):
    folder, page = hostile
    assert "The log breaks off: the run was killed or is still running. Last step: 6." in page.text
    assert "could not be read" not in page.text
    assert len(read_record(folder).events.steps) == 6


@given(st.text(st.characters(), max_size=40))
@settings(max_examples=200, deadline=None)
def test_no_text_escapes(words):
    page = Page(tag("p", words, title=words))
    assert [name for name, _ in page.elements] == ["p"]
    assert list(page.elements[0][1]) == ["title"]
    assert page.text == page.elements[0][1]["title"]
    assert text(words).encode().decode().isprintable()


def test_a_number_of_classes_without_room_is_a_picture_and_its_worst_pairs(tmp_path):
    folder = shorter(tmp_path / "many", classes=300, pictures=900)
    page = opened(folder)
    told = json.loads((folder / "plots" / "confusion.json").read_text())
    assert told["columns"] == ["label", "answer", "images", "of the label"]
    assert len(told["rows"]) == 20
    assert np.sum(told["matrix"]) == 900
    counts = [row[2] for row in told["rows"]]
    assert counts == sorted(counts, reverse=True)
    assert "Each point is the highest of 2 x 2 cells." in page.text
    assert "The plot shows the 40 lowest of 300." in page.text
    assert len(page.tables["classes-numbers"]) == 301
    assert (folder / "report.html").stat().st_size < 3_000_000


# missing and damaged pieces

FILES = ("recipe.json", "command.txt", "env.json", "data.json", "events.jsonl", "results.csv", "labels.txt",
         "evaluation.json", "samples.json")  # fmt: skip
SAID = {
    "recipe.json": "The recipe is left out: recipe.json is not in the run folder.",
    "command.txt": "The command is left out: command.txt is not in the run folder.",
    "env.json": "The list of versions is left out: env.json is not in the run folder.",
    "data.json": "The description of the data is left out: data.json is not in the run folder.",
    "events.jsonl": "events.jsonl is not in the run folder.",
    "results.csv": "results.csv is not in the run folder.",
    "labels.txt": "class 0",
    "evaluation.json": "The final score is left out: evaluation.json is not in the run folder.",
    "samples.json": "A sample of the training images is left out: samples.json is not in the run folder.",
}


def undrawn(patch):
    for name in ("render", "save"):
        patch.setattr(f"saccade.report.html.{name}", lambda *_: b"\x89PNG")


@pytest.fixture
def quick(monkeypatch):
    """The words without the drawing, which other tests look at."""
    undrawn(monkeypatch)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_said_and_the_rest_is_there(tmp_path, quick, name):
    folder = shorter(tmp_path / "run")
    (folder / name).unlink()
    page = opened(folder)
    assert SAID[name] in page.text
    assert "loss-numbers" in page.tables
    assert ("confusion-numbers" in page.tables) == (name != "evaluation.json")


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe{", b"[1, 2]", b'{"a":' * 3000, b'{"x": 1}\n'])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_never_stops_the_report(tmp_path, quick, name, damage):
    folder = shorter(tmp_path / "run")
    (folder / name).write_bytes(damage)
    assert "How to repeat it" in opened(folder).text


KEYS = [
    "kind",
    "time",
    "step",
    "epoch",
    "loss",
    "lr",
    "val_accuracy",
    "scores",
    "confusion",
    "bins",
    "mistakes",
]
KEYS += ["label", "picture", "path", "thumbnail", "samples", "splits", "train", "skipped", "reason", "source"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return shorter(tmp_path_factory.mktemp("runs") / "scratch")


@given(st.sampled_from([name for name in FILES if "json" in name]), st.lists(JSON, min_size=1, max_size=4))
@settings(max_examples=15, deadline=None)
def test_other_json_than_ours_never_stops_the_report(scratch, name, values):
    folder = scratch.parent / "copy"
    shutil.copytree(scratch, folder)
    try:
        lines = values if name == "events.jsonl" else values[:1]
        (folder / name).write_text("".join(json.dumps(value) + "\n" for value in lines))
        with pytest.MonkeyPatch.context() as patch:
            undrawn(patch)
            assert "How to repeat it" in opened(folder).text
    finally:
        shutil.rmtree(folder)


def test_a_folder_that_is_no_run_is_refused_in_words(tmp_path):
    with pytest.raises(UsageError, match=r"photos has none of recipe\.json, .*; expected a run folder"):
        report(tmp_path / "photos")
    assert not (tmp_path / "photos").exists()


def test_a_file_in_the_place_of_the_plots_is_refused_in_words(tmp_path):
    (shorter(tmp_path / "run") / "plots").write_text("mine")
    with pytest.raises(UsageError, match=r"plots cannot be created .*; expected a folder for plots"):
        report(tmp_path / "run")
    assert (tmp_path / "run" / "plots").read_text() == "mine"


# the log


def written(folder, *events, tail=""):
    folder.mkdir(exist_ok=True)
    path = folder / "events.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in events) + tail)
    return path


def test_steps_done_again_after_a_crash_count_once_and_pauses_not_at_all(tmp_path):
    path = written(
        tmp_path,
        {"kind": "start", "time": 100.0, "step": 0},
        *({"kind": "step", "time": 100.0 + step, "step": step, "loss": 9.0} for step in (1, 2, 3)),
        {"kind": "resume", "time": 5000.0, "step": 1},
        *({"kind": "step", "time": 5000.0 + step, "step": step, "loss": 1.0} for step in (2, 3, 4)),
        {"kind": "end", "time": 5005.0, "step": 4},
    )
    found = read_history(path, {})
    assert [step.loss for step in found.steps.values()] == [9, 1, 1, 1]
    assert found.seconds == 8
    assert found.resumes == 1
    assert found.ended == "done"
    assert found.last_step == 4


def test_the_time_of_a_step_leaves_out_what_lies_between(tmp_path):
    path = written(
        tmp_path,
        {"kind": "step", "time": 1.0, "step": 10},
        {"kind": "step", "time": 3.0, "step": 14},
        {"kind": "eval", "time": 60.0, "step": 14, "epoch": 1, "val_accuracy": 0.5},
        {"kind": "step", "time": 61.0, "step": 18},
    )
    seconds = [step.seconds for step in read_history(path, {}).steps.values()]
    assert seconds[1] == 0.5
    assert math.isnan(seconds[0])
    assert math.isnan(seconds[2])


def test_lines_that_are_no_events_are_counted_but_a_cut_last_one_is_not(tmp_path):
    path = written(tmp_path, {"kind": "start", "time": 1.0}, tail='nonsense\n[1]\n{"kind": "step"')
    assert read_history(path, {}).dropped == 2


def test_without_results_the_epochs_come_from_the_events(tmp_path, quick):
    folder = shorter(tmp_path / "run")
    told = read_record(folder).epochs
    (folder / "results.csv").unlink()
    found = read_record(folder).epochs
    assert [e.metric("accuracy") for e in found] == pytest.approx([e.metric("accuracy") for e in told])
    assert len(found) == 3


def test_a_cut_last_line_of_the_results_is_dropped(tmp_path):
    folder = shorter(tmp_path / "run")
    path = folder / "results.csv"
    path.write_text(path.read_text()[:-3])
    assert [e.epoch for e in read_record(folder).epochs] == [1, 2]


def test_results_without_the_clock_are_read_too(tmp_path):
    folder = shorter(tmp_path / "run")
    (folder / "results.csv").write_text(
        "epoch,step,train_loss,val_loss,val_accuracy,lr\n1,4,2.0,1.5,0.5,0.1\n"
    )
    (epoch,) = read_record(folder).epochs
    assert epoch == (1, 4, 2.0, 0.1, {"loss": 1.5, "accuracy": 0.5})


def test_a_loss_that_was_not_a_number_is_a_gap_and_said(tmp_path):
    folder = shorter(tmp_path / "run")
    written(
        folder,
        *({"kind": "step", "time": 1.0 + s, "step": s, "loss": NAN if s == 2 else 1 / s} for s in (1, 2, 3)),
    )
    plot = curves.loss(read_record(folder), "")
    assert plot.to_json()["rows"][1][:2] == [2, None]
    assert "The loss was not a finite number at 1 logged step." in plot.note
    assert render(plot, LIGHT).startswith(b"\x89PNG")


def test_numbers_beyond_all_reason_are_drawn_too(tmp_path):
    folder = shorter(tmp_path / "run")
    odd = (1e308, -1e99, 1e-320, 10**400, "1e400", -0.0, True, None, "x", 1e15)
    written(
        folder,
        *({"kind": "step", "time": 1.0, "step": i, "loss": x, "lr": x} for i, x in enumerate(odd)),
        *({"kind": "step", "time": x, "step": x, "loss": 1.0} for x in (2.0, *odd)),
    )
    (folder / "results.csv").write_text("epoch,step,val_loss,val_accuracy\n1,1e99,1,1e99\n1e99,-5,1e308,-7\n")
    record = read_record(folder)
    for make_plot in CURVES:
        plot = make_plot(record)
        assert isinstance(plot, str) or render(plot, LIGHT).startswith(b"\x89PNG")


def test_a_long_log_is_thinned_and_says_so(tmp_path):
    folder = shorter(tmp_path / "run", per_epoch=400)
    plot = curves.loss(read_record(folder), "")
    assert len([row for row in plot.rows if not math.isnan(row[1])]) == 200
    assert "Each point is the mean of 6 logged steps." in plot.note
    rate = curves.lr(read_record(folder))
    assert rate.message.startswith("The learning rate starts at 5e-05, rises to 0.001 at step 12")


@pytest.mark.parametrize("skill", [0.0, 50.0])
def test_all_wrong_and_all_right_are_drawn_too(tmp_path, skill):
    folder = shorter(tmp_path / "run")
    p, labels = judged(4, 40, skill=skill)
    found = scores(p if skill else np.roll(np.eye(4)[labels], 1, axis=1), labels)
    assert found.accuracy == (skill > 0)
    record = read_record(folder)
    for plot in (
        sections.confusion(record, found),
        sections.classes(record, found),
        sections.calibration(found),
    ):
        assert render(plot, DARK).startswith(b"\x89PNG")


def test_data_may_describe_its_splits_in_its_own_way(tmp_path, quick):
    folder = shorter(tmp_path / "run")
    told = {
        "source": "x/birds",
        "train": {"count": 30, "fingerprint": "f00d"},
        "val": ["a.jpg"],
        "skipped": ["b.jpg"],
    }
    (folder / "data.json").write_text(json.dumps(told))
    page = opened(folder)
    assert page.tables["splits"][1:] == [["train", "30"], ["val", "1"]]
    assert "f00d" in page.text
    assert page.tables["skipped"][1] == ["b.jpg", "", ""]


# manners


def test_drawing_leaves_matplotlib_as_it_was(tmp_path):
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"text.usetex": True, "axes.facecolor": "red", "font.size": 40}):
        mine = dict(matplotlib.rcParams)
        odd = render(accuracy(read_record(shorter(tmp_path / "run"))), LIGHT)
        assert dict(matplotlib.rcParams) == mine
    assert dict(matplotlib.rcParams) == before
    assert odd == render(accuracy(read_record(tmp_path / "run")), LIGHT)


def test_the_report_needs_neither_torch_nor_a_window(tmp_path):
    shorter(tmp_path / "run")
    code = (
        "import sys; from pathlib import Path; from saccade.report.run_page import write_report; "
        "from saccade.tasks import find_task; "
        "assert 'matplotlib' not in sys.modules; write_report(Path(sys.argv[1]), find_task()); "
        "sys.exit('torch' in sys.modules or 'matplotlib.pyplot' in sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code, tmp_path / "run"], check=True)


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("ink", [LIGHT, DARK])
def test_lines_and_letters_can_be_told_from_the_paper(ink):
    for colour, least in ((ink.text, 4.5), (ink.first, 4.5), (ink.second, 4.5)):
        light, dark = sorted((luminance(colour), luminance(ink.paper)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= least


def test_numbers_in_words():
    assert [percent(0.9451), percent(NAN), percent(None)] == ["94.5%", "–", "–"]
    assert [number(1e-6), number(0.123456), number(math.inf)] == ["1e-06", "0.1235", "–"]
    assert [count(1, "class"), count(2, "class"), count(1234, "picture")] == [
        "1 class",
        "2 classes",
        "1,234 pictures",
    ]
    assert [duration(8.24), duration(723.0), duration(11_100.0)] == ["8.2 s", "12 min 3 s", "3 h 5 min"]
    assert moment(BEGAN) == "2026-09-21 14:13 UTC"
    assert moment(1e300) == "an unknown time"
    assert trend("Loss", [2.0]) == "Loss is 2"
    assert trend("Loss", [2.0, 1.0, 2.0]) == "Loss begins and ends at 2"
    assert trend("Loss", [2.0, 1.0]) == "Loss falls from 2 to 1"


def test_a_plot_is_never_made_of_nothing(tmp_path):
    folder = tmp_path / "run"
    written(folder, {"kind": "start", "time": 1.0})
    for make_plot in CURVES:
        assert not isinstance(make_plot(read_record(folder)), Plot)
