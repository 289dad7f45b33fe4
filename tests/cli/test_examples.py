"""Every example that ends the help of a command runs."""

import shlex
from importlib import import_module

import pytest
import typer.main
from commands import CODES, SHORT, prepare, run, tiny
from hub import Hub

from saccade.cli.app import VERBS, build_app

EXAMPLES = {
    verb: getattr(import_module(f"saccade.cli.{module}"), verb).examples for verb, module in VERBS.items()
}
READY = (
    "saccade train pets --model vit_xs8_32 --epochs 1 --set workers=0",
    "saccade train pairs.tsv --task translate --model seq2seq_gru --set budget.steps=2 --out runs/de-en",
    "saccade train book.txt --model gpt_mini --set budget.steps=2 --out runs/book",
    "saccade train book.txt --model bert_mini --set budget.steps=2 --out runs/bert",
)
"""What the examples take for granted."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("help"))


def finished(lines, folder):
    """Run commands; every one ends as it should."""
    tiny().save(folder / "hub", layout="hf")
    files = {path.name: path.read_bytes() for path in (folder / "hub").iterdir()}
    with Hub({"google/vit-base-patch16-224": files}) as hub:
        done = run(lines, folder, hub, SHORT, seconds=1800)
    assert [shlex.split(line) for line, _ in done] == [shlex.split(line) for line in lines]
    assert not [(line, code) for line, code in done if code not in CODES.get(line.split()[1], {0})]


@pytest.mark.parametrize("verb", VERBS)
def test_a_command_has_three_different_examples_of_itself(verb):
    examples = EXAMPLES[verb]
    assert len(set(examples)) == len(examples) == 3
    assert all(shlex.split(line)[:2] == ["saccade", verb] and len(line) <= 76 for line in examples)


@pytest.mark.parametrize("verb", VERBS)
def test_an_example_parses(verb):
    command = typer.main.get_command(build_app((verb,))).commands[verb]
    for line in EXAMPLES[verb]:
        command.make_context(verb, shlex.split(line)[2:])


@pytest.mark.slow
def test_every_example_works(place):
    lines = [line for verb, examples in EXAMPLES.items() if verb != "demo" for line in examples]
    finished([*READY, *lines], place)


@pytest.mark.slow
def test_every_example_of_the_demo_works(place):
    finished(EXAMPLES["demo"], place)
