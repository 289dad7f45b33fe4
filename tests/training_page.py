"""The tables of docs/training.md, made from the recipes: `python tests/training_page.py` writes them."""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any

from saccade.recipe import Recipe
from saccade.spellings import TRAIN
from saccade.tasks.classify.probe import Probe
from saccade.tasks.classify.recipe import FEW, MANY, ClassifyRecipe
from saccade.tasks.classify.recipe import default_recipe as classify
from saccade.text.recipe import TextRecipe
from saccade.values import flatten

PAGE = Path(__file__).parents[1] / "docs" / "training.md"
MARKS = re.compile(r"(<!-- ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def documented(kind: type) -> dict[str, str]:
    """The string under each field, of a class and those above it."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if not is_dataclass(each):
            continue
        body = ast.parse(dedent(inspect.getsource(each))).body[0].body  # type: ignore[attr-defined]
        for field, after in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr):
                found[field.target.id] = " ".join(ast.literal_eval(after.value).split())  # type: ignore[union-attr]
    return found


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "`" + ",".join(_text(each).strip("`") for each in value) + "`" if value else "none"
    if isinstance(value, bool):
        return f"`{value}`".lower()
    if isinstance(value, float):
        return f"`{value:.4g}`"
    return f"`{value}`" if value != "" else "none"


def _range(metadata: Any, kind: Any) -> str:
    if "words" in metadata:
        return ", ".join(f"`{word}`" for word in metadata["words"])
    if "range" in metadata:
        low, high = metadata["range"]
        return f"{_number(low)} to {_number(high)}"
    return "`true`, `false`" if kind is bool else "any"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def rows(kind: type, prefix: str = "") -> Iterator[tuple[str, str]]:
    """The name and the line of each field, those of groups too."""
    meant, options = documented(kind), {field: option for option, field in TRAIN.items()}
    for each in fields(kind):
        name = prefix + each.name
        if is_dataclass(each.type):
            yield from rows(each.type, f"{name}.")  # type: ignore[arg-type]
            continue
        words = meant[each.name]
        if name in options and kind is not Probe:
            words += f" Option: `--{options[name]}`."
        type_ = (
            each.type.__name__ if isinstance(each.type, type) and not hasattr(each.type, "__args__") else ""
        )
        type_ = type_ or f"{each.type.__args__[0].__name__}, ..."
        default = _text(getattr(kind(), each.name))
        yield name, f"| `{name}` | {type_} | {default} | {_range(each.metadata, each.type)} | {words} |"


def table(kind: type, without: type | None = None) -> str:
    """The fields of a recipe that another one does not have."""
    known = dict(rows(without)) if without else {}
    lines = [line for name, line in rows(kind) if name not in known]
    return (
        "\n".join(["| field | type | default | allowed | meaning |", "|---|---|---|---|---|", *lines]) + "\n"
    )


def chosen() -> str:
    """What `train` chooses for images, by their number."""
    cases = [
        ("new, under 1,000 images", classify(FEW - 1, False, 224)[0]),
        (f"new, under {MANY:,}", classify(MANY - 1, False, 224)[0]),
        ("new, more", classify(MANY, False, 224)[0]),
        ("weights, under 1,000 images", classify(FEW - 1, True, 224)[0]),
        (f"weights, under {MANY:,}", classify(MANY - 1, True, 224)[0]),
        ("weights, more", classify(MANY, True, 224)[0]),
    ]
    found = [flatten(recipe) for _, recipe in cases]
    plain = flatten(ClassifyRecipe())
    names = [name for name in plain if any(each[name] != plain[name] for each in found)]
    lines = [f"| `{name}` | " + " | ".join(_text(each[name]) for each in found) + " |" for name in names]
    head = "| field | " + " | ".join(title for title, _ in cases) + " |"
    return "\n".join([head, "|---" * (len(cases) + 1) + "|", *lines]) + "\n"


def page(text: str) -> str:
    """The page with its tables made anew."""
    tables = {
        "every-task": lambda: table(Recipe),
        "images": lambda: table(ClassifyRecipe, Recipe),
        "text": lambda: table(TextRecipe, Recipe),
        "probe": lambda: table(Probe),
        "chosen": chosen,
    }
    assert {name for _, name, _ in MARKS.findall(text)} == tables.keys()
    return MARKS.sub(lambda match: f"{match[1]}\n{tables[match[2]]()}\n{match[3]}", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
