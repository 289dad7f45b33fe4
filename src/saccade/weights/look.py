"""What lies at a path, examined before anything of it is believed, and before torch is imported."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saccade.errors import ModelError
from saccade.weights.fetch import fetch
from saccade.weights.files import Header, headers, read_json
from saccade.weights.source import shown

OURS, PREPROCESS, LABELS = "model.json", "preprocess.json", "labels.txt"
THEIRS = ("config.json", "preprocessor_config.json")
MOST_LABELS = 2**20


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


def locate(word: str | Path) -> Path:
    """The path of a model: the word itself if it exists, else where the hub's model of that name was put."""
    path, text = Path(word), str(word)
    if path.exists():
        return path
    prefixed = text.startswith(("hf:", "hf-hub:", "hf_hub:"))
    if not prefixed and (
        isinstance(word, Path) or text.count("/") != 1 or path.suffix in (".npz", ".safetensors")
    ):
        raise ModelError(
            f"there is no model at {shown(text)}; expected a model folder, a .safetensors or .npz file, "
            f"or a hub id such as google/vit-base-patch16-224"
        )
    return fetch(text)


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
    path = weights_in(path)
    found = headers(path)
    alone = path.is_file() and path.name not in ("model.safetensors", *_names(folder))
    if alone and not (folder / "config.json").is_file():
        return Found(path, found)
    if (folder / OURS).is_file() and not alone:
        model, preprocess = read_json(folder / OURS), read_json(folder / PREPROCESS)
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
    """A label as it may be shown: control characters (a terminal would obey them) become a visible sign."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(label))[:200]


def read_labels(path: Path) -> list[str]:
    """One label a line; a folder without the file has none."""
    if not path.is_file():
        return []
    if path.stat().st_size > 64 * MOST_LABELS:
        raise ModelError(f"{shown(path)} is {path.stat().st_size:,} bytes, too much for a list of labels")
    try:
        return [
            printable(line.strip()) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()
        ]
    except UnicodeDecodeError as error:
        raise ModelError(f"{shown(path)} is not UTF-8 text; expected one label a line") from error


def _their_labels(side: dict[str, Any]) -> list[str]:
    """Hugging Face's id2label, or timm's label_names; placeholders such as LABEL_3 are no labels."""
    listed = side.get("label_names") or (side.get("pretrained_cfg") or {}).get("label_names")
    if isinstance(listed, list):
        return [printable(label) for label in listed[:MOST_LABELS]]
    named = side.get("id2label")
    if not isinstance(named, dict) or len(named) > MOST_LABELS:
        return []
    labels = [printable(named.get(str(i), "")) for i in range(len(named))]
    return [] if labels == [f"LABEL_{i}" for i in range(len(labels))] else labels
