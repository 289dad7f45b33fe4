"""The map of `saccade embed` in a real Chromium: drawn, reached by mouse and by keys, without a network."""

import json

import pytest
from chromium import browsing, chromium
from terminal import run, small
from trees import tree

pytestmark = pytest.mark.skipif(chromium() is None, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The page of a survey, and its browser tab."""
    root = tmp_path_factory.mktemp("map")
    data = tree(root / "data", {"cat": 7, "dog": 7, "<b>bird": 7})
    (data / "dog" / "copy.png").write_bytes((data / "cat" / "3.png").read_bytes())
    out = root / "out"
    assert run("embed", small().save(root / "model"), data, "--map", "pca", "--out", out).code == 0
    return out


@pytest.fixture(scope="module")
def page(made, tmp_path_factory):
    with browsing(tmp_path_factory.mktemp("profile")) as browser:
        yield browser.open(made / "map.html")


def text(page, selector):
    return page.run(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''")


def test_the_map_is_drawn_and_asks_for_nothing(page):
    page.wait("document.getElementById('map-state').textContent.startsWith('22 of 22 images')")
    drawn = page.run(
        "(() => { const c = document.getElementById('map-canvas'); const p = c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data; let n = 0;"
        " for (let i = 3; i < p.length; i += 4) n += p[i] > 0; return n; })()"
    )
    assert drawn > 22 * 20
    assert [url for url in page.asked if not url.startswith(("file:", "data:"))] == []
    assert page.complaints == []


def test_arrows_go_from_picture_to_picture_and_enter_to_the_nearest(page):
    page.run("document.getElementById('map-canvas').focus()")
    page.press("ArrowRight")
    first = page.wait("document.querySelector('#map-picked code')?.textContent")
    assert first in text(page, "#map-state")
    assert page.run("document.querySelectorAll('#map-picked .near li').length") == 6
    assert page.run("document.querySelector('#map-picked img.large').naturalWidth") == 12
    nearest = page.run("document.querySelector('#map-picked .near button').getAttribute('aria-label')")
    page.press("Enter")
    second = text(page, "#map-picked code")
    assert second != first
    assert second in nearest
    seen = {second}
    for key in ("ArrowLeft", "ArrowUp", "ArrowDown", "ArrowRight") * 3:
        page.press(key)
        seen.add(text(page, "#map-picked code"))
    assert len(seen) > 3


def test_pointing_at_a_point_shows_its_picture_and_name(page):
    x, y = page.run(
        "(() => { const c = document.getElementById('map-canvas'), edge = 22;"
        " c.scrollIntoView({block: 'center', behavior: 'instant'});"
        " const d = JSON.parse(document.getElementById('map-data').textContent);"
        " const b = c.getBoundingClientRect(), w = c.clientWidth - 2 * edge, h = c.clientHeight - 2 * edge;"
        " return [b.x + 1 + edge + d.x[0] * w, b.y + 1 + edge + d.y[0] * h]; })()"
    )
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    page.wait("!document.getElementById('map-tip').hidden")
    assert page.run("document.querySelector('#map-tip img').naturalWidth") == 12
    assert text(page, "#map-tip code").endswith(".png")
    for kind in ("mousePressed", "mouseReleased"):
        page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    assert text(page, "#map-picked code") == text(page, "#map-tip code")


def test_classes_can_be_left_out_and_names_are_no_markup(page):
    assert page.run("document.querySelectorAll('#map-classes label').length") == 3
    assert "<b>bird" in text(page, "#map-classes")
    assert page.run("document.querySelectorAll('#map-classes b').length") == 0
    page.click("#map-classes input")
    page.wait("document.getElementById('map-state').textContent.startsWith('15 of 22')")
    page.click("#map-none")
    page.wait("document.getElementById('map-state').textContent.startsWith('0 of 22')")
    page.click("#map-all")
    page.wait("document.getElementById('map-state').textContent.startsWith('22 of 22')")
    page.run("(() => { const s = document.getElementById('map-only'); s.value = 'copies';"
             " s.dispatchEvent(new Event('change')); })()")  # fmt: skip
    shown = page.run("parseInt(document.getElementById('map-state').textContent)")
    assert 2 <= shown < 22
    assert page.complaints == []


def test_a_link_leads_to_a_picture(made, tmp_path):
    with browsing(tmp_path) as browser:
        page = browser.open(made / "map.html", width=400, height=800, dark=True)
        page.run("(() => { location.hash = '#picture-5'; location.reload(); })()")
        page.wait("document.querySelector('#map-picked code')?.textContent")
        rows = (made / "pictures.csv").read_text().splitlines()
        assert rows[6].endswith(text(page, "#map-picked code"))
        assert page.run("document.documentElement.scrollWidth") <= 400
        assert page.complaints == []
