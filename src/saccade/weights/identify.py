"""Identify what is at a path, once, before any of it is trusted and before torch is imported."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saccade.data.class_names import name_labels
from saccade.errors import ModelError, SaccadeError, did_you_mean
from saccade.files.paths import open_file
from saccade.files.strict_json import read_json
from saccade.spellings import MODEL_WANTED, near_hub_id, why_no_model
from saccade.weights.formats.safetensors import Header
from saccade.weights.formats.tensors import headers
from saccade.wording import printable, some

OURS, PREPROCESS, LABELS = "model.json", "preprocess.json", "labels.txt"
LINEAGE = "lineage"
"""The key of what weights were made from, in model.json and data.json; see `saccade.weights.lineage`."""
FORMAT = 1
THEIRS = ("config.json", "preprocessor_config.json")
TOKENIZER_FILES = (
    "tokenizer.json", "vocab.txt", "vocab.json", "merges.txt",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip
"""The files of a tokenizer beside Hugging Face's text models."""
FILES = {".npz", ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".onnx", ".h5", ".gguf"}
CODE = ("auto_map", "trust_remote_code", "custom_pipelines")
MOST_LABELS = 2**20
TEXT_KINDS = ("seq2seq", "transformer", "captioner", "gpt", "bert")
"""The kinds of text models, as model.json names them."""
WORDS = ("wte.weight", "embeddings.word_embeddings.weight")
"""The word embeddings of GPT-2 and BERT, a prefix aside."""


@dataclass(frozen=True, slots=True)
class Identified:
    """The headers of the tensors and the files beside them; nothing here is trusted yet."""

    path: Path
    """The file or folder that holds the weights, or the exported folder."""
    headers: dict[str, Header]
    """Empty for an exported graph."""
    model: dict[str, Any] | None = None
    """The model.json of a saccade folder."""
    preprocess: dict[str, Any] | None = None
    side: dict[str, Any] = field(default_factory=dict)
    """Their config.json and preprocessor_config.json, as one."""
    labels: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """The folder with the files beside the weights."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def exported(self) -> bool:
        """Whether `saccade export` wrote it; saccade.engine.exported reads the rest."""
        return self.model is not None and "export" in self.model

    @property
    def code(self) -> list[str]:
        """The entries by which a config asks to run its author's code; it is never run."""
        return [name for name in CODE if self.side.get(name)]

    @property
    def task(self) -> str:
        """The task in model.json; empty if it names none, or for other people's weights."""
        return "" if self.model is None else str(self.model.get("task", ""))

    @property
    def kind(self) -> str:
        """The kind of model in model.json, such as vit."""
        described = {} if self.model is None else self.model.get("model")
        return str(described.get("kind", "")) if isinstance(described, dict) else ""

    @property
    def text(self) -> bool:
        """Whether it is a text model, which saccade.text.model loads."""
        if self.model is not None:
            return self.kind in TEXT_KINDS or not (self.kind or self.preprocess or self.exported)
        return any(name.endswith(WORDS) for name in self.headers)

    def check_weights(self) -> None:
        """Refuse an exported graph where weights are needed."""
        if self.exported:
            raise ModelError(
                f"{printable(self.path)} is an exported graph; predict, evaluate, bench and doctor can read "
                f"it; for anything else give the run that it was exported from"
            )

    def check_images(self) -> None:
        """Refuse anything but the weights of an image model."""
        self.check_weights()
        if self.text:
            raise ModelError(
                f"{printable(self.path)} is a text model; expected an image model; "
                f"use saccade translate, complete or fill"
            )

    def check_text(self) -> None:
        """Refuse anything but the weights of a text model."""
        self.check_weights()
        if not self.text:
            raise ModelError(
                f"{printable(self.path)} is an image model; expected a text model, such as `saccade train "
                f"pairs.tsv --task translate` makes; use saccade predict"
            )


def locate(word: str | Path) -> Path:
    """Return the path of a model: the word itself if it exists, else the cached copy of the hub's model."""
    path, text = Path(word), str(word)
    try:
        if text and path.exists():
            return path
    except (OSError, ValueError) as error:  # too long a name, a folder without permission, a NUL
        words = getattr(error, "strerror", None) or error
        raise ModelError(f"{printable(text)!r} cannot be a model ({words}); check the spelling") from error
    from saccade.weights.pretrained import find_pretrained, suggest_pretrained

    if (folder := find_pretrained(text)) is not None:
        return folder
    named = "." in text and suggest_pretrained(text)  # vit_ti16.augre is no architecture
    if not named and (words := why_no_model(printable(text))):
        raise ModelError(words + _near(path))
    prefixed = text.startswith(("hf:", "hf-hub:", "hf_hub:"))
    if not prefixed and (
        isinstance(word, Path)
        or text.count("/") != 1
        or path.suffix in FILES
        or path.parent.is_dir()  # runs/dmo is a typo, not a name on the hub
    ):
        near = suggest_pretrained(text) or _near(path)
        raise ModelError(
            f"no model found at {printable(text)!r}{near}; expected {MODEL_WANTED} (write "
            f"hf:owner/name if you have a folder called owner)"
        )
    from saccade.hub.fetch import fetch

    try:
        return fetch(text)
    except ModelError as error:
        raise ModelError(f"{error}{near_hub_id(text)}") from error


def _near(path: Path) -> str:
    """Return a hint at the name nearest to a path that does not exist."""
    try:
        beside = [p.name for p in path.parent.iterdir() if p.is_dir() or p.suffix in FILES]
    except OSError:
        return ""
    return did_you_mean(path.name, beside, show=lambda name: repr(printable(path.parent / name)), lead=", ")


def weights_in(path: Path) -> Path:
    """Return the weight file that a path means: itself, or a folder's only .npz or pickle."""
    if not path.is_dir() or any(path.glob("*.safetensors*")):
        return path
    arrays = sorted(path.glob("*.npz"))
    pickles = sorted(p for ending in ("*.bin", "*.pt", "*.pth") for p in path.glob(ending))
    if len(arrays) == 1:
        return arrays[0]
    return pickles[0] if len(pickles) == 1 and not arrays else path


def identify(path: Path) -> Identified:
    """Examine a model folder, timm's or Hugging Face's, or a single file, and refuse what is damaged."""
    folder, model = path if path.is_dir() else path.parent, None
    if folder == path and (folder / OURS).exists():  # true for a pipe too, which is refused
        model = read_json(folder / OURS)
        if "export" in model:
            return Identified(path, {}, model)
    path = weights_in(path)
    try:
        found = headers(path)
    except ModelError as error:
        raise ModelError(_other_than_model(path) or str(error)) from error
    alone = path.is_file() and path.name not in ("model.safetensors", *_names(folder))
    if alone and not (folder / "config.json").exists():
        return Identified(path, found)
    if model is None and not alone and (folder / OURS).exists():
        model = read_json(folder / OURS)
    if model is not None:
        preprocess = None
        labels = read_labels(folder / LABELS)
        if (folder / PREPROCESS).exists() or not Identified(path, found, model).text:
            preprocess = read_json(folder / PREPROCESS)
        return Identified(path, found, model, preprocess, labels=labels)
    side: dict[str, Any] = {}
    for name in THEIRS:
        if (folder / name).exists():
            side |= read_json(folder / name)
    return Identified(path, found, side=side, labels=_their_labels(side))


def _other_than_model(path: Path) -> str:
    """Say what a path holds in place of a model, if it is an image, a dataset or a folder of runs."""
    from saccade.data.image.formats import recognise
    from saccade.data.readers.folders import look

    name, order = printable(path), "the model comes first, the data after it"
    try:
        if path.is_file():
            with open_file(path) as file:
                recognise(name, file.read(64))
            return f"{name} is an image; expected {MODEL_WANTED}; {order}"
        inside = look(bytes(path))
        below = [path / printable(folder.decode(errors="replace")) for folder in inside.folders]
        if runs := sorted(printable(each) for each in below if (each / "recipe.json").is_file()):
            return f"{name} is a folder of runs; expected one of them: {some(runs)}"
        if inside.pictures or any(look(bytes(each)).pictures for each in below[:100]):
            return f"{name} is a folder of images; expected {MODEL_WANTED}; {order}"
    except (SaccadeError, OSError):
        return ""
    return ""


def _names(folder: Path) -> list[str]:
    """Return the weight file of a folder, if it has only one."""
    files = [p.name for ending in ("*.safetensors", "*.npz") for p in folder.glob(ending)]
    return files if len(files) == 1 else []


def read_labels(path: Path) -> list[str]:
    """Read one label per line; a missing file means no labels."""
    if not path.exists():
        return []
    if path.stat().st_size > 64 * MOST_LABELS:
        raise ModelError(
            f"{printable(path)} is {path.stat().st_size:,} bytes, too large for a list of labels"
        )
    with open_file(path) as file:
        data = file.read(64 * MOST_LABELS)
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ModelError(f"{printable(path)} is not UTF-8 text; expected one label per line") from error
    return name_labels([line for line in lines if line.strip()])


def _their_labels(side: dict[str, Any]) -> list[str]:
    """Return Hugging Face's id2label or timm's label_names, without placeholders such as LABEL_3."""
    cfg = side.get("pretrained_cfg")
    listed = side.get("label_names") or (cfg.get("label_names") if isinstance(cfg, dict) else None)
    if isinstance(listed, list):
        return name_labels(listed[:MOST_LABELS])
    numbered = side.get("id2label")
    if not isinstance(numbered, dict) or len(numbered) > MOST_LABELS:
        return []
    labels = name_labels([numbered.get(str(i), "") for i in range(len(numbered))])
    return [] if labels == [f"LABEL_{i}" for i in range(len(labels))] else labels
