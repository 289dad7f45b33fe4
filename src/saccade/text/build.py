"""The model of text that a recipe starts from, with its words: new by name, or somebody's weights."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from saccade.errors import ModelError, UsageError
from saccade.models.text.bert import BERTConfig
from saccade.models.text.captioner import CaptionerConfig
from saccade.models.text.names import Text, TextConfig, build, config, is_text
from saccade.models.text.seq2seq import Seq2SeqConfig
from saccade.models.text.transformer import TransformerConfig
from saccade.processes import Team
from saccade.text.recipe import TextRecipe
from saccade.text.tokenizer_files import vocabulary
from saccade.text.vocabulary import FILE, Vocabulary, learn
from saccade.weights.identify import locate
from saccade.weights.load_text import SOURCE, Spoken, load, task_of

Texts = Callable[[], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Tongue:
    """The vocabularies of what is written and of what is read."""

    target: Vocabulary
    source: Vocabulary | None = None
    """None: the same."""

    @property
    def reads(self) -> Vocabulary:
        """That of what is read."""
        return self.source or self.target

    @property
    def files(self) -> dict[str, str]:
        """What a run folder keeps, by name."""
        more = {} if self.source is None else {SOURCE: self.source.to_json()}
        return {FILE: self.target.to_json(), **more}

    @classmethod
    def of(cls, files: Mapping[str, str]) -> "Tongue":
        """What `files` gave."""
        made = {name: vocabulary({FILE: text.encode()}) for name, text in files.items()}
        return cls(made[FILE], made.get(SOURCE))


def kept(folder: Path) -> Tongue:
    """The vocabularies that a run began with."""
    found = {}
    for name in (FILE, SOURCE):
        if (folder / name).is_file():
            found[name] = (folder / name).read_text(encoding="utf-8")
    if FILE not in found:
        raise ModelError(f"{folder} has no {FILE}, the words that the run began with; start anew")
    return Tongue.of(found)


def learnt(recipe: TextRecipe, team: Team, target: Texts, source: Texts | None = None) -> Tongue:
    """Vocabularies learnt from a text; of several processes, all take the leading one's."""
    words, files = recipe.words, dict[str, str]()
    if team.leads:
        if source is None or words.shared:
            lead = "" if recipe.task == "language" else " "
            files = Tongue(learn(_all(source, target), words.kind, words.size, lead)).files
        else:
            files = Tongue(*(learn(texts(), words.kind, words.size) for texts in (target, source))).files
    return Tongue.of(team.told(files))


def _all(*texts: Texts | None) -> Iterator[str]:
    for some in texts:
        yield from () if some is None else some()


def begin(recipe: TextRecipe, tongue: Tongue | None, learn_it: Callable[[], Tongue]) -> tuple[Spoken, str]:
    """The module and its words, and a sentence on them; `tongue` is what a run that goes on began with."""
    torch.manual_seed(recipe.seed)
    if is_text(recipe.model):
        tongue = tongue or learn_it()
        kind = "characters" if tongue.target.kind == "characters" else "pieces of words"
        made = config(recipe.model, len(tongue.target), len(tongue.reads))
        _check_task(recipe, made)
        if isinstance(made, TransformerConfig) and tongue.source is None:
            made = replace(made, tie="all")
        module = build(_dropping(_learning(made), recipe.dropout))
        told = f"{recipe.model} from scratch, with {len(tongue.target):,} {kind}"
        return Spoken(module, tongue.target, tongue.source), told
    if not Path(recipe.model).exists() and "/" not in recipe.model:
        config(recipe.model)  # no name and no path: refused with the names that are near
    found = load(locate(recipe.model))
    _check_task(recipe, found.module.config)
    module = build(_dropping(_learning(found.module.config), recipe.dropout))
    missing, _ = module.load_state_dict(found.module.state_dict(), strict=False)
    assert all(name.startswith("fill.") for name in missing), missing
    new = " and a new head for hidden words" if missing else ""
    return replace(found, module=module), f"{recipe.model} with its own words{new}"


def _check_task(recipe: TextRecipe, made: TextConfig) -> None:
    if task_of(made) != recipe.task:
        raise UsageError(
            f"the task is {recipe.task}, but {recipe.model} is a model to {task_of(made)}; "
            + ("name a seq2seq or transformer" if recipe.task == "translate" else "name a gpt or bert")
        )


def _learning(made: TextConfig) -> TextConfig:
    """What a run teaches: a BERT to fill, without the summary of a text, which no loss reaches."""
    return replace(made, fills=True, pooled=False, classes=0) if isinstance(made, BERTConfig) else made


def _dropping(made: TextConfig, dropout: float) -> TextConfig:
    """The config with the recipe's dropout."""
    if isinstance(made, Seq2SeqConfig):
        return replace(made, dropout=dropout)
    assert not isinstance(made, CaptionerConfig)
    return replace(made, block=replace(made.block, dropout=dropout))


def blank(module: Text) -> Text:
    """Another module of the same kind and size."""
    return build(module.config)
