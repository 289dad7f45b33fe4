"""Keep the libraries underneath from sending anything, and their files in our cache folder."""

import os
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

SWITCHES = {
    "ORT_DISABLE_TELEMETRY": "1",  # otherwise a device id, an event database and uploads (since 1.30)
    "HF_HUB_DISABLE_TELEMETRY": "1",  # otherwise it sends the hub a list of what is installed
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
}
OPENMP = {"OMP_WAIT_POLICY": "PASSIVE"}
"""How threads wait for one another; benchmarks/busy.py measures what it gains on a busy machine."""
CACHES = {"MPLCONFIGDIR": "matplotlib", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
"""Variables that move a library's cache, and its folder name in ours."""


PACKAGES = {"PIL": "pillow", "sklearn": "scikit-learn"}
"""Modules whose package has another name."""
EXTRAS = {
    "huggingface_hub": "hub", "httpx2": "hub", "onnx": "onnx", "onnxruntime": "onnx", "openvino": "openvino",
    "pyarrow": "shards", "tokenizers": "text", "sacrebleu": "text", "tensorboard": "track", "faiss": "embed",
    "umap": "embed",
}  # fmt: skip
"""Modules that come with an extra of saccade."""


def missing(module: str) -> str:
    """Return how to install a module that cannot be found; "" for one of saccade's own."""
    name = module.partition(".")[0]
    if name in ("", "saccade"):
        return ""
    extra = EXTRAS.get(name)
    package = f"'saccade[{extra}]'" if extra else PACKAGES.get(name, name)
    return f"the package {PACKAGES.get(name, name)} is not installed; run `pip install {package}`"


def cache_folder() -> Path:
    """Return the folder of choices, graphs and the libraries' caches; it is safe to delete."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(os.path.expandvars(home)).expanduser() / "saccade"
    except RuntimeError:  # a user without a home
        return Path(".saccade-cache").absolute()


def disable_telemetry() -> None:
    """Switch off the libraries' telemetry; this works only before they are imported."""
    os.environ.update(SWITCHES)
    # The package's only switch is `CI`. If it cannot be imported, OpenVINO uses a stub of its own.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]


def move_caches() -> None:
    """Move the libraries' caches into ours, unless the user has chosen a folder for them."""
    for variable, name in CACHES.items():
        os.environ.setdefault(variable, str(cache_folder() / name))
    # torch keeps these in the temporary folder even if its cache is elsewhere
    os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")


def wait_passively() -> None:
    """Let waiting threads sleep, unless the user decides; this works only before torch is imported."""
    for variable, value in OPENMP.items():
        os.environ.setdefault(variable, value)


def import_runtime(name: str) -> ModuleType:
    """Import onnxruntime or openvino; nothing else imports them, as both phone home."""
    disable_telemetry()
    return import_module(name)
