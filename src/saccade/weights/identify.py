"""What lies at a path, examined before anything of it is believed, and before torch is imported."""

from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from saccade.errors import ModelError
from saccade.files.paths import open_file, shown
from saccade.weights.formats.tensors import Header, headers, read_json

OURS, PREPROCESS, LABELS = "model.json", "preprocess.json", "labels.txt"
THEIRS = ("config.json", "preprocessor_config.json")
SPOKEN = (
    "tokenizer.json", "vocab.txt", "vocab.json", "merges.txt",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip
"""The files of a tokenizer that models of text bring."""
FILES = {".npz", ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".onnx", ".h5", ".gguf"}
CODE = ("auto_map", "trust_remote_code", "custom_pipelines")
MOST_LABELS = 2**20
TASKS = {"translate": "translate", "language": "complete or fill", "caption": "translate"}
"""Of models that write text: the task in model.json, and the commands that ask them."""
WORDS = ("wte.weight", "embeddings.word_embeddings.weight")
"""How the tables of words of GPT-2 and BERT are called, a prefix aside."""


@dataclass(frozen=True, slots=True)
class Found:
    """The headers of the tensors and what stands in the files beside them."""

    path: Path
    headers: dict[str, Header]
    model: dict[str, Any] | None = None
    """Our model.json, if this is a folder of ours."""
    preprocess: dict[str, Any] | None = None
    side: dict[str, Any] = field(default_factory=dict)
    """Their config.json and preprocessor_config.json, as one."""
    labels: list[str] = field(default_factory=list)

    @property
    def code(self) -> list[str]:
        """The entries by which a config asks for code of its author's to be run; nobody here does."""
        return [name for name in CODE if self.side.get(name)]

    @property
    def task(self) -> str:
        """What one asks of the model."""
        if self.model is not None:
            return str(self.model.get("task"))
        return "language" if any(name.endswith(WORDS) for name in self.headers) else "classify"

    @property
    def text(self) -> bool:
        """Whether it is a model of text, which saccade.weights.load_text reads."""
        return self.task in TASKS

    def check_pictures(self) -> None:
        """Refuse a model of text where one of pictures is asked."""
        if self.text:
            raise ModelError(
                f"{shown(self.path)} is a model of text (task {self.task}); expected one of pictures; "
                f"ask it with saccade {TASKS[self.task]}"
            )

    def check_text(self) -> None:
        """Refuse a model of pictures where one of text is asked."""
        if not self.text:
            raise ModelError(
                f"{shown(self.path)} is a model of pictures; expected one of text, such as `saccade train "
                f"pairs.tsv --task translate` makes; ask it with saccade predict"
            )


def locate(word: str | Path) -> Path:
    """The path of a model: the word itself if it exists, else where the hub's model of that name was put."""
    path, text = Path(word), str(word)
    try:
        if text and path.exists():
            return path
    except (OSError, ValueError) as error:  # a name too long, a folder that may not be entered, a NUL
        words = getattr(error, "strerror", None) or error
        raise ModelError(f"{shown(text)!r} cannot be a model ({words}); check the spelling") from error
    prefixed = text.startswith(("hf:", "hf-hub:", "hf_hub:"))
    if not prefixed and (
        isinstance(word, Path)
        or text.count("/") != 1
        or path.suffix in FILES
        or path.parent.is_dir()  # runs/dmo is a slip, and no business of the hub's
    ):
        raise ModelError(
            f"there is no model at {shown(text)!r}{_near(path)}; expected a model folder, a .safetensors or "
            f".npz file, or a hub id such as google/vit-base-patch16-224 (hf:owner/name where a folder has "
            f"the owner's name)"
        )
    from saccade.hub.fetch import fetch

    return fetch(text)


def _near(path: Path) -> str:
    """A hint at what lies beside a path that is not there."""
    try:
        beside = [p.name for p in path.parent.iterdir() if p.is_dir() or p.suffix in FILES]
    except OSError:
        return ""
    near = get_close_matches(path.name, beside, n=1)
    return f", did you mean {shown(path.parent / near[0])!r}?" if near else ""


def weights_in(path: Path) -> Path:
    """The file of weights that a path means: itself, or a folder's only .npz or pickle."""
    if not path.is_dir() or any(path.glob("*.safetensors*")):
        return path
    arrays = sorted(path.glob("*.npz"))
    pickles = sorted(p for ending in ("*.bin", "*.pt", "*.pth") for p in path.glob(ending))
    if len(arrays) == 1:
        return arrays[0]
    return pickles[0] if len(pickles) == 1 and not arrays else path


def look(path: Path) -> Found:
    """Open a model folder, timm's or Hugging Face's, or a single file, and check what can be checked."""
    folder = path if path.is_dir() else path.parent
    if path.is_dir() and (path / OURS).is_file() and "export" in read_json(path / OURS):
        raise ModelError(
            f"{shown(path)} is an exported graph, which predict, evaluate and bench can run; "
            f"for anything else give the run that it was made from"
        )
    path = weights_in(path)
    found = headers(path)
    alone = path.is_file() and path.name not in ("model.safetensors", *_names(folder))
    if alone and not (folder / "config.json").is_file():
        return Found(path, found)
    if (folder / OURS).is_file() and not alone:
        model, preprocess = read_json(folder / OURS), None
        if model.get("task") not in TASKS or (folder / PREPROCESS).is_file():
            preprocess = read_json(folder / PREPROCESS)
        return Found(path, found, model, preprocess, labels=read_labels(folder / LABELS))
    side: dict[str, Any] = {}
    for name in THEIRS:
        if (folder / name).is_file():
            side |= read_json(folder / name)
    return Found(path, found, side=side, labels=_their_labels(side))


def _names(folder: Path) -> list[str]:
    """The weights of a folder that holds just one file of them."""
    files = [p.name for ending in ("*.safetensors", "*.npz") for p in folder.glob(ending)]
    return files if len(files) == 1 else []


def printable(label: object) -> str:
    """A label as it may be shown: on one line, control characters (a terminal would obey them) as a sign."""
    line = " ".join(str(label)[:1000].split())
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)[:200].strip()


def named(labels: list[Any]) -> list[str]:
    """Labels as they may be shown and stored; one that says nothing becomes the number of its class."""
    return [printable(label) or f"class {i}" for i, label in enumerate(labels)]


def read_labels(path: Path) -> list[str]:
    """One label a line; a folder without the file has none."""
    if not path.is_file():
        return []
    if path.stat().st_size > 64 * MOST_LABELS:
        raise ModelError(f"{shown(path)} is {path.stat().st_size:,} bytes, too much for a list of labels")
    with open_file(path) as file:
        data = file.read(64 * MOST_LABELS)
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ModelError(f"{shown(path)} is not UTF-8 text; expected one label a line") from error
    return [printable(line) for line in lines if line.strip()]


def _their_labels(side: dict[str, Any]) -> list[str]:
    """Hugging Face's id2label, or timm's label_names; placeholders such as LABEL_3 are no labels."""
    cfg = side.get("pretrained_cfg")
    listed = side.get("label_names") or (cfg.get("label_names") if isinstance(cfg, dict) else None)
    if isinstance(listed, list):
        return named(listed[:MOST_LABELS])
    numbered = side.get("id2label")
    if not isinstance(numbered, dict) or len(numbered) > MOST_LABELS:
        return []
    labels = named([numbered.get(str(i), "") for i in range(len(numbered))])
    return [] if labels == [f"LABEL_{i}" for i in range(len(labels))] else labels
