"""JSON is read strictly and written whole; the damaged files of tests/malice.py are in tests/weights."""

import json
import re
from pathlib import Path

import pytest

import saccade
from saccade.errors import ModelError
from saccade.files.strict_json import marks, read_json, write_json


def test_ordinary_json_is_read_and_a_deep_enough_one_too(tmp_path):
    path = tmp_path / "config.json"
    text = {"id2label": {"0": 'tench [fish] {"x"}', "1": "é😀"}, "deep": eval("[" * 99 + "]" * 99)}
    path.write_text(json.dumps(text))
    assert read_json(path) == text
    with pytest.raises(ModelError, match=r"config\.json is larger than the 20 bytes"):
        read_json(path, limit=20)


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ({}, '{\n  "é": [\n    1\n  ]\n}\n'),
        ({"indent": 1}, '{\n "é": [\n  1\n ]\n}\n'),
        ({"indent": None, "escape": True, "end": ""}, '{"\\u00e9": [1]}'),
    ],
)
def test_json_is_written_in_the_style_of_each_file(style, text, tmp_path):
    write_json(tmp_path / "a.json", {"é": [1]}, **style)
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == text
    assert read_json(tmp_path / "a.json") == {"é": [1]}


def test_numbers_that_json_does_not_have_are_refused_before_the_file_is_touched(tmp_path):
    write_json(tmp_path / "a.json", {"loss": 1.0}, finite=True)
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"loss": float("nan")}, finite=True)
    assert read_json(tmp_path / "a.json") == {"loss": 1.0}


def test_marks_are_those_outside_of_strings():
    text = json.dumps({"a": ["[,", '\\"{', 1], "b": {}})
    assert marks(text.encode()) == b"{[,,],{}}"
    assert marks(b'{"never ends, [') == b"{"


def test_no_file_of_json_is_written_in_another_way():
    source = Path(saccade.__file__).parent
    others = {"embedding", "engine", "explain"}  # these rooms still do
    found = [
        path.relative_to(source)
        for path in source.rglob("*.py")
        if re.search(r"write_text\([^\n]*json\.dumps|json\.dump\(", path.read_text(encoding="utf-8"))
    ]
    assert {path.parts[0] for path in found} <= {"files", *others}, found
