"""The parts of huggingface_hub that its documentation does not promise, all in one place."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.errors import UsageError

if TYPE_CHECKING:
    import httpx2

TRIED = "2.4"
"""The version of huggingface_hub that these parts were tried with."""


def _part(module: str, name: str) -> Any:
    try:
        return getattr(import_module(f"huggingface_hub.{module}"), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"huggingface_hub {version('huggingface_hub')} has no {module}.{name}; saccade was tried with "
            f"version {TRIED}; run pip install 'huggingface_hub=={TRIED}.*'"
        ) from error


def client_factory() -> Callable[[], "httpx2.Client"]:
    """Return what makes an HTTP client: the user's, if set by `huggingface_hub.set_client_factory`."""
    return _part("utils._http", "_GLOBAL_CLIENT_FACTORY")


def file_lock(path: Path) -> AbstractContextManager[object]:
    """Wait for a lock, the same that huggingface_hub takes on the same cache."""
    return _part("utils", "WeakFileLock")(path)


def progress_bar() -> Callable[..., Any]:
    """Return the class of huggingface_hub's progress bars."""
    return _part("utils", "tqdm")
