"""The page of `saccade check`: whole, escaped, offline, with pictures, and never in the place of others."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from pictures import encode
from PIL import Image
from trees import picture, tree

from saccade.check import page as findings
from saccade.check.examine import ImageRef, examine
from saccade.check.label_errors import LEARNT, UNSEEN, Group, LabelErrors, SuspectLabel
from saccade.check.page import CheckResult, check_target, write_page
from saccade.data.readers.open import open_images
from saccade.errors import UsageError

HOSTILE = "<script>alert(1)<"
EMPTY = {"meta", "img"}


class Page(HTMLParser):
    """The elements and the text as a browser sees them; unbalanced tags are an error."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.open, self.words = [], [], []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, name, pairs):
        self.elements.append((name, dict(pairs)))
        if name not in EMPTY:
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, words):
        if "style" not in self.open:
            self.words.append(words)

    @property
    def text(self):
        return "".join(self.words)

    def all(self, name):
        return [attributes for kind, attributes in self.elements if kind == name]


def odd(root):
    """A leak, a contradiction, a duplicate, a look-alike, a page in disguise and a name that is markup."""
    tree(root, {"train/a": 3, f"train/{HOSTILE}": 2, "val/a": 2, f"val/{HOSTILE}": 1})
    train = root / "train"
    (root / "val" / "a" / "leak.png").write_bytes((train / "a" / "0.png").read_bytes())
    (train / HOSTILE / 'x"onerror=y.png').write_bytes((train / "a" / "1.png").read_bytes())
    (train / "a" / "again.png").write_bytes((train / "a" / "2.png").read_bytes())
    for kind in ("PNG", "JPEG"):
        (train / HOSTILE / f"large.{kind.lower()}").write_bytes(picture(50, 300, kind))
    (train / "a" / "bad.jpg").write_bytes(b"<html>")
    return root


def judged(found):
    """What a model could have said of two of the pictures."""
    known = {
        images.name(i): (split, i) for split, images in found.by_name.items() for i in range(len(images))
    }
    places = [ImageRef(*known[name], name, "a") for name in ("val/a/0.png", "train/a/1.png")]
    said = [SuspectLabel(place, HOSTILE, 0.875, 0.0625) for place in places]
    parts = (Group(UNSEEN, 4, (said[0],)), Group(LEARNT, 9, (said[1],)))
    return LabelErrors("runs/<b>", "", parts)


def written(path, root, suspicion=False, full=True):
    found = open_images(root)
    seen = examine(found, full=full)
    write_page(
        path, CheckResult(str(root), found, seen, "found: things", judged(found) if suspicion else None)
    )
    return Page(path.read_text(encoding="utf-8")), seen


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("findings")
    page, seen = written(folder / "check.html", odd(folder / "pictures"), suspicion=True)
    return folder / "check.html", page, seen


def test_the_page_asks_for_nothing_and_runs_nothing(place):
    path, page, _ = place
    assert not {name for name, _ in page.elements} & {"script", "link", "iframe", "object", "embed", "form"}
    for _, attributes in page.elements:
        assert not [key for key in attributes if key.startswith("on")]
        for key in ("src", "href"):
            assert re.match(r"data:image/(png|jpeg);base64,[\w+/=]+$|#[\w-]+$", attributes.get(key) or "#a")
    html = path.read_text()
    assert "<script" not in html
    assert "runs/<b>" not in html
    assert "url(" not in html
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")
    assert {"name": "color-scheme", "content": "light dark"} in page.all("meta")


def test_every_link_leads_somewhere_and_every_picture_has_words(place):
    _, page, _ = place
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {link["href"][1:] for link in page.all("a")} <= set(ids)
    alts = [image["alt"] for image in page.all("img")]
    assert len(alts) == 2 + 2 + 2 + 2 + 2  # contradiction, leak, duplicate, look-alike, suspects
    assert "train/a/1.png, label says a" in alts
    assert f"train/a/1.png, label says a, model says {HOSTILE}, confidence 87.5%, in the label 6.2%" in alts


def test_all_that_was_found_is_on_the_page(place):
    _, page, seen = place
    assert [len(seen.contradictions), len(seen.leaks), len(seen.duplicates)] == [1, 1, 2]
    for words in (
        "class folders: 14 images of 2 classes (train 10, val 4)",
        "found: things",
        HOSTILE,
        "train/a/bad.jpg is not an image: an HTML page saved as .jpg",
        f'train/{HOSTILE}/x"onerror=y.png (train)',
        "val/a/leak.png (val)",
        "Identical files.",
        "Look-alikes.",
        "JPEG",
        "12 x 12",
        "1 suspected label among the 4 images that the model was not trained on",
        "1 suspected label among the 9 images that the model was trained on",
        "A model memorises its training labels",
        "model says: " + HOSTILE,
        "confidence: 87.5%, in the label 6.2%",
    ):
        assert words in page.text
    rows = re.findall(r"<tr>(.*?)</tr>", place[0].read_text().split('id="balance"')[1])
    numbers = [re.findall(r'<td class="n">(\d+)</td>', row) for row in rows[1:3]]
    assert numbers == [["5", "3", "1"], ["5", "1", "0"]]
    bars = re.findall(r"width: ([\d.]+)%; background", "".join(rows[1:3]))
    assert [float(bar) for bar in bars] == [62.5, 37.5, 62.5, 12.5]


def test_tiny_pictures_keep_their_pixels_and_large_ones_become_small(place):
    _, page, _ = place
    kinds = {image["src"].split(";")[0] for image in page.all("img")}
    assert kinds == {"data:image/png", "data:image/jpeg"}
    for image in page.all("img"):
        assert ("pixelated" in image.get("style", "")) == image["src"].startswith("data:image/png")
        assert len(image["src"]) < 30_000


def test_sound_pictures_have_no_empty_parts(tmp_path):
    page, _ = written(tmp_path / "x.html", tree(tmp_path / "p", {"a": 3, "b": 2}), full=False)
    anchors = [link["href"] for link in page.all("a")]
    assert anchors == ["#main", "#summary", "#classes", "#shapes"]
    assert "Only the headers were read (--quick)" in page.text
    assert not page.all("img")


def test_what_is_too_much_for_thumbnails_is_listed(tmp_path, monkeypatch):
    for name, number in (("PICTURED", 2), ("LISTED", 3), ("SIDE_BY_SIDE", 3)):
        monkeypatch.setattr(findings, name, number)
    root = tree(tmp_path / "p", {"a": 5, "b": 1})
    for number in range(5):
        for copy in range(4 if number == 0 else 1):
            data = (root / "a" / f"{number}.png").read_bytes()
            (root / "a" / f"{number}-{copy}.png").write_bytes(data)
    for i in range(5):
        (root / "b" / f"bad{i}.png").write_bytes(b"")
    page, seen = written(tmp_path / "x.html", root)
    assert len(seen.duplicates) == 5
    assert len(page.all("img")) == 3 + 2
    assert "Identical files; 2 more are not shown." in page.text
    assert "3 more groups, without thumbnails" in page.text
    assert page.text.count("And 2 more; saccade check --json lists them all.") == 1  # 5 unreadable
    assert page.text.count("And 3 more; saccade check --json lists them all.") == 1  # 6 rows of 3 groups


def test_a_picture_that_vanished_is_said_to_be_without_thumbnail(tmp_path):
    root = tree(tmp_path / "p", {"a": 2, "b": 2})
    (root / "a" / "copy.png").write_bytes((root / "a" / "0.png").read_bytes())
    found = open_images(root)
    seen = examine(found)
    (root / "a" / "copy.png").unlink()
    write_page(tmp_path / "x.html", CheckResult("p", found, seen, ""))
    page = Page((tmp_path / "x.html").read_text())
    assert len(page.all("img")) == 1
    assert "no thumbnail" in page.text


def test_a_page_of_an_earlier_check_is_replaced_and_nothing_else_is(tmp_path):
    root = tree(tmp_path / "p", {"a": 2, "b": 2})
    path = tmp_path / "check.html"
    first = written(path, root)[0]
    (root / "b" / "new.png").write_bytes(picture(99))
    assert written(path, root)[0].text != first.text
    for content in (b"", b"mine", b"<!doctype html>\n<title>mine</title>", encode(Image.new("RGB", (4, 4)))):
        path.write_bytes(content)
        with pytest.raises(
            UsageError, match="exists and is not a page of `saccade check`, so it is not replaced"
        ):
            written(path, root)
        assert path.read_bytes() == content
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_place_that_cannot_be_written_is_refused_in_words(tmp_path):
    with pytest.raises(UsageError, match=r"the folder .*nowhere does not exist; create it or choose another"):
        check_target(tmp_path / "nowhere" / "x.html")
    with pytest.raises(UsageError, match="a folder; expected the name of a file in it"):
        check_target(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("gone")
    for name in ("pipe", "link"):
        with pytest.raises(UsageError, match="exists and is not a page"):
            check_target(tmp_path / name)


def test_the_page_needs_no_torch():
    code = "import sys, saccade.check.page; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
