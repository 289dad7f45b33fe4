"""The page about one picture: one file, offline, escaped, accessible, true to the numbers of the model."""

import base64
import io
import json
import re
import subprocess
import sys
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from terminal import NAMES, small

import saccade
from saccade.explain.explanation import (
    Explanation,
    Question,
    alt_text,
    at_region,
    effect_words,
    hottest,
    hottest_region,
    hottest_tenth,
    join_words,
    region,
)
from saccade.explain.faithfulness.meter import Effect
from saccade.explain.heatmap import Heatmap
from saccade.explain.page import attention_data
from saccade.explain.page.attention_data import pack_attention
from saccade.explain.page.content import CNN, OTHERS, SLOW, PageMap, page_content, page_methods
from saccade.explain.page.page import LINKS, render_page
from saccade.explain.replay import moments
from saccade.explain.write import COLUMNS, caption, draw_explanation
from saccade.vision.model import Prediction

VOID = {"img", "meta", "input", "line", "polyline"}
HOSTILE = "</script><script>alert(1)</script><b>\u202e"


class Page(HTMLParser):
    """What a browser would see; unbalanced tags are an error."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.open, self.words, self.data = [], [], [], ""
        self.feed(html)
        assert not self.open

    def handle_starttag(self, name, pairs):
        self.elements.append((name, dict(pairs)))
        if name not in VOID:
            self.open.append((name, dict(pairs)))

    def handle_startendtag(self, name, pairs):
        self.elements.append((name, dict(pairs)))

    def handle_endtag(self, name):
        assert self.open.pop()[0] == name

    def handle_data(self, words):
        inside = self.open[-1] if self.open else ("", {})
        if inside[1].get("id") == "data":
            self.data += words
        elif inside[0] not in ("style", "script"):
            self.words.append(words)

    @property
    def text(self):
        return "".join(self.words)

    def all(self, name):
        return [attributes for kind, attributes in self.elements if kind == name]


def floats(text):
    return np.frombuffer(base64.b64decode(text), "<f4")


def content(module, **options):
    """The content of a page about a random picture, and what the model sees of it."""
    size = module.config.image
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    image = torch.from_numpy(saccade.Preprocess(size=size).normalise(pixels))[None]
    question = Question(**{"name": "photo.png", "method": "gradcam", **options})
    made, explanation = page_content(module, image, pixels, NAMES.__getitem__, question, "small")
    return made, explanation, image


@pytest.fixture(scope="module")
def vit():
    module = small().module
    made, _, image = content(module, method="relevance")
    html = render_page(made)
    return module, made, image, html, Page(html)


@pytest.fixture(scope="module")
def cnn():
    torch.manual_seed(0)
    module = saccade.create("resnet18_small_32", classes=5).eval()
    torch.nn.init.normal_(list(module.parameters())[-2], std=0.1)
    made, _, _ = content(module, quick=True)
    return made, Page(render_page(made))


# where a token looks


def test_attention_is_the_models_own_to_half_a_step(vit):
    module, made, image, *_ = vit
    with torch.no_grad():
        real = np.stack([moment.attention[0].numpy() for moment in moments(module, image)])
    seen = made.attention
    assert seen.attention().shape == real.shape == (2, 4, 17, 17)
    assert np.abs(seen.attention() - real).max() <= seen.scale.max() / 2 + 1e-7
    assert (np.abs(seen.attention() - real) <= seen.scale[..., None] / 2 + 1e-7).all()
    assert not seen.averaged
    assert seen.summary == "All 2 layers and 4 heads are included."


@pytest.mark.parametrize(
    ("most", "layers", "heads"),
    [(2 * 4 * 17**2, (0, 1), 4), (2 * 4 * 17**2 - 1, (0, 1), 1), (2 * 17**2 - 1, (1,), 1)],
)
def test_a_large_model_keeps_the_mean_over_heads_then_fewer_layers(vit, most, layers, heads):
    module, _, image, *_ = vit
    seen = pack_attention(module, image, most)
    assert (seen.layers, seen.levels.shape[1]) == (layers, heads)
    with torch.no_grad():
        kept = [moment.attention[0] for moment in moments(module, image) if moment.index in layers]
    real = np.stack([p.numpy() if heads == 4 else p.mean(0, keepdim=True).numpy() for p in kept])
    assert np.abs(seen.attention() - real).max() <= seen.scale.max() / 2 + 1e-7
    assert ("too large for a page" in seen.summary) == (heads == 1)


def test_a_model_beyond_the_page_has_no_attention_there(vit):
    module, _, image, *_ = vit
    assert pack_attention(module, image, 17**2 - 1) is None


def test_rows_formed_a_few_at_a_time_are_the_same(vit, monkeypatch):
    module, made, image, *_ = vit
    monkeypatch.setattr(attention_data, "ROWS", 5)
    again = pack_attention(module, image)
    assert np.abs(again.attention() - made.attention.attention()).max() <= made.attention.scale.max()
    assert np.allclose(again.scale, made.attention.scale, atol=1e-7)


def test_tokens_before_the_patches_have_names():
    assert attention_data.front_names(small(pool="pair", registers=2).module) == (
        "class token",
        "distillation token",
        "register 1",
        "register 2",
    )
    assert attention_data.front_names(small(pool="mean").module) == ()


# words


def test_places_have_names():
    assert region(0, 0, 3, 3) == "upper left"
    assert [region(1, column, 3, 3) for column in range(3)] == ["left", "middle", "right"]
    assert [region(row, 1, 3, 3) for row in range(3)] == ["top", "middle", "bottom"]
    assert (at_region("middle"), at_region("upper left"), at_region("nowhere")) == (
        "in the middle",
        "at the upper left",
        "nowhere",
    )
    assert (join_words(["a"]), join_words(["a", "b", "c"])) == ("a", "a, b and c")


def test_the_hottest_tenth_of_an_even_map_is_a_tenth_of_it():
    assert hottest_tenth(np.ones((10, 10), np.float32)) == pytest.approx(0.1)
    one = np.zeros((10, 10), np.float32)
    one[2, 8] = 3
    assert hottest_tenth(one) == 1
    assert hottest_region(one) == "upper right"
    assert hottest(one, 1)[0] == (3, 9, 3.0, 1.0, "upper right")


def test_what_speaks_against_a_class_is_no_heat():
    grid = np.array([[1.0, -5.0], [1.0, 0.0]], np.float32)
    assert sum(spot.share for spot in hottest(grid, 4)) == pytest.approx(1)
    assert hottest_region(-np.ones((2, 2), np.float32)) == "nowhere"
    assert alt_text(-np.ones((2, 2), np.float32), "gradient", "cat", "x.png").endswith(
        "no evidence for it anywhere."
    )


# what the page is


def test_the_page_is_one_file_that_asks_for_nothing_and_runs_only_its_own_script(vit):
    *_, html, seen = vit
    names = {name for name, _ in seen.elements}
    assert not names & {"link", "iframe", "object", "embed", "form", "base"}
    for _, attributes in seen.elements:
        for key in ("src", "srcset", "href"):
            assert re.match(r"data:image/(png|jpeg);base64,[\w+/=]+$|#[\w-]+$", attributes.get(key) or "#a")
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert len(scripts) == 1
    from hashlib import sha256

    digest = base64.b64encode(sha256(scripts[0].encode()).digest()).decode()
    (policy,) = (meta["content"] for meta in seen.all("meta") if "http-equiv" in meta)
    assert policy == (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )
    assert not re.search(r"\b(fetch|XMLHttpRequest|import|eval|localStorage)\b", scripts[0])


def test_ids_are_unique_and_every_link_leads_somewhere(vit):
    *_, seen = vit
    ids = [attributes["id"] for _, attributes in seen.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert set(LINKS) <= {link["href"][1:] for link in seen.all("a")} <= set(ids)


def test_every_control_and_picture_has_a_name(vit):
    *_, seen = vit
    assert all(image["alt"] for image in seen.all("img"))
    assert all(canvas["aria-label"] for canvas in seen.all("canvas"))
    assert all("aria-label" in each for _, each in seen.elements if each.get("role") in ("grid", "img"))


def test_the_maps_in_the_page_are_those_of_the_method_to_the_last_bit(vit):
    _, made, *_, seen = vit
    known = json.loads(seen.data)
    assert len(known["maps"]) == len(made.maps)
    for one, each in zip(known["maps"], made.maps, strict=True):
        assert (one["method"], one["target"]) == (each.method, each.target)
        assert (floats(one["values"]).reshape(one["rows"], one["columns"]) == each.grid).all()
        assert f"Heat map of {each.method.replace('_', ' ')} for" in one["alt"]


def test_attention_in_the_page_is_that_of_the_model(vit):
    _, made, *_, seen = vit
    known = json.loads(seen.data)["attention"]
    levels = np.frombuffer(zlib.decompress(base64.b64decode(known["levels"])), np.uint8)
    scale = floats(known["scale"])
    shape = (len(known["layers"]), known["kept"], 17, 17)
    assert (levels.reshape(shape) * scale.reshape(*shape[:3], 1) == made.attention.attention()).all()


def test_methods_that_ask_often_have_one_class_and_those_without_classes_one_map(vit):
    _, made, *_ = vit
    count = {result.name: sum(each.method == result.name for each in made.maps) for result in made.results}
    assert count["gradcam"] == 1 + OTHERS
    assert {count[name] for name in SLOW} == {1}
    assert count["attention"] == count["random"] == 1


def test_the_first_sentences_are_made_from_the_numbers(vit):
    _, made, *_, seen = vit
    assert f"The model's confidence is {made.answers[0].score * 100:.1f}%." in seen.text
    grid = made.map("relevance", made.answers[0].index).grid
    assert f"holds {hottest_tenth(grid) * 100:.0f}% of it." in seen.text


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        ("better than random", "Tested on the model, this map is better than random. Blurring the hottest"),
        ("cannot be judged", "It cannot be judged: because."),
        ("not better than random", "Tested on the model, this map is not better than random: because."),
    ],
)
def test_the_verdict_is_said_in_plain_words(vit, verdict, said):
    _, made, *_ = vit
    first = replace(made.results[0], verdict=verdict, reason="because", words="Blurring the hottest 10%.")
    seen = Page(render_page(replace(made, results=[first, *made.results[1:]])))
    assert said in seen.text
    shown = next(one for one in json.loads(seen.data)["maps"] if one["method"] == first.name)
    assert shown["verdict"] == f"{verdict[0].upper()}{verdict[1:]}: because. Blurring the hottest 10%."


def test_the_image_is_beside_its_map_and_the_numbers_a_click_away(vit):
    *_, html, seen = vit
    ids = [attributes["id"] for _, attributes in seen.elements if "id" in attributes]
    assert ids.index("map-image") < ids.index("map-stage")
    assert html.index("<details") < html.index('id="map-rows"')
    words = html.index('id="truth-words"')
    assert words < html.index("<details", words) < html.index('id="truth-numbers"')


@pytest.mark.parametrize(
    ("good", "lead"),
    [
        (
            ("rollout", "gradient_rollout"),
            "Better than random on this image: rollout and gradient rollout.",
        ),
        ((), "No map of this image is better than a random one; they should not be trusted."),
    ],
)
def test_what_is_better_than_random_is_named(vit, good, lead):
    _, made, *_ = vit
    results = [
        replace(result, good=result.name in good, figures={"gain": 0.5}, verdict="uninformative")
        for result in made.results
    ]
    assert lead in Page(render_page(replace(made, results=results))).text


def test_what_cannot_be_judged_is_not_called_uninformative(vit):
    _, made, *_ = vit
    results = [
        replace(r, verdict="cannot be judged", reason="the blurred image is still recognised", good=False)
        for r in made.results
    ]
    text = Page(render_page(replace(made, results=results))).text
    assert "No map of this image can be judged: the blurred image is still recognised." in text
    assert "uninformative" not in text


def test_the_control_is_the_mean_of_random_maps_and_has_no_verdict(vit):
    _, made, *_ = vit
    assert [result.verdict for result in made.results if result.name == "random"] == ["the control"]
    assert all(result.figures and result.reason for result in made.results)
    assert {result.verdict for result in made.results} <= {
        "better than random",
        "not better than random",
        "uninformative",
        "cannot be judged",
        "the control",
    }


def test_nothing_is_measured_in_a_hurry(cnn):
    made, seen = cnn
    assert not any(result.figures or result.verdict for result in made.results)
    assert "truth" not in {link["href"][1:] for link in seen.all("a")}


def test_slow_methods_are_left_out_of_large_models_unless_asked_for(vit, monkeypatch):
    module = vit[0]
    assert set(SLOW) <= set(page_methods(module, "relevance", every=False))
    monkeypatch.setattr("saccade.explain.page.content.QUICK", 1)
    assert not set(SLOW) & set(page_methods(module, "relevance", every=False))
    assert "occlusion" in page_methods(module, "occlusion", every=False)
    assert set(SLOW) <= set(page_methods(module, "relevance", every=True))
    made, *_ = content(module, quick=True)
    assert (
        "Skipped because they are slow: integrated and occlusion (--all adds them)."
        in Page(render_page(made)).text
    )


def test_the_explanation_is_that_of_the_first_map():
    made, explanation, _ = content(small().module, target=3)
    assert (explanation.heatmap.target, explanation.heatmap.label) == (3, "fish")
    assert made.answers[0].index == 3
    assert (explanation.heatmap.grid == made.map("gradcam", 3).grid).all()
    result = next(result for result in made.results if result.name == "gradcam")
    assert explanation.heatmap.score == result.figures["gain"]
    assert explanation.verdict.reason.endswith(result.reason)
    assert explanation.words.endswith(result.words)


def test_the_answer_by_depth_ends_with_the_answer(vit):
    _, made, *_ = vit
    assert len(made.lens) == 3
    assert made.lens[-1] == pytest.approx([each.score for each in made.answers], abs=1e-5)
    assert made.guesses[-1].index == made.answers[0].index


def test_names_of_classes_and_pictures_are_no_markup(vit):
    _, made, *_ = vit
    bad = [Prediction(label=HOSTILE, score=each.score, index=each.index) for each in made.answers]
    guesses = [Prediction(label=HOSTILE, score=0.1, index=0) for _ in made.guesses]
    html = render_page(replace(made, name=HOSTILE, model=HOSTILE, answers=bad, guesses=guesses))
    assert html.count("<script") == 2
    assert "\u202e" not in html.replace("\\u202e", "")
    assert len(Page(html).all("b")) == len(vit[-1].all("b"))


def test_a_cnn_has_maps_and_no_attention(cnn):
    made, seen = cnn
    assert json.loads(seen.data)["attention"] is None
    assert CNN in seen.text
    assert [result.name for result in made.results] == ["gradcam", "gradient", "random"]
    assert made.left == ["integrated", "occlusion"]
    assert made.map("gradient", made.answers[0].index).grid.shape == (32, 32)
    assert "depth" not in {link["href"][1:] for link in seen.all("a")}


def test_a_map_that_is_zero_everywhere_is_said_to_be_so(vit):
    _, made, *_ = vit
    flat = [PageMap(method=e.method, target=e.target, grid=np.zeros_like(e.grid)) for e in made.maps]
    seen = Page(render_page(replace(made, maps=flat)))
    assert "finds no evidence for it in the image" in seen.text
    assert all(one["alt"].endswith("no evidence for it anywhere.") for one in json.loads(seen.data)["maps"])


def test_a_page_that_cannot_be_written_is_refused_without_torch():
    code = "import sys, saccade.explain.write; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# the picture


@pytest.mark.parametrize("size", [(8, 8), (200, 60), (60, 200)])
@pytest.mark.parametrize("label", ["cat", "$\\frac{1}{0}$", "猫"])
def test_the_png_has_the_image_beside_the_map(size, label):
    heatmap = Heatmap(
        grid=np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4),
        target=0,
        label=label,
        method="relevance",
        probability=0.9,
        picture=Image.new("RGB", size, "red"),
    )
    with Image.open(io.BytesIO(draw_explanation(Explanation(name="x.png", heatmap=heatmap)))) as made:
        pixels = np.asarray(made.convert("RGB")).astype(int)
    red = (np.abs(pixels - [255, 0, 0]).sum(-1) < 12).any(0).nonzero()[0]
    assert red.min() < made.width * 0.3  # the image itself is on the left,
    assert (np.abs(pixels[:, made.width // 2 :] - [255, 0, 0]).sum(-1) > 60).any()  # the map on the right


@pytest.mark.parametrize(
    ("effect", "said"),
    [
        ((0.1, 0.95, 0.4, 0.9), "Blurring the hottest 10% of the image lowers P(cat) from 95% to 40%; "),
        ((0.5, 0.95, 0.953, 0.9), "Blurring the hottest 50% of the image leaves P(cat) at 95%; "),
        ((0.5, 0.5, 0.8, 0.9), "Blurring the hottest 50% of the image raises P(cat) from 50% to 80%; "),
    ],
)
def test_what_deleting_does_is_said_with_what_chance_does(effect, said):
    assert effect_words(Effect(*effect), "blur", "cat") == f"{said}random parts: 90%."
    assert effect_words(Effect(*effect), "drop", "cat").startswith("Dropping the hottest")


def test_the_caption_of_the_png_is_broken_into_lines_that_fit():
    told = SimpleNamespace(
        words="Better than random: " + "0 of 40 maps " * 20, heatmap=SimpleNamespace(method="x")
    )
    lines = caption(told).split("\n")
    assert len(lines) > 2
    assert max(map(len, lines)) <= COLUMNS
    assert " ".join(lines).split() == told.words.split()
