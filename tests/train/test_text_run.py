"""`saccade train` on sentence pairs and on a text: the same run folder, resume and report as pictures."""

import csv
import json
import re
import shutil

import pytest
from nursery import ask
from reading import DATA, MODELS, RECIPES, proof, write

from saccade.api.train import resume_run, start_run
from saccade.data.splits import hold_out
from saccade.errors import DataError, ModelError, StoppedError, UsageError
from saccade.metrics.text import corpus_bleu
from saccade.report import curves
from saccade.task import Job
from saccade.tasks import find_task, fitting_task
from saccade.tasks.language import evaluate
from saccade.tasks.language.recipe import default_recipe as for_text
from saccade.tasks.translate.data import open_pairs
from saccade.tasks.translate.recipe import default_recipe as for_pairs
from saccade.text.generate import translations
from saccade.text.model import load_text
from saccade.text.recipe import TextRecipe
from saccade.train import start
from saccade.train.selection import Selection
from saccade.train.start import start_job

TASKS = list(MODELS)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return write(tmp_path_factory.mktemp("texts"))


def begin(place, task, name, *changes, model=""):
    data = str(place / DATA[task])
    known = place / MODELS[task]
    model = model or (str(known) if known.is_dir() else MODELS[task])
    return start_run(data, model, place / name, [*RECIPES[task], *changes], quiet=True)


@pytest.fixture(scope="module")
def whole(place):
    """A run of each task that was never stopped."""
    runs = {task: begin(place, task, task) for task in TASKS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "PIECES", 5)
        for run in runs.values():
            run.go()
            start.finish(run)
    return runs


@pytest.mark.parametrize("task", TASKS)
def test_a_run_leaves_a_model_that_can_answer_and_all_that_is_needed_to_repeat_it(whole, task):
    folder = whole[task].folder
    names = {path.name for path in folder.iterdir()}
    assert {"model.safetensors", "model.json", "tokenizer.json"} <= names
    assert {"recipe.json", "command.txt", "env.json", "data.json", "events.jsonl", "results.csv"} <= names
    assert {"report.html", "evaluation.json", "plots", "checkpoints"} <= names
    assert isinstance(whole[task].job, Job)
    spoken = load_text(folder)
    assert spoken.task == task
    assert json.loads((folder / "recipe.json").read_text())["task"] == task
    if task == "translate":
        assert spoken.sides == ("de", "en")


@pytest.mark.parametrize(
    ("task", "columns"),
    [
        ("translate", "epoch,step,train_loss,val_loss,val_bleu,val_perplexity,val_accuracy,lr"),
        ("language", "epoch,step,train_loss,val_loss,val_perplexity,val_accuracy,lr"),
    ],
)
def test_every_look_at_what_is_held_back_is_a_row_and_the_loss_falls(whole, task, columns):
    text = (whole[task].folder / "results.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    assert text.splitlines()[0] == columns
    assert len(rows) == 2
    assert float(rows[-1]["val_loss"]) < float(rows[0]["val_loss"])
    if task == "language":
        assert [row["step"] for row in rows] == ["3", "6"]


def test_the_evaluation_is_that_of_the_translations_themselves(place, whole):
    told = json.loads((whole["translate"].folder / "evaluation.json").read_text())
    pairs = list(whole["translate"].job.splits.val)
    assert told["scores"]["count"] == len(pairs)
    spoken = load_text(whole["translate"].folder)
    best = translations(spoken.module, spoken.reads, spoken.vocabulary, [pair.source for pair in pairs])
    written = [found[0].text for found in best]
    found = corpus_bleu(written, [pair.target for pair in pairs])
    assert told["scores"]["bleu"] == pytest.approx(found.score)
    assert told["signatures"]["bleu"] == found.signature
    assert {row["written"] for row in told["samples"]} <= set(written)
    places = told["exposure"]
    assert len(places["places"]) == len(places["forced"]) == len(places["free"]) > 1


@pytest.mark.parametrize("task", TASKS)
def test_the_report_shows_scores_curves_samples_and_the_cost_of_own_mistakes(whole, task):
    folder = whole[task].folder
    page = (folder / "report.html").read_text()
    for part in ("Its own mistakes", "What the model writes", "after its own words", "Perplexity"):
        assert part in page
    assert ("sacrebleu" in page) == (task == "translate")
    plots = {path.stem for path in (folder / "plots").glob("*.json")}
    assert {"loss", "perplexity", "exposure", "lr"} <= plots
    assert ("bleu" in plots) == (task == "translate")


@pytest.mark.parametrize(("task", "steps"), [("translate", 3), ("language", 4)])
def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(place, whole, task, steps):
    run = begin(place, task, f"stopped-{task}")
    ordinary = run.step

    def step(state, logged):
        run.stopped = state.step == steps
        ordinary(state, logged)

    run.step = step
    with pytest.raises(StoppedError, match="Resume with: saccade train --resume"):
        run.go()
    resume_run(run.folder, quiet=True).go()
    assert proof(run.folder) == proof(whole[task].folder)


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_to_the_same_bytes(place, whole):
    words = (place / DATA["language"], MODELS["language"], place / "killed", *RECIPES["language"])
    assert ask("begin", *words)["code"] == 0
    for point, nth in (("rename", 5), ("write", 9)):
        assert ask("resume", place / "killed", point=point, nth=nth)["code"] == -9
    assert ask("resume", place / "killed")["code"] == 0
    assert proof(place / "killed") == proof(whole["language"].folder)


def test_pairs_that_have_changed_are_refused_on_the_way_back(place, tmp_path):
    shutil.copy(place / "pairs.tsv", tmp_path / "pairs.tsv")
    shutil.copytree(place / "small", tmp_path / "small")
    run = begin(tmp_path, "translate", "run")
    with (tmp_path / "pairs.tsv").open("a") as file:
        file.write("Katze Hund\tcat dog\n")
    with pytest.raises(DataError, match=r"the sentence pairs in .* are not the ones that"):
        resume_run(run.folder, quiet=True)


def test_a_run_without_its_words_cannot_go_on(place, tmp_path):
    run = begin(place, "language", str(tmp_path / "run"))
    (run.folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        resume_run(run.folder, quiet=True)


def test_a_model_of_a_run_is_a_model_to_start_from(place, whole, tmp_path):
    before = str(whole["translate"].folder)
    run = start_run(
        str(place / "pairs.tsv"), before, tmp_path / "run", ["budget.steps=1", "task=translate"], quiet=True
    )
    assert run.job.model.vocabulary.to_json() == load_text(whole["translate"].folder).vocabulary.to_json()
    with pytest.raises(UsageError, match=r"is a seq2seq, which cannot be trained for the task language"):
        start_run(str(place / "book.txt"), before, tmp_path / "other", quiet=True, task="language")


def test_two_vocabularies_are_kept_where_they_are_not_shared(place, tmp_path):
    changes = ["words.shared=false", "words.size=270", "budget.steps=1"]
    run = begin(place, "translate", str(tmp_path / "run"), *changes, model="transformer_mini")
    assert {"tokenizer.json", "tokenizer.source.json"} <= {path.name for path in run.folder.iterdir()}
    again = resume_run(run.folder, quiet=True).job.model
    for spoken in (run.job.model, again):
        assert spoken.source.to_json() != spoken.vocabulary.to_json()
        assert spoken.module.config.tie == "target"


@pytest.mark.parametrize(
    ("data", "model", "changes", "task"),
    [
        ("book.txt", "", [], "language"),
        ("book.txt.gz", "", [], "language"),
        ("book.md", "", [], "language"),
        ("pairs.tsv", "seq2seq_gru", [], "translate"),
        ("pairs.tsv", "", ["model=transformer_small"], "translate"),
        ("pairs.tsv", "", [], "classify"),
        ("book.txt", "bert_mini", [], "language"),
        ("data", "", ["task=translate"], "translate"),
        ("photos", "vit_ti16", [], "classify"),
    ],
)
def test_the_task_is_the_recipe_s_or_the_model_s_or_that_of_a_text(data, model, changes, task):
    assert fitting_task(data, model, changes).name == task


@pytest.mark.parametrize(
    ("name", "content", "task"),
    [
        ("model.json", {"task": "translate"}, "translate"),
        ("config.json", {"model_type": "gpt2"}, "language"),
        ("model.json", {"task": "classify"}, "classify"),
        ("config.json", {"model_type": "vit"}, "classify"),
    ],
)
def test_the_task_of_a_model_folder_is_that_of_its_training(name, content, task, tmp_path):
    (tmp_path / name).write_text(json.dumps(content))
    assert fitting_task("data", str(tmp_path)).name == task


def test_recipes_follow_the_model_and_the_amount_of_text():
    few, many = for_pairs("transformer_small", 1000)[0], for_pairs("transformer_small", 10**6)[0]
    assert few.budget.epochs > many.budget.epochs
    assert for_pairs("seq2seq_gru", 1000)[0].dropout > few.dropout
    assert for_text("gpt_mini", 10**6)[0].words.kind == "characters"
    assert for_text("bert_mini", 10**6)[0].words.kind == "pairs"
    with pytest.raises(UsageError, match="parallel is 'fsdp'"):
        TextRecipe(parallel="fsdp")


def test_long_pairs_are_left_out_and_told(place):
    run = begin(place, "translate", "short", "tokens=9")
    assert len(run.job.shuffled.pairs) < 48
    with pytest.raises(DataError, match="every pair is longer than tokens=1"):
        begin(place, "translate", "none", "tokens=1")


def test_epochs_are_counted_as_people_do():
    assert [curves.epochs(passed) for passed in (1.0, 15.0, 0.25)] == [
        "1 epoch",
        "15 epochs",
        "0.25 epochs",
    ]


def test_scheduled_sampling_grows_with_the_training(place):
    run = begin(place, "translate", "own", "own.most=0.5", "budget.steps=2")
    run.go()
    losses = run.job._losses(run.job.module)
    assert losses.own.share(run.state.done) == pytest.approx(0.5)
    assert re.search(r'"most": 0.5', (run.folder / "recipe.json").read_text())


@pytest.mark.parametrize("data", ["train.de,train.en", "train"])
def test_two_files_are_found_again_from_another_folder(tmp_path, monkeypatch, data):
    (tmp_path / "train.de").write_text("Hund\nKatze\n")
    (tmp_path / "train.en").write_text("dog\ncat\n")
    monkeypatch.chdir(tmp_path)
    task, selection = find_task("translate"), Selection(data=data)
    splits = hold_out(open_pairs(data), 0.5)
    job = start_job(task, TextRecipe(task="translate", model="transformer_mini"), splits)[0]
    facts = selection.facts(task, job)
    monkeypatch.chdir("/")
    assert len(open_pairs(facts["source"]).train) == 2
