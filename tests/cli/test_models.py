"""`saccade models`: parameters and multiply-accumulates as published.

Ours keeps the class token with its position already added, so each count is the published one less one vector
for each class token: `width`, and twice that where DeiT distils.
"""

import json

import pytest
import torch
from terminal import run

from saccade.models.build import build
from saccade.models.cost import describe, describe_text, macs, parameters
from saccade.models.names import EXAMPLES, config
from saccade.models.text import names as text

PUBLISHED = {
    "vit_ti16": 5_717_416,
    "vit_s16": 22_050_664,
    "vit_b16": 86_567_656,
    "vit_b32": 88_224_232,
    "vit_l16": 304_326_632,
    "vit_h14": 632_045_800,
    "deit_ti16": 5_717_416,
    "deit_ti16_distilled": 5_910_800,
    "deit_s16_distilled": 22_436_432,
    "deit_b16_distilled": 87_338_192,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_parameters_are_as_many_as_published(name):
    row = describe(name)
    tokens = 0 if name.startswith("resnet") else 2 if name.endswith("distilled") else 1
    assert row["params"] == PUBLISHED[name] - tokens * (row["width"] or 0)


@pytest.mark.parametrize(
    ("name", "giga"), [("deit_ti16", 1.2537), ("deit_s16", 4.5989), ("vit_b16", 17.5638)]
)
def test_the_multiply_accumulates_are_as_published(name, giga):
    assert describe(name)["macs"] == pytest.approx(giga * 1e9, rel=0.01)


@pytest.mark.parametrize(
    "name", ["vit_ti16", "deit_ti16_distilled", "dinov2_s14_reg", "r26_vit_s32", "resnet18"]
)
def test_the_short_count_equals_the_count_of_the_whole_model(name):
    with torch.device("meta"):
        whole = build(config(name)).eval()
    assert describe(name)["macs"] == macs(whole, whole.config.image)
    assert describe(name)["params"] == parameters(whole)


def test_the_table_and_json_tell_the_same():
    names = ["vit_ti16", "vit_b16_384", "resnet18"]
    rows = json.loads(run("models", *names, "--json").out)
    assert [row["name"] for row in rows] == names
    assert (rows[1]["image"], rows[1]["tokens"], rows[2]["patch"]) == (384, 577, None)
    header, *lines = run("models", *names).out.splitlines()
    assert header.split() == list(rows[0])
    assert lines[0].split() == [
        "vit_ti16",
        "224",
        "16",
        "12",
        "192",
        "768",
        "3",
        "197",
        "5,717,224",
        "1.25",
        "G",
    ]
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize(
    ("name", "near"),
    [("vit_b_16", "'vit_b16'"), ("deit_s16_distiled", "'deit_s16_distilled'"), ("resnet-50", "'resnet50'")],
)
def test_an_unknown_name_suggests_the_nearest(name, near):
    done = run("models", "vit_ti16", name)
    assert (done.code, done.out) == (2, "")
    assert f"no model is named {name!r}; did you mean {near}" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.slow
def test_the_whole_list_is_counted():
    rows = json.loads(run("models", "--json").out)
    assert [row["name"] for row in rows] == [*EXAMPLES, *text.EXAMPLES]
    seen = rows[: len(EXAMPLES)]
    assert all(row["params"] > 5e5 and row["macs"] > 4e7 for row in seen)


PUBLISHED_TEXT = {"gpt2": 124_439_808, "gpt2_medium": 354_823_168, "bert_base": 110_106_428 - 1538}
"""Radford et al. 2019; BERT-base with its heads, less that for the next sentence."""


@pytest.mark.parametrize("name", PUBLISHED_TEXT)
def test_models_of_text_have_as_many_parameters_as_published(name):
    assert describe_text(name)["params"] == PUBLISHED_TEXT[name]


def test_models_of_text_have_a_table_of_their_own():
    done = run("models", "vit_ti16", "gpt2", "seq2seq_lstm")
    pictures, words = done.out.strip().split("\n\n")
    assert pictures.splitlines()[1].split()[0] == "vit_ti16"
    assert words.splitlines()[0].split() == list(describe_text("gpt2"))
    assert words.splitlines()[1].split()[-1] == "124,439,808"
    done = run("models", "gpt_min")
    assert (done.code, done.out) == (2, "")
