"""Rules of the house that a reader can rely on."""

import ast
import re
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "saccade"
MOST_IMPORTS = 28
"""Modules of the package at the top of a file; the goal is 18."""
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
    long = {str(p.relative_to(SOURCE)) for p in SOURCE.rglob("*.py") if len(p.read_text().splitlines()) > 400}
    assert not long


def test_at_most_16_files_are_on_a_level():
    rooms = Counter(path.parent for path in SOURCE.rglob("*.py") if path.name != "__init__.py")
    assert not {str(room.relative_to(SOURCE)): count for room, count in rooms.items() if count > 16}


def test_no_two_public_classes_have_one_name():
    found = Counter(
        node.name
        for path in SOURCE.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert not [name for name, count in found.items() if count > 1]


def test_a_file_imports_few_others_of_the_package():
    counts = {}
    for path in SOURCE.rglob("*.py"):
        modules = set()
        for node in ast.parse(path.read_text()).body:  # imports inside functions are paid for only when used
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("saccade"):
                modules.add(node.module)
        counts[str(path.relative_to(SOURCE))] = len(modules)
    assert not {name: count for name, count in counts.items() if count > MOST_IMPORTS}
