"""The documents: links lead somewhere, commands parse, and the table of models is what the code counts."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import training_page
import typer.main

from saccade.cli import app
from saccade.data import class_names as class_names
from saccade.data.image import decode, limits, preprocess
from saccade.errors import UsageError
from saccade.files import strict_json
from saccade.hub import connection, fetch, listing
from saccade.models import names, resnet, vit
from saccade.models.cost import describe, describe_text
from saccade.models.text import names as text
from saccade.nn import block, norm, pool, position_kinds, resample
from saccade.recipe import override, read_recipe
from saccade.tasks.classify.probe import Probe
from saccade.tasks.classify.recipe import ClassifyRecipe
from saccade.text import tokenizer_json
from saccade.text.recipe import TextRecipe
from saccade.values import flatten
from saccade.weights.formats import npz, safetensors
from saccade.weights.formats import zip as archive
from saccade.weights.formats.pickle import child, convert, machine
from saccade.weights.layouts import hf_text
from saccade.weights.pretrained import PRETRAINED

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(path.relative_to(ROOT) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
PAGES = [path.relative_to("docs") for path in DOCUMENTS if path.parts[0] == "docs"]
COMMANDS = typer.main.get_command(app.build_app()).commands  # type: ignore[attr-defined]
VERBS = sorted(COMMANDS)
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


def page(verb: str) -> str:
    return (ROOT / "docs" / "verbs" / f"{verb}.md").read_text(encoding="utf-8")


def navigation() -> list[str]:
    """Every page that the navigation of the site names, in its order."""
    site = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    found: list[str] = []

    def walk(entry: object) -> None:
        if isinstance(entry, str):
            found.append(entry)
        else:
            for each in entry.values() if isinstance(entry, dict) else entry:
                walk(each)

    walk(site["project"]["nav"])
    return found


def quoted_commands(document: Path) -> list[str]:
    """Every `saccade VERB ...` in a block of shell commands or in backticks."""
    text = (ROOT / document).read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:sh)?\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    lines += re.findall(r"`(saccade [a-z][^`]*)`", plain(document).replace("\n", " "))
    found = [re.search(r"(?:^|-m )(saccade [a-z]+ .*)", line) for line in lines]
    return [each[1] for each in found if each]


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_every_command_quoted_parses(document):
    for line in quoted_commands(document):
        _, verb, *words = shlex.split(line, comments=True)
        if "..." in words:  # a form, not a command
            continue
        assert verb in COMMANDS, line
        try:
            COMMANDS[verb].make_context(verb, list(words))
        except Exception as error:  # typer brings its own copy of click's exceptions
            pytest.fail(f"{line}: {error!r}")


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_every_import_quoted_works(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    for code in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        for line in re.findall(r"^(?:from saccade|import saccade).*$", code, re.MULTILINE):
            exec(line, {})


def test_the_table_of_pretrained_weights_is_that_of_the_code():
    listed = [line for line in MODELS.splitlines() if re.match(r"\| `\w+\.\w+` \|", line)]
    assert listed == [
        f"| `{name}` | {known.parameters:,} | {known.megabytes:g} | {known.image} | {known.licence} "
        f"| {known.trained_on} | `{known.hub}` |"
        for name, known in PRETRAINED.items()
    ]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_page_with_a_command_and_all_of_its_options(verb):
    text = page(verb)
    assert text.startswith(f"# {verb}: ")
    assert re.search(rf"^```sh\n(?:.*\n)*?saccade {verb}\b", text, re.MULTILINE)
    told = set(re.findall(r"^\| `(--[a-z0-9-]+)` \|", text, re.MULTILINE))
    options = {opt for param in COMMANDS[verb].params for opt in param.opts if opt.startswith("--")}
    assert told == options - {"--help"}


@pytest.mark.parametrize("verb", VERBS)
def test_a_page_names_no_option_that_its_verb_does_not_have(verb):
    known = {opt for param in COMMANDS[verb].params for opt in param.opts}
    assert set(re.findall(r"`(--[a-z0-9-]+)", page(verb))) <= known


def test_the_page_of_recipes_lists_every_field_as_it_is():
    text = training_page.PAGE.read_text(encoding="utf-8")
    assert training_page.page(text) == text, "run `python tests/training_page.py`"


@pytest.mark.parametrize("recipe", [ClassifyRecipe, TextRecipe, Probe])
def test_every_field_of_a_recipe_has_a_line(recipe):
    text = training_page.PAGE.read_text(encoding="utf-8")
    assert flatten(recipe()).keys() <= set(re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE))


def test_every_page_is_in_the_navigation_once():
    found = navigation()
    assert len(found) == len(set(found))
    # of the decisions the first is enough: it lists all others
    pages = {str(path) for path in PAGES if path.parts[0] != "decisions" or path.name.startswith("0001")}
    assert set(found) == pages


def test_the_index_links_every_verb():
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\]\(verbs/(\w+)\.md\)", text)) == VERBS


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_fetches_nothing(tmp_path):
    if find_spec("zensical") is None:
        pytest.skip("zensical is not installed; run `pip install 'saccade[docs]'`")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    offline = {**os.environ, "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    build = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(
        build, cwd=tmp_path, env=offline, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in navigation():
        html = (tmp_path / "site" / name).with_suffix(".html").read_text(encoding="utf-8")
        assert not re.search(r"<(?:script|link|img)[^>]*(?:src|href)=\"https?:", html), name


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


@pytest.mark.parametrize("kind", [*position_kinds.KINDS, *pool.KINDS, *resample.WAYS, *norm.KINDS])
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
        *(
            strict_json.LIMIT,
            strict_json.DEPTH,
            strict_json.CONTAINERS,
            safetensors.TENSORS,
            safetensors.RANK,
        ),
        *(npz.RATIO, archive.ENTRIES, archive.DIRECTORY, machine.OPERATIONS, machine.TAKEN),
        *(child.SECONDS, convert.PATIENCE, npz.HEADER, strict_json.VALUES),
        *(limits.SCANS, limits.WORK, limits.CHUNKS, limits.TAGS, limits.VALUES, limits.READS, limits.SLOW),
        *(decode.PIXELS, decode.SIDE, preprocess.TOKENS, class_names.LONGEST, app.LONGEST),
        *(tokenizer_json.ENTRIES, tokenizer_json.ADDED, tokenizer_json.GROWTH),
        *(listing.LIMIT, connection.LEAST, connection.REDIRECTS, fetch.LISTING_SECONDS, connection.SPELL),
    ]
    for number in told:
        assert f"{number:,}".removesuffix(".0") in text, number
    assert limits.HEADER == 20e6
    assert "20 MB" in text
    assert npz.TOTAL == 64 * 2**30
    assert "64 GiB" in text
    assert child.room(0) == npz.SLACK == 64 * 2**20
    assert hf_text.LARGEST == 64 * 2**20
    assert text.count("64 MiB") == 4


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda path: path.name)
def test_every_recipe_sets_fields_that_there_are_and_tells_what_it_reached(path):
    found = read_recipe(path)
    made = TextRecipe() if any(word.startswith("task=") for word in found) else ClassifyRecipe()
    recipe = override(made, found)
    assert text.text_config(recipe.model) if isinstance(recipe, TextRecipe) else names.config(recipe.model)
    first = path.read_text(encoding="utf-8").splitlines()[:6]
    assert any(re.search(r"Reached: .*(\d\d\.\d+%|\d\d\.\d BLEU|loss of \d\.\d+)", line) for line in first)
    assert any("saccade train" in line for line in first)
