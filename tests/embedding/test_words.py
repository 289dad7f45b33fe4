"""Words as vectors: nearest words, analogies, one-hot against embedding, and a map."""

import json

import numpy as np
import pytest
import torch
from spoken import KINDS, SIZES, WORDS, folder, speaker
from terminal import run

from saccade.embedding.words import (
    WordVectors,
    contrast,
    embedding_table,
    is_word,
    one_hot,
    word_map,
    word_vectors,
)
from saccade.models.text.gpt import GPT, GPTConfig
from saccade.text.model import TextFolder, save_text
from saccade.text.vocabulary import learn

PLACES = {"king": (1, 1, 0), "queen": (1, -1, 0), "man": (0, 1, 0.2), "woman": (0, -1, 0.2), "log": (0, 0, 3)}


@pytest.fixture(scope="module")
def royal():
    """A GPT whose words have places of which the answer is known."""
    known = learn([" ".join(PLACES)] * 9)
    module = GPT(GPTConfig(**{**SIZES, "vocabulary": len(known)}))
    vectors = torch.randn(len(known), 24, generator=torch.Generator().manual_seed(0)) * 0.01
    for word, place in PLACES.items():
        (number,) = known.encode(word)
        vectors[number, :3] = torch.tensor(place, dtype=torch.float)
    with torch.no_grad():
        module.words.table.weight.copy_(vectors)
    return TextFolder(module, known)


def test_the_right_word_solves_an_analogy(royal):
    found = word_vectors(royal)
    assert set(PLACES) <= set(found.names)
    assert found.analogy("man", "king", "woman")[0].name == "queen"
    assert found.near("king", 1)[0].name in ("queen", "man")


def test_the_words_of_the_notes_are_nearest_to_their_like():
    vectors = np.array([[0.2, 0.5, -0.1], [0.3, 0.4, -0.2], [0.6, -0.1, 0.9], [0.5, -0.2, 0.8]], np.float32)
    names = ["cat", "dog", "apple", "orange"]
    found = WordVectors(names, np.arange(4), vectors, 4)
    assert [found.near(name, 1)[0].name for name in names] == ["dog", "cat", "orange", "apple"]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    alike = unit @ unit.T
    assert alike[[0, 2], [1, 3]] == pytest.approx([0.949, 0.993], abs=5e-4)
    assert alike[:2, 2:].max() < -0.02


def test_only_whole_words_are_named(royal):
    found = word_vectors(royal)
    assert all(is_word(royal.vocabulary, royal.vocabulary.word(number)) for number in found.numbers.tolist())
    assert not is_word(WORDS, "ing")
    assert not is_word(WORDS, " .")
    letters = learn(["abc"], "characters")
    assert is_word(letters, "a")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_one_hot_vector_times_the_table_is_the_embedding(kind, side):
    made = speaker(kind)
    found = word_vectors(made, side)
    product = one_hot(found.numbers, found.entries) @ embedding_table(made, side)
    assert np.array_equal(product, found.vectors)


def test_one_hot_vectors_are_all_alike_and_an_embedding_tells(royal):
    told = contrast(word_vectors(royal))
    assert (told["one-hot"].numbers, told["one-hot"].alike) == (len(royal.vocabulary), 0)
    assert told["embedding"].numbers == 24
    found = word_vectors(royal)
    x = found.vectors / np.linalg.norm(found.vectors, axis=1, keepdims=True)
    rest = (x @ x.T)[~np.eye(len(x), dtype=bool)]
    assert told["embedding"].alike == pytest.approx(rest.mean(), abs=1e-5)


def test_a_map_has_a_place_for_each_word(royal):
    made, plot = word_map(word_vectors(royal), "pca")
    assert len(plot.rows) == len(made.points) == len(word_vectors(royal).names)


def test_the_command_lists_and_maps(royal, tmp_path):
    save_text(tmp_path / "run", royal)
    done = run("embed", tmp_path / "run", "--analogy", "man", "king", "woman", "--query", "log", "--json")
    first, second = json.loads(done.out)
    assert (first["query"], second["nearest"][0]["word"]) == ("log", "queen")
    done = run("embed", tmp_path / "run", "--map", "pca", "--out", tmp_path / "map")
    assert done.code == 0, done.err
    assert {p.name for p in (tmp_path / "map").iterdir()} == {
        "features.safetensors", "map.json", "map.png", "report.json", "words.html", "words.txt",
    }  # fmt: skip
    assert "one-hot" in done.out
    assert "queen" in json.loads((tmp_path / "map" / "report.json").read_text())["nearest"]


def test_what_cannot_be_asked_is_told(tmp_path, model):
    path = folder("gpt", tmp_path)
    for words_, told in (
        (("embed", path, "--query", "zebra"), "vectors is named zebra"),
        (("embed", path, "photos"), "its words are in its folder; leave out DATA"),
        (("embed", path, "--split", "val"), "the side is 'val'"),
        (
            ("embed", path, "--index", "faiss", "--set", "x=1"),
            "--index, --set work for image models only",
        ),
        (("embed", model), "does not record the data that it was trained on, as run folders do; give DATA"),
    ):
        done = run(*words_)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), words_
        assert told in done.err


@pytest.fixture
def model(tmp_path):
    from terminal import small

    return small().save(tmp_path / "vit")
