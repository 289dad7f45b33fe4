"""The page about a text in a real Chromium: a word and a head are chosen, nothing is asked of a network."""

import numpy as np
import pytest
from chromium import browsing, chromium
from spoken import speaker

from saccade.explain.text.attention import read_text
from saccade.explain.text.page import render_page

pytestmark = pytest.mark.skipif(chromium() is None, reason="no Chromium on this machine")
READING = read_text(speaker("transformer"), "the cat sat on the mat", "the dog ran to the log")
LOOK = READING.maps[0]
SHARES = (
    "Array.from(document.querySelectorAll('#alignment-columns .word'))"
    ".map((word) => Number(word.style.getPropertyValue('--share')))"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    place = tmp_path_factory.mktemp("reading")
    (place / "page.html").write_text(render_page(READING, "run"), encoding="utf-8")
    with browsing(place / "profile") as browser:
        yield browser.open(place / "page.html")


def test_a_word_shows_where_it_looks_and_a_head_can_be_chosen(page):
    page.wait("!document.getElementById('alignment-stage').hidden")
    page.run("document.querySelectorAll('#alignment-rows button')[2].click()")
    assert np.allclose(page.run(SHARES), LOOK.mean()[2], atol=0.004)
    assert page.run("document.querySelectorAll('#alignment-rows button')[2].ariaPressed") == "true"
    best = LOOK.columns[int(LOOK.mean()[2].argmax())]
    told = page.run("document.getElementById('alignment-summary').textContent")
    assert told.startswith(f"{LOOK.rows[2]}: {best} ")
    page.run(
        "for (const [id, value] of [['alignment-layer', 1], ['alignment-head', 2]]) {"
        " const chosen = document.getElementById(id); chosen.value = value;"
        " chosen.dispatchEvent(new Event('change')); }"
    )
    assert np.allclose(page.run(SHARES), LOOK.p[1, 2, 2], atol=0.004)
    assert [url for url in page.asked if not url.startswith(("file:", "data:"))] == []
    assert page.complaints == []


def test_keys_reach_every_word(page):
    page.run("document.querySelectorAll('#source-rows button')[0].focus()")
    page.press("Tab")
    assert page.run("document.querySelectorAll('#source-rows button')[1].ariaPressed") == "true"
