"""Rules of the house that a reader can rely on."""

import re
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "saccade"
PATH = ("models/vit.py", "nn/block.py", "nn/attention.py", "nn/position.py")


def lines(pattern, *rooms):
    for room in rooms or (".",):
        for path in sorted((SOURCE / room).rglob("*.py")):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if re.search(pattern, line):
                    yield f"{path.relative_to(SOURCE)}:{number}: {line.strip()}"


def test_the_reading_path_is_at_most_350_lines():
    assert sum(len((SOURCE / name).read_text().splitlines()) for name in PATH) <= 350


def test_nothing_is_unpickled_in_the_main_process():
    assert not list(lines(r"^\s*(import|from) c?pickle\b|torch\.load\(|allow_pickle=True|joblib"))


def test_torchvision_is_not_imported():
    assert not list(lines(r"^\s*(import|from) torchvision"))


def test_models_do_not_fix_a_batch_size_with_len():
    assert not list(lines(r"\blen\((x|z|q|k|v|image)\)", "nn", "models"))


def test_the_shape_checker_is_not_blinded():
    assert not list(lines("from __future__ import annotations"))


def test_nothing_is_named_after_a_drawer():
    drawers = {"utils", "common", "helpers", "misc", "base"}
    assert not [path for path in SOURCE.rglob("*.py") if path.stem in drawers]


def test_files_have_one_idea_each():
    long = {str(p.relative_to(SOURCE)) for p in SOURCE.rglob("*.py") if len(p.read_text().splitlines()) > 310}
    assert not long
