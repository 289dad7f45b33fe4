"""Make the pictures of the README from real runs: `python benchmarks/pictures.py MODEL DEMO`.

MODEL is the weights of a ViT for ImageNet, such as vit_ti16.augreg; DEMO is the folder that `saccade demo`
wrote. The photograph is one that scikit-learn ships. Pages are photographed by chromium.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

OUT = Path(__file__).parents[1] / "docs" / "pictures"
BROWSER = ("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
WINDOW = (1280, 960)
WIDTH = 900


def saccade(*words: object, codes: Sequence[int] = (0,)) -> None:
    """Run a command."""
    command = [str(Path(sys.executable).with_name("saccade")), *map(str, words)]
    assert subprocess.run(command, check=False).returncode in codes, command


def photograph(page: Path, name: str) -> None:
    """Write a screenshot of the top of a page."""
    with tempfile.TemporaryDirectory() as scratch:
        shot = Path(scratch, "shot.png")
        size = ",".join(map(str, WINDOW))
        command = [*BROWSER, f"--window-size={size}", f"--screenshot={shot}", page.resolve().as_uri()]
        subprocess.run(command, check=True, capture_output=True)
        save(shot, name)


def save(path: Path, name: str) -> None:
    """Write an image as a small JPEG."""
    OUT.mkdir(exist_ok=True)
    with Image.open(path) as image:
        height = round(image.height * WIDTH / image.width)
        small = image.convert("RGB").resize((WIDTH, height), Image.Resampling.LANCZOS)
        small.save(OUT / name, quality=88, optimize=True)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="weights for ImageNet")
    parser.add_argument("demo", type=Path, help="what `saccade demo` wrote")
    given = parser.parse_args(words)
    import sklearn.datasets

    photo = Path(sklearn.datasets.__file__).parent / "images" / "china.jpg"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        saccade("explain", given.model, photo, "--out", folder / "why")
        save(next((folder / "why").glob("*.png")), "hero.jpg")
        run = given.demo / "model"
        photograph(run / "report.html", "report.jpg")
        photograph(given.demo / "why.html", "explain.jpg")
        shutil.copytree(given.demo / "digits" / "test", folder / "digits")
        for path in sorted((folder / "digits").rglob("*.png"))[::90]:  # mistakes to find
            label = str((int(path.parent.name) + 1) % 10)
            shutil.copy(path, path.parents[1] / label / f"copy-{path.name}")
        saccade("check", folder / "digits", "--html", folder / "check.html", codes=(1,))
        photograph(folder / "check.html", "check.jpg")
        saccade("embed", run, folder / "digits", "--out", folder / "map")
        photograph(next((folder / "map").glob("*.html")), "map.jpg")


if __name__ == "__main__":
    main()
