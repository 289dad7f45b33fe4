"""The documents: links lead somewhere, and the table of models is what the code counts."""

import re
from pathlib import Path

import pytest

from saccade.errors import UsageError
from saccade.files import strict_json as strictjson
from saccade.models import names, resnet, vit
from saccade.models.cost import describe, describe_text
from saccade.models.text import names as text
from saccade.nn import block, norm, pool, resample
from saccade.nn import position_kinds as place
from saccade.recipe import Recipe, override, read
from saccade.text.recipe import TextRecipe
from saccade.weights.formats import npz
from saccade.weights.formats import safetensors as safe
from saccade.weights.formats import zip as archive
from saccade.weights.formats.pickle import child
from saccade.weights.formats.pickle import convert as unpickle
from saccade.weights.formats.pickle import machine as pickled

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    path.relative_to(ROOT) for folder in (ROOT, ROOT / "docs") for path in folder.glob("*.md")
) + sorted(path.relative_to(ROOT) for path in (ROOT / "docs" / "decisions").glob("*.md"))
MODELS = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
COLUMNS = ("name", "image", "patch", "layers", "width", "hidden", "heads", "tokens", "params", "macs")


def plain(document: Path) -> str:
    """The text without its blocks of code."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(document: Path) -> set[str]:
    """The names that GitHub gives to the headings."""
    headings = re.findall(r"^#+ (.+)$", plain(document), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_every_link_leads_somewhere(document):
    for target in re.findall(r"\]\(([^)\s]+)\)", plain(document)):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / document).parent / path if path else ROOT / document
        assert file.exists(), target
        assert not anchor or anchor in anchors(file.resolve().relative_to(ROOT)), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_every_test_and_file_named_exists(document):
    text = plain(document)
    for name in re.findall(r"`(test_\w+)`", text):
        assert any(f"def {name}(" in path.read_text() for path in (ROOT / "tests").rglob("test_*.py")), name
    for name in re.findall(r"`((?:src|tests|docs|benchmarks)/[\w./-]+\.\w+)`", text):
        assert (ROOT / name).exists(), name


def test_decisions_are_numbered_without_gaps_and_have_one_form():
    decisions = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(path.name[:4]) for path in decisions] == list(range(1, len(decisions) + 1))
    for path in decisions:
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"], path


def test_no_link_of_the_readme_misses_a_decision():
    first = (ROOT / "docs" / "decisions" / "0001-rooms.md").read_text(encoding="utf-8")
    for path in sorted((ROOT / "docs" / "decisions").glob("*.md"))[1:]:
        assert f"({path.name})" in first, f"0001-rooms.md does not list {path.name}"


def row(name: str) -> str:
    """One line of the table in docs/models.md."""
    told = describe(name)
    cells = [f"`{name}`"] + [_shown(column, told[column]) for column in COLUMNS[1:]]
    return f"| {' | '.join(cells)} |"


def _shown(column: str, value: object) -> str:
    if value is None:
        return "–"
    if column == "macs":
        return f"{int(str(value)) / 1e9:.2f} G"
    return f"{value:,}" if isinstance(value, int) else str(value)


@pytest.mark.parametrize("name", names.EXAMPLES)
def test_the_table_says_what_the_code_counts(name):
    assert row(name) in MODELS.splitlines()


def test_the_table_has_a_row_for_each_name_and_no_other():
    assert tuple(re.findall(r"^\| `(\w+)` \|(?:[^|\n]*\|){9}$", MODELS, re.MULTILINE)) == names.EXAMPLES


TEXT_COLUMNS = ("name", "layers", "width", "hidden", "heads", "vocabulary", "context", "params")


@pytest.mark.parametrize("name", text.EXAMPLES)
def test_the_table_of_models_of_text_says_what_the_code_counts(name):
    told = describe_text(name)
    cells = [f"`{name}`"] + [_shown(column, told[column]) for column in TEXT_COLUMNS[1:]]
    assert f"| {' | '.join(cells)} |" in MODELS.splitlines()


@pytest.mark.parametrize("kind", [*place.KINDS, *pool.KINDS, *resample.WAYS, *norm.KINDS])
def test_every_choice_is_explained(kind):
    assert f"`{kind}`" in MODELS


@pytest.mark.parametrize("config", [vit.ViTConfig, block.BlockStyle, resnet.ResNetConfig])
def test_every_field_is_explained(config):
    for field in config.__dataclass_fields__:
        assert f"`{field}`" in MODELS, field


@pytest.mark.parametrize("name", re.findall(r"`((?:r\d*_)?(?:vit|deit|dinov2|resnet)_?\w+)`", MODELS))
def test_every_name_told_is_a_name(name):
    names.config(name)


def test_the_name_told_to_be_wrong_is_wrong():
    assert '`create("vit_b_16")`' in MODELS
    with pytest.raises(UsageError, match="did you mean 'vit_b16'"):
        names.config("vit_b_16")


def test_the_limits_told_are_those_of_the_code():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    told = [
        *(strictjson.LIMIT, strictjson.DEPTH, strictjson.CONTAINERS, safe.TENSORS, safe.RANK),
        *(npz.RATIO, archive.ENTRIES, archive.DIRECTORY, pickled.OPERATIONS, pickled.TAKEN),
        *(child.SECONDS, unpickle.PATIENCE, npz.HEADER),
    ]
    for number in told:
        assert f"{number:,}" in text, number
    assert npz.TOTAL == 64 * 2**30
    assert "64 GiB" in text
    assert child.room(0) == npz.SLACK == 64 * 2**20
    assert text.count("64 MiB") == 2


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda path: path.name)
def test_every_recipe_sets_fields_that_there_are_and_tells_what_it_reached(path):
    found = read(path)
    made = TextRecipe() if any(word.startswith("task=") for word in found) else Recipe()
    recipe = override(made, found)
    assert text.config(recipe.model) if isinstance(recipe, TextRecipe) else names.config(recipe.model)
    first = path.read_text(encoding="utf-8").splitlines()[:6]
    assert any(re.search(r"Reached: .*(\d\d\.\d+ %|\d\d\.\d BLEU|loss of \d\.\d+)", line) for line in first)
    assert any("saccade train" in line for line in first)
