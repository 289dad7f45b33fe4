"""Where a model of text looks: the same numbers as in its forward pass, as pictures, JSON and one page."""

import json
import re

import numpy as np
import pytest
import torch
from spoken import WORDS, folder, speaker
from terminal import run
from torch.testing import assert_close

import saccade
from saccade.errors import ModelError, UsageError
from saccade.explain.text.attention import block_attention, decoder_attention, read_text, word_labels
from saccade.explain.text.page import head_statistics, heads_plot, render_page, strongest, words_plot

TEXT = "the cat sat on the mat"


@pytest.mark.parametrize("kind", ["gpt", "bert"])
def test_the_slow_motion_of_a_text_equals_its_forward_pass(kind):
    module = speaker(kind).module
    tokens = torch.tensor([WORDS.encode(TEXT)])
    with torch.no_grad():
        seen, z = block_attention(module, tokens)
        logits = module.read(z if kind == "gpt" else module.last(z))
        assert_close(logits, module(tokens), atol=1e-5, rtol=0)
    for p in seen:
        assert_close(p.sum(-1), torch.ones_like(p[..., 0]))
    assert all((p.triu(1).abs().max() == 0) == (kind == "gpt") for p in seen)


def test_the_slow_motion_of_a_decoder_equals_its_forward_pass():
    module = speaker("transformer").module
    source, target = (torch.tensor([WORDS.encode(text)]) for text in (TEXT, "the dog ran"))
    with torch.no_grad():
        own, cross, logits = decoder_attention(module.decoder, module.encode(source), None, target)
        assert_close(logits, module(source, None, target), atol=1e-5, rtol=0)
    assert all(p.shape[-2:] == (3, 6) for p in cross)
    assert all(p.triu(1).abs().max() == 0 for p in own)


@pytest.mark.parametrize("kind", ["seq2seq", "luong", "transformer"])
def test_an_alignment_has_a_row_for_each_word_written(kind):
    made = speaker(kind)
    reading = read_text(made, TEXT, "the dog ran to the log")
    look = reading.maps[0]
    assert (look.rows, look.columns) == (word_labels(WORDS, [*WORDS.encode("the dog ran to the log"), 2]),
                                         word_labels(WORDS, [*WORDS.encode(TEXT), 2]))  # fmt: skip
    assert reading.answer == "the dog ran to the log"
    assert look.p.shape[2:] == (len(look.rows), len(look.columns))
    assert np.allclose(look.p.sum(-1), 1, atol=1e-5)
    if kind != "transformer":
        source, given = (
            torch.tensor([[*WORDS.encode(TEXT), 2]]),
            torch.tensor([[1, *WORDS.encode(reading.answer)]]),
        )
        with torch.no_grad():
            assert np.allclose(look.p[0, 0], made.module.align(source, None, given)[1][0], atol=1e-6)
    else:
        assert [each.name for each in reading.maps] == ["alignment", "source", "written"]
    own = read_text(made, TEXT)
    assert own.answer == saccade.TextModel(made).translate(TEXT)


def test_guesses_are_the_models_answers():
    gpt = read_text(speaker("gpt"), TEXT)
    with torch.no_grad():
        p = speaker("gpt").module(torch.tensor([WORDS.encode(TEXT)]))[0, -1]
    p[:5] = -torch.inf
    assert gpt.guesses[0].place == 6
    assert gpt.guesses[0].words[0].word == WORDS.word(int(p.argmax()))
    assert gpt.guesses[0].words[0].p == pytest.approx(float(p.softmax(-1).max()), abs=1e-5)
    bert = read_text(speaker("bert"), "the [MASK] sat")
    assert bert.guesses[0].place == 2
    (hole,) = saccade.TextModel(speaker("bert")).fill("the [MASK] sat")
    assert [word.strip() for word, _ in bert.guesses[0].words] == [word for word, _ in hole]
    assert not read_text(speaker("bert"), TEXT).guesses


def test_habits_of_made_up_heads():
    before = np.eye(5, k=-1)
    before[0, 0] = 1
    assert head_statistics(before)[:4] == pytest.approx((0.2, 1.0, 0.0, 0.4))
    assert head_statistics(np.full((5, 5), 0.2))[4] == pytest.approx(5)
    assert head_statistics(np.eye(5))[4] == pytest.approx(1)


def test_the_plots_tell_what_the_matrices_hold():
    look = read_text(speaker("transformer"), TEXT).maps[1]
    plot, heads = words_plot(look), heads_plot(look)
    row = look.mean()[0]
    assert strongest(look)[0] == (
        look.rows[0],
        look.columns[int(row.argmax())],
        pytest.approx(float(row.max())),
    )
    assert plot.to_json()["look"]["attention"] == np.round(look.p, 6).tolist()
    assert len(heads.rows) == 2 * 3
    assert look.layer == 0, "the layer before the last"


@pytest.mark.parametrize(
    ("kind", "text", "target", "error", "words"),
    [
        (
            "vector",
            TEXT,
            None,
            ModelError,
            r"has no attention \(context 'every'\): its decoder sees the sentence as one vector",
        ),
        ("gpt", "", None, UsageError, "the text is empty"),
        ("gpt", TEXT, "x", UsageError, "a GPT does not translate"),
        ("gpt", f"{TEXT} " * 4, None, UsageError, "tokens, but the model takes 16"),
        ("transformer", f"{TEXT} " * 50, None, UsageError, "tokens, but the model takes 256"),
    ],
)
def test_what_cannot_be_shown_is_told(kind, text, target, error, words):
    with pytest.raises(error, match=words):
        read_text(speaker(kind), text, target)


def test_the_page_holds_all_and_asks_for_nothing():
    reading = read_text(speaker("transformer"), "the <b>cat</b> sat")
    made = render_page(reading, "run")
    assert "<b>cat" not in made
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", made)
    looks = json.loads(re.search(r'id="data">(.*?)</script>', made)[1])
    assert [look["name"] for look in looks] == ["alignment", "source", "written"]
    assert all(f'id="{look["name"]}-stage"' in made for look in looks)


def test_the_command_writes_pictures_numbers_and_a_page(tmp_path):
    path = folder("transformer", tmp_path)
    done = run("explain", path, TEXT, "--out", tmp_path / "out", "--html", tmp_path / "page.html")
    assert done.code == 0, done.err
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(
        f"{name}{part}.{ending}"
        for name in ("alignment", "source", "written")
        for part in ("", "-heads")
        for ending in ("png", "json")
    )
    assert (tmp_path / "page.html").stat().st_size > 10_000
    assert "looks most at" in done.out
    (told,) = json.loads(run("explain", path, TEXT, "--json").out)
    assert np.shape(told["looks"][0]["attention"])[:2] == (2, 3)
    assert told["answer"] == run("translate", path, TEXT).out.rstrip("\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("--method", "relevance"),
            "--method works for image models only; this is a text model (task language)",
        ),
        (("--all", "--quick"), "--all, --quick work for image models only"),
        (("another text", "--target", "x"), "one translation was given for 2 texts"),
        (("another text", "--html", "x.html"), "2 texts were given, and x.html is one page"),
    ],
)
def test_options_of_pictures_are_refused(words, told, tmp_path):
    done = run("explain", folder("gpt", tmp_path), TEXT, *words)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert told in done.err
