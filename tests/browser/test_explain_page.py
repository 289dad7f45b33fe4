"""The page of `saccade explain` in a real Chromium: a click on a patch shows the model's own numbers."""

import numpy as np
import pytest
import torch
from chromium import browsing, chromium
from terminal import NAMES, small

import saccade
from saccade.explain.explanation import Question, hottest
from saccade.explain.page.content import page_content
from saccade.explain.page.page import render_page
from saccade.explain.replay import moments

pytestmark = pytest.mark.skipif(chromium() is None, reason="no Chromium on this machine")
READY = "document.documentElement.hasAttribute('data-ready')"
ROWS = (
    "[...document.querySelectorAll('#{}-rows tr')]"
    ".map(r => [Number(r.dataset.place), Number(r.querySelector('data').value)])"
)
TEXT = "document.getElementById('{}').textContent"


def told(module, **options):
    size = module.config.image
    pixels = np.random.default_rng(1).integers(0, 256, (*size, 3), dtype=np.uint8)
    image = torch.from_numpy(saccade.Preprocess(size=size).normalise(pixels))[None]
    question = Question(**{"name": "photo.png", "method": "relevance", "quick": True, **options})
    made, _ = page_content(module, image, pixels, NAMES.__getitem__, question, "small")
    return made, image


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with browsing(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    module = small().module
    made, image = told(module)
    path = tmp_path_factory.mktemp("page") / "why.html"
    path.write_text(render_page(made), encoding="utf-8")
    with torch.no_grad():
        attention = np.stack([moment.attention[0].numpy() for moment in moments(module, image)])
    return made, path, attention


@pytest.fixture
def tab(browser, vit):
    opened = browser.open(vit[1])
    opened.wait(READY)
    return opened


def agree(shown, row, step):
    """The ten numbers of a table against a row of the model's attention; patches count from 1 there."""
    assert len(shown) == 10
    for place, value in shown:
        assert abs(value - row[place + 1]) <= step / 2 + 1e-7
    assert [value for _, value in shown] == sorted((value for _, value in shown), reverse=True)
    assert shown[0][1] == pytest.approx(row.max(), abs=step)


def test_the_page_works_offline_and_nothing_is_refused(tab):
    assert tab.complaints == []
    assert {address.split(":")[0] for address in tab.asked} <= {"file", "data"}
    assert sum(address.startswith("file") for address in tab.asked) == 1


def test_a_click_on_a_patch_shows_where_it_looks(tab, vit):
    made, _, attention = vit
    step = float(made.attention.scale.max())
    agree(tab.run(ROWS.format("gaze")), attention[-1].mean(0)[0], step)
    tab.click("#gaze-stage .cell", 6)
    assert "the patch in row 2, column 3 attends most to" in tab.run(TEXT.format("gaze-summary"))
    agree(tab.run(ROWS.format("gaze")), attention[-1].mean(0)[7], step)
    assert tab.run("document.querySelectorAll('#gaze-stage [aria-selected=true]').length") == 1
    tab.click("#fronts button")
    agree(tab.run(ROWS.format("gaze")), attention[-1].mean(0)[0], step)


def test_layer_and_head_are_chosen_with_pickers_and_with_the_small_maps(tab, vit):
    made, _, attention = vit
    step = float(made.attention.scale.max())
    tab.click("input[name=head]", 3)
    agree(tab.run(ROWS.format("gaze")), attention[1, 2, 0], step)
    tab.run("document.getElementById('layer').focus()")
    tab.press("ArrowLeft")
    agree(tab.run(ROWS.format("gaze")), attention[0, 2, 0], step)
    tab.click("#atlas canvas", 2 * 4 + 1)
    agree(tab.run(ROWS.format("gaze")), attention[1, 3, 0], step)
    assert tab.run("document.querySelector('input[name=head]:checked').value") == "3"


def test_the_keyboard_is_enough(tab, vit):
    made, _, attention = vit
    tab.run("document.querySelector('#gaze-stage [tabindex=\"0\"]').focus()")
    tab.press("ArrowRight", "ArrowDown", "ArrowLeft", "ArrowLeft", "Enter")
    agree(tab.run(ROWS.format("gaze")), attention[-1].mean(0)[1 + 4], float(made.attention.scale.max()))
    label = tab.run("document.activeElement.getAttribute('aria-label')")
    assert label.startswith("row 2, column 1: ")


def test_method_and_class_pickers_show_the_maps_of_the_api(tab, vit):
    made = vit[0]
    ways = [way.name for way in made.results]
    for method in ("relevance", "gradient"):
        tab.click("input[name=method]", ways.index(method))
        for i, answer in enumerate(made.answers):
            tab.click("input[name=class]", i)
            grid = made.map(method, answer.index).grid
            shown = tab.run(ROWS.format("map"))
            assert [np.float32(value) for _, value in shown] == [spot.value for spot in hottest(grid, 10)]
            assert tab.run("document.getElementById('map-canvas').ariaLabel").startswith(
                f"Heat map of {method} for"
            )
    tab.click("input[name=method]", ways.index("occlusion"))
    assert "its map was made for this class only" in tab.run(TEXT.format("map-summary"))


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (390, True)])
def test_it_fits_the_screen_in_light_and_dark(browser, vit, tmp_path, width, dark):
    tab = browser.open(vit[1], width=width, height=900, dark=dark)
    tab.wait(READY)
    assert tab.run("document.documentElement.scrollWidth") <= width
    colour = tab.run("getComputedStyle(document.body).backgroundColor")
    assert colour == ("rgb(13, 17, 23)" if dark else "rgb(246, 248, 250)")


def test_a_cnn_has_maps_and_no_grid_to_ask(browser, tmp_path):
    torch.manual_seed(0)
    module = saccade.create("resnet18_small_32", classes=5, image=16, width=4).eval()
    torch.nn.init.normal_(list(module.parameters())[-2], std=0.3)
    made, _ = told(module, method="gradient")
    (tmp_path / "why.html").write_text(render_page(made), encoding="utf-8")
    tab = browser.open(tmp_path / "why.html")
    tab.wait(READY)
    assert tab.complaints == []
    shown = tab.run(ROWS.format("map"))
    grid = made.map("gradient", made.answers[0].index).grid
    assert [np.float32(value) for _, value in shown] == [spot.value for spot in hottest(grid, 10)]


def test_a_script_that_is_not_ours_does_not_run(browser, vit, tmp_path):
    html = (
        vit[1]
        .read_text(encoding="utf-8")
        .replace("</main>", "<script>document.title = 'owned'</script></main>")
    )
    (tmp_path / "bad.html").write_text(html, encoding="utf-8")
    tab = browser.open(tmp_path / "bad.html")
    tab.wait(READY)
    assert tab.run("document.title") != "owned"
    assert any("Content Security Policy" in words for words in tab.complaints)
