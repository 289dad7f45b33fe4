"""`saccade train` and `saccade evaluate` on text, as a newcomer types them; and what cannot work."""

import gzip
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from terminal import run

from saccade.api.train import start_run
from saccade.tasks.language import evaluate

PAIRS = [("Katze", "cat"), ("Hund", "dog"), ("Kuh und Hund", "cow and dog"), ("Henne", "hen")] * 5
QUICK = ("--set", "budget.steps=2", "--set", "budget.batch=4", "--set", "words.size=265", "--set", "val=0.1")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speech")

    def write(name, text):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    rows = [f"{a}\t{b}" for a, b in PAIRS]
    write("pairs.tsv", "\n".join(rows))
    write("few.tsv", "\n".join(rows[:3]))
    write("book.txt", "the cat sees the dog\n" * 60)
    write("latin.tsv", "\n".join(rows).encode() + b"\nK\xe4fer\tbeetle\n")
    write("latin.txt", b"fine\nK\xe4fer\n")
    write("half.tsv", "\n".join([*rows, "Biene\t", *rows]))
    write("long.tsv", "\n".join([*rows, "x" * 100_000 + "\tword"]))
    write("blank.txt", "\n\n\n")
    write("uneven/train.de", "eins\nzwei\ndrei\n")
    write("uneven/train.en", "one\ntwo\n")
    write("three/train.de", "eins\nzwei\n")
    write("three/train.en", "one\ntwo\n")
    write("three/train.fr", "un\ndeux\n")
    (folder / "three" / "val.de.gz").write_bytes(gzip.compress(b"drei\n"))
    (folder / "three" / "val.en.gz").write_bytes(gzip.compress(b"three\n"))
    (folder / "three" / "val.fr.gz").write_bytes(gzip.compress(b"trois\n"))
    return folder


@pytest.fixture(autouse=True)
def here(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setattr(evaluate, "PIECES", 3)


def test_one_command_leads_from_pairs_to_a_model_its_report_and_its_score():
    done = run("train", "pairs.tsv", "--task", "translate", "--model", "transformer_mini", *QUICK)
    assert done.code == 0, done.err
    assert done.out.strip() == "runs/pairs-transformer_mini"
    assert "20 sentence pairs from source to target" in done.err
    assert "transformer_mini from scratch, with 265 pieces of words" in done.err
    assert re.search(r"^result   BLEU .* validation sentence pairs", done.err, re.MULTILINE)
    commands = re.findall(r"saccade (?:translate|explain|evaluate) runs/.*", done.err)
    assert [shlex.split(command)[1] for command in commands] == ["translate", "explain", "evaluate"]
    for command in commands:
        assert run(*shlex.split(command)[1:]).code == 0, command
    scored = run("evaluate", "runs/pairs-transformer_mini", "few.tsv")
    assert scored.code == 0, scored.err
    assert [line.split()[0] for line in scored.out.splitlines()][:4] == [
        "BLEU",
        "BLEU,",
        "simple",
        "perplexity",
    ]
    assert "tok:13a" in scored.out
    assert run("evaluate", "runs/pairs-transformer_mini", "pairs.tsv", "--split", "test").code == 2


@pytest.mark.parametrize("model", ["gpt_mini_16", "bert_mini"])
def test_a_model_of_a_language_is_scored_by_its_perplexity(model):
    start_run("book.txt", model, Path(f"runs/{model}"), ["budget.steps=1", "budget.batch=2"], quiet=True).go()
    scored = json.loads(run("evaluate", f"runs/{model}", "book.txt", "--json").out)
    assert (scored["task"], scored["split"]) == ("language", "val")
    assert scored["scores"]["perplexity"] > 1


REFUSALS = [
    (["latin.tsv", "--task", "translate"], 3, "line 21 of latin.tsv is not UTF-8 (byte 0xe4 at position 2)"),
    (["latin.txt"], 3, "line 2 of latin.txt is not UTF-8 (byte 0xe4 at position 2)"),
    (["half.tsv", "--task", "translate"], 3, "line 21 of half.tsv has nothing in target"),
    (["long.tsv", "--task", "translate"], 3, "line 21 of long.tsv has more than 20,000 characters"),
    (["blank.txt"], 3, "blank.txt contains no text"),
    (["uneven", "--task", "translate"], 3, "train.en ends after line 2, but train.de has a line 3"),
    (["three", "--task", "translate"], 2, "has the languages de, en, fr; say which to translate"),
    (["three", "--task", "translate", "--set", "pair=de-es"], 2, "has no language 'es'"),
    (["three", "--task", "translate", "--set", "pair=deen"], 2, "expected two languages as from-to"),
    (["pairs.tsv", "--task", "translate", "--set", "words.size=9000"], 2, "the text has only"),
    (["book.txt", "--set", "words.size=200"], 2, "the text has only"),
    (["pairs.tsv"], 3, "if it holds sentence pairs, add --task translate"),
    (["pairs.tsv", "--task", "translation"], 2, "task is 'translation'"),
    (
        ["pairs.tsv", "--task", "translate", "--model", "gpt_mini"],
        2,
        "gpt_mini is a gpt, which cannot be trained for the task translate",
    ),
    (["book.txt", "--model", "seq2seq_gru", "--task", "language"], 2, "name a gpt or bert"),
    (["book.txt", "--folds", "3"], 2, "--folds does not work with the task language"),
    (["book.txt", "--probe"], 2, "--probe does not work with the task language"),
    (["pairs.tsv", "--task", "translate", "--set", "augment.flip=1"], 2, "TextRecipe has no field 'augment'"),
    (["nothing.txt"], 3, "there is no file or folder nothing.txt"),
    (["pairs.tsv", "--task", "translate", "--model", "transformer_smal"], 2, "did you mean 'transformer"),
    (["pairs.tsv", "--task", "translate", "--model", "./nothing"], 4, "no model found at"),
]


@pytest.mark.parametrize(("words", "code", "told"), REFUSALS, ids=[" ".join(r[0]) for r in REFUSALS])
def test_what_cannot_work_is_told_in_one_sentence_with_its_line(words, code, told):
    done = run("train", *words, "--out", "runs/none")
    assert (done.code, done.out) == (code, "")
    assert told in done.err
    assert "Traceback" not in done.err
    assert done.err.strip().splitlines()[-1].startswith("error: ")


def test_a_few_empty_lines_are_left_out_with_a_note(place, capsys):
    rows = [f"{a}\t{b}" for a, b in PAIRS * 8]
    (place / "one.tsv").write_text("\n".join([*rows[:3], "Biene\t", *rows[3:]]))
    start_run("one.tsv", "transformer_mini", place / "one")
    assert "note: line 4 of one.tsv has nothing in target; left out" in capsys.readouterr().err.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "model", "more"),
    [
        ("pairs.tsv", "transformer_mini", ("--set", "words.size=265", "--set", "dropout=0")),
        ("book.txt", "gpt_mini_16", ()),
    ],
)
def test_two_processes_have_the_curve_of_one(place, data, model, more):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    pair = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    sets = ("--set", "budget.epochs=2", "--set", "budget.batch=4", "--set", "val=0.3", *more)
    rows = []
    for name, launcher in (("alone", ()), ("pair", pair)):
        out = f"runs/{name}-{model}"
        words = [
            sys.executable,
            *launcher,
            "-m",
            "saccade",
            "train",
            data,
            "--model",
            model,
            "--out",
            out,
            *sets,
        ]
        done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == out
        lines = (place / out / "results.csv").read_text().splitlines()[1:]
        rows.append([[float(cell) for cell in line.split(",")] for line in lines])
    assert len(rows[0]) == 2
    for mine, theirs in zip(*rows, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-4)
