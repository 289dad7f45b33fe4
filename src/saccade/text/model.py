"""A text module with its vocabularies, loaded from a folder and saved as one: ours, or Hugging Face's."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saccade.data.image.preprocess import Preprocess
from saccade.errors import ModelError, ResourceError, SaccadeError, UsageError, check_word
from saccade.files.paths import open_file, refusal_at
from saccade.models.build import build, from_json, text_kinds, to_json, undrawn
from saccade.models.text.bert import BERT
from saccade.models.text.gpt import GPT
from saccade.models.text.names import Text, TextConfig
from saccade.models.text.seq2seq import Seq2SeqConfig
from saccade.models.text.transformer import CaptionerConfig, TransformerConfig
from saccade.text.tokenizer_files import vocabulary as read_vocabulary
from saccade.text.vocabulary import FILE, Vocabulary
from saccade.weights.identify import FORMAT, PREPROCESS, TOKENIZER_FILES, Identified, identify
from saccade.weights.layouts import hf_text
from saccade.weights.load import align, check_format, check_input, fill_module, finite
from saccade.weights.save import save_ours
from saccade.wording import printable

SOURCE = "tokenizer.source.json"
LARGEST = 2**26
"""Bytes of a tokenizer file; the largest published ones have half of this."""
LAYOUTS = ("saccade", "hf")
SIDES = ("source", "target")
UNKNOWN = ("<unk>", "[UNK]")


@dataclass(slots=True)
class TextFolder:
    """A text module with everything it needs to predict."""

    module: Text
    vocabulary: Vocabulary
    """Of its output."""
    source: Vocabulary | None = None
    """Of its input, if that is another language."""
    sides: tuple[str, str] = SIDES
    """The names of the two languages of a translation."""
    preprocess: Preprocess | None = None
    """Of the images that a captioner reads."""
    layout: str = "saccade"
    task: str = ""
    """Written to model.json."""

    def __post_init__(self) -> None:
        config = self.module.config
        _check_size(self.vocabulary, _vocabulary(config), "vocabulary")
        if isinstance(config, Seq2SeqConfig | TransformerConfig):
            _check_size(self.reads, config.source, "vocabulary of the source")

    @property
    def reads(self) -> Vocabulary:
        """The vocabulary of its input."""
        return self.source or self.vocabulary

    @property
    def translates(self) -> bool:
        """Whether it turns a text into another one."""
        return isinstance(self.module.config, Seq2SeqConfig | TransformerConfig)


def _vocabulary(config: TextConfig) -> int:
    return config.text.vocabulary if isinstance(config, CaptionerConfig) else config.vocabulary


def _check_size(found: Vocabulary, most: int, what: str) -> None:
    if found.rows > most:
        raise ModelError(
            f"the {what} numbers its entries up to {found.rows:,}, but the model knows {most:,}; "
            "they do not belong together"
        )


def _depth(config: TextConfig) -> int:
    if isinstance(config, CaptionerConfig):
        return config.vit.depth + config.text.depth
    return config.layers if isinstance(config, Seq2SeqConfig) else config.depth


def read_tokenizer(folder: Path, names: Iterable[str] = TOKENIZER_FILES) -> dict[str, bytes]:
    """Return the tokenizer files in a model folder, by name."""
    found = {}
    for name in names:
        if (folder / name).exists():
            with open_file(folder / name) as file:
                found[name] = file.read(LARGEST + 1)
            if len(found[name]) > LARGEST:
                raise ModelError(
                    f"{printable(folder / name)} is over {LARGEST:,} bytes, too large for a tokenizer"
                )
    return found


def _our_vocabulary(folder: Path, name: str) -> Vocabulary:
    found = read_tokenizer(folder, (name,))
    if not found:
        raise ModelError(f"{name}, the vocabulary of the model, is missing; copy it next to the weights")
    return read_vocabulary({FILE: found[name]})


def read_sides(found: object) -> tuple[str, str]:
    """Return the names of the two languages that model.json gives."""
    if found is None:
        return SIDES
    if not isinstance(found, list) or len(found) != 2 or not all(isinstance(word, str) for word in found):
        raise ModelError(
            f"sides is {printable(repr(found), 60)} in model.json; expected the names of two languages"
        )
    return printable(found[0], 40), printable(found[1], 40)


def _ours(found: Identified) -> TextFolder:
    assert found.model is not None
    described = found.model.get("model")
    check_format(printable(found.path), found.model)
    config = from_json(described if isinstance(described, Mapping) else {}, text_kinds())
    if (depth := _depth(config)) > len(found.headers):
        raise ModelError(
            f"the config describes {depth:,} blocks, but the file has {len(found.headers):,} tensors"
        )
    module = fill_module(found, undrawn(lambda: build(config)))
    preprocess = None if found.preprocess is None else Preprocess.from_json(found.preprocess)
    if isinstance(config, CaptionerConfig):
        if preprocess is None:
            raise ModelError(
                f"{PREPROCESS} is missing, which says how a captioner reads images; save the model again"
            )
        check_input(preprocess, config.vit)
    folder = found.folder
    source = _our_vocabulary(folder, SOURCE) if (folder / SOURCE).exists() else None
    sides = read_sides(found.model.get("sides"))
    return TextFolder(module, _our_vocabulary(folder, FILE), source, sides, preprocess, task=found.task)


def _theirs(found: Identified) -> TextFolder:
    module = hf_text.read(found)
    finite(printable(found.folder), dict(module.state_dict()))
    module.requires_grad_(True)
    return TextFolder(module, read_vocabulary(read_tokenizer(found.folder)), layout="hf")


def load_text(source: Path | Identified, task: str = "") -> TextFolder:
    """Load a text model: a saccade folder, or Hugging Face's GPT-2 or BERT with its tokenizer.

    Args:
        task: What it is used for; by default the task that its folder names.
    """
    found = identify(source) if isinstance(source, Path) else source
    found.check_text()
    try:
        loaded = _ours(found) if found.model is not None else _theirs(found)
    except ResourceError:
        raise
    except (SaccadeError, ValueError) as error:
        raise refusal_at(printable(found.folder), error) from error
    align(loaded.module)
    loaded.module.eval()
    loaded.task = task or loaded.task
    return loaded


def save_text(folder: Path, model: TextFolder, layout: str = "saccade") -> None:
    """Write the folder that `load_text` reads; `layout` may be hf for a GPT or BERT."""
    check_word("layout", layout, LAYOUTS)
    if layout == "hf":
        if not isinstance(model.module, GPT | BERT):
            kind = type(model.module).__name__
            raise UsageError(f"Hugging Face's layout is read and written for GPT and BERT, not for a {kind}")
        hf_text.write(folder, model.module, _their_files(model.vocabulary))
        return
    files: dict[str, Any] = {FILE: model.vocabulary.to_json()}
    if model.source is not None:
        files[SOURCE] = model.source.to_json()
    if model.preprocess is not None:
        files[PREPROCESS] = model.preprocess.to_json()
    described: dict[str, Any] = {"format": FORMAT, **({"task": model.task} if model.task else {})}
    described["model"] = to_json(model.module.config)
    if model.translates:
        described["sides"] = list(model.sides)
    save_ours(folder, model.module, files, described)


def _their_files(vocabulary: Vocabulary) -> dict[str, bytes]:
    """Return the files that Hugging Face's readers need for a tokenizer, by name."""
    numbers = {"bos": vocabulary.bos, "eos": vocabulary.eos, "pad": vocabulary.pad, "mask": vocabulary.mask}
    known = vocabulary.tokenizer
    numbers["unk"] = next((n for w in UNKNOWN if (n := known.token_to_id(w)) is not None), -1)
    marks = {f"{name}_token": known.id_to_token(number) for name, number in numbers.items() if number >= 0}
    side = {"tokenizer_class": "PreTrainedTokenizerFast", **marks}
    described = json.loads(vocabulary.to_json())
    if type(vocabulary) is Vocabulary and vocabulary.kind == "pairs":  # ours puts a space there
        described["pre_tokenizer"]["add_prefix_space"] = True
    return {FILE: _json(described), "tokenizer_config.json": _json(side)}


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
