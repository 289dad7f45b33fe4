"""Rules of the house that a reader can rely on."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from trees import tree

from saccade.tasks import TASKS

SOURCE = Path(__file__).parents[2] / "src" / "saccade"
MOST_IMPORTS = 18
"""Modules of the package at the top of a file."""
FEW_LINES = 60
"""A file shorter than this has two importers or more, so that it is worth opening."""
PLUGS = ("nn", "cli", "tasks")
"""Rooms of one brick, one command or one task a file."""
ALONE = {
    "__main__.py": "`python -m saccade`",
    "tokens/kinds.py": "the table of the kinds of models that model.json names",
}
"""Short files with fewer importers, and why."""
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


def imported_by(path):
    """Yield the modules that a file imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_a_short_file_has_two_importers_or_more():
    importers = Counter(module for path in SOURCE.rglob("*.py") for module in set(imported_by(path)))
    lonely = set()
    for path in SOURCE.rglob("*.py"):
        place = path.relative_to(SOURCE)
        if path.name == "__init__.py" or place.parts[0] in PLUGS:
            continue
        name = ".".join(("saccade", *place.with_suffix("").parts))
        if len(path.read_text().splitlines()) < FEW_LINES and importers[name] < 2:
            lonely.add(str(place))
    assert lonely == set(ALONE)


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


def test_no_file_outside_tasks_names_a_task():
    quoted = re.compile(rf"""[^\w]["']({"|".join(TASKS)})["']""")
    element = 'tag("caption"'  # of an HTML table
    found = [
        f"{path.relative_to(SOURCE)}:{number}: {line.strip()}"
        for path in sorted(SOURCE.rglob("*.py"))
        if "tasks" not in path.relative_to(SOURCE).parts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if quoted.search(line) and element not in line
    ]
    assert not found


def test_training_on_images_loads_few_modules_and_none_for_text(tmp_path):
    code = "\n".join(
        [
            "import sys",
            "from saccade.cli.app import main",
            "try: main()",
            "except SystemExit as end: assert not end.code",
            "print(*(name for name in sys.modules if name.startswith('saccade')), sep='\\n')",
        ]
    )
    data = tree(tmp_path / "data", {"a": 6, "b": 6})
    words = ["train", data, "--model", "vit_xs4_12", "--out", tmp_path / "run"]
    more = ["--set", "budget.epochs=1", "--set", "workers=0"]
    done = subprocess.run([sys.executable, "-c", code, *words, *more], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = [name for name in done.stdout.splitlines() if name.startswith("saccade")]
    assert len(loaded) <= 151
    assert not [name for name in loaded if "text" in name.split(".")]
