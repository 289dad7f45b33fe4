"""As a new user would try it: a folder of 200 photographs, one command, no option."""

import csv
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image
from trees import state


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Pieces of the two photographs that come with scikit-learn, as JPEG files of many sizes."""
    folder = tmp_path_factory.mktemp("newcomer") / "photos"
    draw = np.random.default_rng(0)
    for name in ("china", "flower"):
        (folder / name).mkdir(parents=True)
        whole = load_sample_image(f"{name}.jpg")
        for i in range(100):
            height, width = draw.integers(120, 260, 2)
            top, left = draw.integers(whole.shape[0] - height), draw.integers(whole.shape[1] - width)
            piece = Image.fromarray(whole[top : top + height, left : left + width])
            piece.save(folder / name / f"{i:03}.jpg", quality=90)
    return folder


class Parser(HTMLParser):
    """Counts what a browser would show, and what it would fetch from elsewhere."""

    def __init__(self):
        super().__init__()
        self.pictures, self.foreign, self.open = 0, [], []

    def handle_starttag(self, tag, attributes):
        self.pictures += tag in ("img", "svg")
        self.foreign += [
            v for k, v in attributes if k in ("src", "href") and v and v.startswith(("http", "//"))
        ]


@pytest.mark.slow
def test_one_command_makes_a_model_and_a_report(photos):
    before = state(photos)
    done = subprocess.run(
        [sys.executable, "-m", "saccade", "train", "photos"],
        cwd=photos.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (run,) = (photos.parent / "runs").glob("photos-conv_vit_mini*")
    assert done.stdout.strip() == f"runs/{run.name}"
    assert state(photos) == before
    page = Parser()
    page.feed((run / "report.html").read_text(encoding="utf-8"))
    assert page.pictures >= 4
    assert page.foreign == []
    with (run / "results.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert max(float(row["val_accuracy"]) for row in rows) > 0.8
