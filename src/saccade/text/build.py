"""The text model that a recipe starts from, with its vocabularies: new by name, or existing weights."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from saccade.errors import ModelError, UsageError
from saccade.models.build import build, from_json, text_kinds, to_json
from saccade.models.names import is_text
from saccade.models.text.bert import BERTConfig
from saccade.models.text.names import TextConfig, text_config
from saccade.models.text.seq2seq import Seq2SeqConfig
from saccade.models.text.transformer import CaptionerConfig, TransformerConfig
from saccade.processes import Team
from saccade.task import START, read_start
from saccade.text.model import SOURCE, TextFolder, load_text
from saccade.text.recipe import TextRecipe, VocabularySettings
from saccade.text.tokenizer_files import vocabulary
from saccade.text.vocabulary import FILE, Vocabulary, learn
from saccade.weights.identify import locate

Texts = Callable[[], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Vocabularies:
    """The vocabularies of what a model writes and of what it reads."""

    target: Vocabulary
    source: Vocabulary | None = None
    """None: the same."""

    @property
    def reads(self) -> Vocabulary:
        """Return the vocabulary of what is read."""
        return self.source or self.target

    @property
    def files(self) -> dict[str, str]:
        """Return the files of a run folder, by name."""
        more = {} if self.source is None else {SOURCE: self.source.to_json()}
        return {FILE: self.target.to_json(), **more}

    def kept(self, model: TextFolder) -> dict[str, str]:
        """Return what a run needs to resume without its start weights, as text by file name."""
        return {**self.files, START: json.dumps({"model": to_json(model.module.config)}, indent=1)}

    @classmethod
    def of(cls, files: Mapping[str, str]) -> "Vocabularies":
        """Read what `files` returned."""
        made = {name: vocabulary({FILE: text.encode()}) for name, text in files.items()}
        return cls(made[FILE], made.get(SOURCE))


def kept_vocabularies(folder: Path | None) -> Vocabularies | None:
    """Return the vocabularies that a run started with."""
    if folder is None:
        return None
    found = {}
    for name in (FILE, SOURCE):
        if (folder / name).is_file():
            found[name] = (folder / name).read_text(encoding="utf-8")
    if FILE not in found:
        raise ModelError(f"{folder} has no {FILE}, the vocabulary that the run started with; start a new run")
    return Vocabularies.of(found)


def learn_vocabularies(
    words: VocabularySettings, team: Team, target: Texts, source: Texts | None = None, lead: str = " "
) -> Vocabularies:
    """Learn vocabularies from text; all processes use those of the leading one.

    Args:
        lead: What comes before the first word of a text.
    """
    files = dict[str, str]()
    if team.leads:
        if source is None or words.shared:
            files = Vocabularies(learn(_all(source, target), words.kind, words.size, lead)).files
        else:
            files = Vocabularies(
                *(learn(texts(), words.kind, words.size) for texts in (target, source))
            ).files
    return Vocabularies.of(team.broadcast(files))


def _all(*texts: Texts | None) -> Iterator[str]:
    for some in texts:
        yield from () if some is None else some()


def start_model(
    recipe: TextRecipe,
    resume: Path | None,
    learn_it: Callable[[], Vocabularies],
    kinds: tuple[type, ...],
) -> tuple[TextFolder, str]:
    """Return the model and a sentence about it; `resume` is the folder of a run that resumes.

    Args:
        kinds: The configs of the models that the task can train.
    """
    known = kept_vocabularies(resume)
    torch.manual_seed(recipe.seed)
    if is_text(recipe.model):
        words = known or learn_it()
        kind = "characters" if words.target.kind == "characters" else "pieces of words"
        made = text_config(recipe.model, len(words.target), len(words.reads))
        _check_kind(recipe, made, kinds)
        if isinstance(made, TransformerConfig) and words.source is None:
            made = replace(made, tie="all")
        module = build(_dropping(_learning(made), recipe.dropout))
        summary = f"{recipe.model} from scratch, with {len(words.target):,} {kind}"
        return TextFolder(module, words.target, words.source, task=recipe.task), summary
    if known is not None and (kept := read_start(resume)) is not None:
        module = build(from_json(kept["model"], text_kinds()))
        return TextFolder(module, known.target, known.source, task=recipe.task), ""
    if not Path(recipe.model).exists() and "/" not in recipe.model:
        text_config(recipe.model)  # neither a name nor a path: refused with similar names
    found = load_text(locate(recipe.model))
    _check_kind(recipe, found.module.config, kinds)
    module = build(_dropping(_learning(found.module.config), recipe.dropout))
    missing, _ = module.load_state_dict(found.module.state_dict(), strict=False)
    assert all(name.startswith("fill.") for name in missing), missing
    new = " and a new head for hidden words" if missing else ""
    return replace(found, module=module, task=recipe.task), f"{recipe.model} with its own vocabulary{new}"


def _name(kind: type) -> str:
    return kind.__name__.removesuffix("Config").lower()


def _check_kind(recipe: TextRecipe, made: TextConfig, kinds: tuple[type, ...]) -> None:
    if not isinstance(made, kinds):
        names = " or ".join(_name(known) for known in kinds)
        kind = _name(type(made))
        raise UsageError(
            f"{recipe.model} is a {kind}, which cannot be trained for the task {recipe.task}; name a {names}"
        )


def _learning(made: TextConfig) -> TextConfig:
    """Return the config to train: a BERT that fills, without the summary of a text, which no loss reaches."""
    return replace(made, fills=True, pooled=False, classes=0) if isinstance(made, BERTConfig) else made


def _dropping(made: TextConfig, dropout: float) -> TextConfig:
    """Return the config with the recipe's dropout."""
    if isinstance(made, Seq2SeqConfig):
        return replace(made, dropout=dropout)
    assert not isinstance(made, CaptionerConfig)
    return replace(made, block=replace(made.block, dropout=dropout))
