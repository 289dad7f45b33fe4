"""Models of text as folders: weights, config, vocabularies; ours, or Hugging Face's GPT-2 and BERT."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saccade.data.image.preprocess import Preprocess
from saccade.errors import ModelError, ResourceError, SaccadeError, UsageError, check_word
from saccade.files.paths import shown
from saccade.models.blank import undrawn
from saccade.models.text.bert import BERT
from saccade.models.text.captioner import CaptionerConfig
from saccade.models.text.gpt import GPT
from saccade.models.text.names import Text, TextConfig, build, from_json, to_json
from saccade.models.text.seq2seq import Seq2SeqConfig
from saccade.models.text.transformer import TransformerConfig
from saccade.text.tokenizer_files import vocabulary as read_vocabulary
from saccade.text.vocabulary import FILE, Vocabulary
from saccade.weights.formats import tensors as files
from saccade.weights.identify import OURS, PREPROCESS, Found, look
from saccade.weights.layouts import hf_text
from saccade.weights.layouts.rules import examine, state
from saccade.weights.load import FORMAT, check_format, fill, finite

SOURCE = "tokenizer.source.json"
LAYOUTS = ("saccade", "hf")
SIDES = ("source", "target")
UNKNOWN = ("<unk>", "[UNK]")
ALIGNED = 64
"""Bytes: torch's own memory begins at multiples of this."""


@dataclass(slots=True)
class Spoken:
    """A module of text with all that it needs to answer."""

    module: Text
    vocabulary: Vocabulary
    """Of what it writes."""
    source: Vocabulary | None = None
    """Of what it reads, where that is another language."""
    sides: tuple[str, str] = SIDES
    """What the two languages of a translation are called."""
    preprocess: Preprocess | None = None
    """Of the pictures that a captioner sees."""
    layout: str = "saccade"

    def __post_init__(self) -> None:
        config = self.module.config
        _check_size(self.vocabulary, _vocabulary(config), "vocabulary")
        if isinstance(config, Seq2SeqConfig | TransformerConfig):
            _check_size(self.reads, config.source, "vocabulary of the source")

    @property
    def reads(self) -> Vocabulary:
        """The vocabulary of what it is given."""
        return self.source or self.vocabulary

    @property
    def task(self) -> str:
        """What one asks of it."""
        return task_of(self.module.config)


def task_of(config: TextConfig) -> str:
    """translate (from text), caption (from pictures) or language."""
    if isinstance(config, CaptionerConfig):
        return "caption"
    return "translate" if isinstance(config, Seq2SeqConfig | TransformerConfig) else "language"


def _vocabulary(config: TextConfig) -> int:
    return config.text.vocabulary if isinstance(config, CaptionerConfig) else config.vocabulary


def _check_size(found: Vocabulary, most: int, what: str) -> None:
    if len(found) > most:
        raise ModelError(
            f"the {what} has {len(found):,} entries, but the model knows {most:,}; "
            "they do not belong together"
        )


def load(path: Path) -> Spoken:
    """Load a folder of text: one of ours, or a GPT-2 or BERT of Hugging Face's with its tokenizer."""
    found = look(path)
    found.check_text()
    folder = found.path if found.path.is_dir() else found.path.parent
    try:
        loaded = _ours(found, folder) if found.model is not None else _theirs(folder)
    except ResourceError:
        raise
    except (SaccadeError, ValueError) as error:
        where = shown(folder)
        raise ModelError(str(error) if where in str(error) else f"{where}: {error}") from error
    settle(loaded.module)
    loaded.module.eval()
    return loaded


def settle(module: Text) -> None:
    """Copy what a mapped file has at addresses where torch would put nothing.

    A matrix product is rounded by where its factors lie in memory; from the same addresses a folder answers
    what the module that was written answered, to the last bit.
    """
    for parameter in module.parameters():
        if parameter.data_ptr() % ALIGNED:
            parameter.data = parameter.data.clone()


def _ours(found: Found, folder: Path) -> Spoken:
    assert found.model is not None
    where, described = shown(found.path), found.model.get("model")
    check_format(where, found.model)
    config = from_json(described if isinstance(described, Mapping) else {})
    if found.task != task_of(config):
        raise ModelError(f"model.json says task {found.task!r}, but its model is one of {task_of(config)}")
    if (depth := _depth(config)) > len(found.headers):
        raise ModelError(
            f"the config describes {depth:,} blocks, but the file has {len(found.headers):,} tensors"
        )
    module = undrawn(lambda: build(config))
    expected = {name: tuple(tensor.shape) for name, tensor in state(module).items()}
    examine(where, expected, {name: header.shape for name, header in found.headers.items()})
    fill(module, finite(where, files.tensors(found.path)))
    preprocess = None if found.preprocess is None else Preprocess.from_json(found.preprocess)
    if isinstance(config, CaptionerConfig) and preprocess is None:
        raise ModelError(f"there is no {PREPROCESS}, which says how a captioner sees pictures; save it again")
    source = _opened(folder, SOURCE) if (folder / SOURCE).is_file() else None
    return Spoken(module, _opened(folder, FILE), source, _sides(found.model.get("sides")), preprocess)


def _depth(config: TextConfig) -> int:
    if isinstance(config, CaptionerConfig):
        return config.vit.depth + config.text.depth
    return config.layers if isinstance(config, Seq2SeqConfig) else config.depth


def _opened(folder: Path, name: str) -> Vocabulary:
    found = hf_text.read_tokenizer(folder, (name,))
    if not found:
        raise ModelError(
            f"there is no {name}, which holds the words of the model; copy it beside the weights"
        )
    return read_vocabulary({FILE: found[name]})


def _sides(found: object) -> tuple[str, str]:
    if found is None:
        return SIDES
    if not isinstance(found, list) or len(found) != 2 or not all(isinstance(word, str) for word in found):
        raise ModelError(
            f"sides is {shown(repr(found), 60)} in model.json; expected the names of two languages"
        )
    return shown(found[0], 40), shown(found[1], 40)


def _theirs(folder: Path) -> Spoken:
    found = hf_text.read(folder)
    finite(shown(folder), dict(found.module.state_dict()))
    found.module.requires_grad_(True)
    return Spoken(found.module, read_vocabulary(found.tokenizer), layout="hf")


def write(folder: Path, spoken: Spoken, layout: str = "saccade") -> None:
    """Write the folder that `load` reads; `layout` may be hf for a GPT or BERT."""
    check_word("layout", layout, LAYOUTS)
    if layout == "hf":
        if not isinstance(spoken.module, GPT | BERT):
            kind = type(spoken.module).__name__
            raise UsageError(f"Hugging Face's layout is read and written for GPT and BERT, not for a {kind}")
        hf_text.write(folder, spoken.module, _their_files(spoken.vocabulary))
        return
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu() for name, tensor in state(spoken.module).items()}
    files.write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
    files.write_text(folder / FILE, spoken.vocabulary.to_json())
    if spoken.source is not None:
        files.write_text(folder / SOURCE, spoken.source.to_json())
    if spoken.preprocess is not None:
        files.write_text(folder / PREPROCESS, _json(spoken.preprocess.to_json()))
    described: dict[str, Any] = {
        "format": FORMAT,
        "task": spoken.task,
        "model": to_json(spoken.module.config),
    }
    if spoken.task == "translate":
        described["sides"] = list(spoken.sides)
    files.write_text(folder / OURS, _json(described))


def _their_files(vocabulary: Vocabulary) -> dict[str, bytes]:
    """What Hugging Face's readers need to know of a tokenizer, beside its tokenizer.json."""
    numbers = {"bos": vocabulary.bos, "eos": vocabulary.eos, "pad": vocabulary.pad, "mask": vocabulary.mask}
    known = vocabulary.tokenizer
    numbers["unk"] = next((n for w in UNKNOWN if (n := known.token_to_id(w)) is not None), -1)
    marks = {f"{name}_token": known.id_to_token(number) for name, number in numbers.items() if number >= 0}
    side = {"tokenizer_class": "PreTrainedTokenizerFast", **marks}
    told = json.loads(vocabulary.to_json())
    if type(vocabulary) is Vocabulary and vocabulary.kind == "pairs":  # ours puts a space there
        told["pre_tokenizer"]["add_prefix_space"] = True
    return {FILE: _json(told).encode(), "tokenizer_config.json": _json(side).encode()}


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
