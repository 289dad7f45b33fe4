"""Send a run's metrics to TensorBoard, Weights & Biases or MLflow.

A tracker that fails is reported once and dropped; the run continues.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from saccade.errors import UsageError
from saccade.recipe import trackers

MODULES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
INSTALLED = {"tensorboard": "pip install 'saccade[track]'"}


class Sink(Protocol):
    """Takes metrics by name; may raise anything."""

    def numbers(self, step: int, found: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Writes RUN/tensorboard; `tensorboard --logdir runs` shows all runs side by side."""

    def __init__(self, folder: Path, step: int) -> None:
        """Purge what an earlier process wrote after `step`: those steps are repeated."""
        writer = import_module(MODULES["tensorboard"]).SummaryWriter
        self.writer = writer(folder / "tensorboard", purge_step=step + 1)

    def numbers(self, step: int, found: Mapping[str, float]) -> None:
        for name, value in found.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class Wandb:
    """A run of Weights & Biases; its own settings (WANDB_MODE, ...) choose the account and the mode."""

    def __init__(self, folder: Path, step: int) -> None:
        self.run = import_module("wandb").init(project="saccade", name=folder.name, dir=str(folder))

    def numbers(self, step: int, found: Mapping[str, float]) -> None:
        self.run.log(dict(found), step=step)

    def close(self) -> None:
        self.run.finish()


class MLflow:
    """A run of MLflow; MLFLOW_TRACKING_URI decides where it is stored."""

    def __init__(self, folder: Path, step: int) -> None:
        self.mlflow = import_module("mlflow")
        self.mlflow.start_run(run_name=folder.name)

    def numbers(self, step: int, found: Mapping[str, float]) -> None:
        self.mlflow.log_metrics(dict(found), step=step)

    def close(self) -> None:
        self.mlflow.end_run()


KINDS: dict[str, Callable[[Path, int], Sink]] = {"tensorboard": TensorBoard, "wandb": Wandb, "mlflow": MLflow}


def check(track: str) -> None:
    """Refuse a tracker whose package is not installed, before a run starts."""
    for word in trackers(track):
        try:
            import_module(MODULES[word])
        except ImportError as error:
            command = INSTALLED.get(word, f"pip install {word}")
            raise UsageError(
                f"track is {word!r}, but the package {word} is not installed or cannot be imported; "
                f"run {command}, or remove it from track"
            ) from error


class Sinks:
    """All sinks of a run; if one fails, the others and the run continue."""

    def __init__(self, track: str, folder: Path, step: int, say: Callable[[str], None]) -> None:
        """`step`: where the run starts or resumes."""
        self.say = say
        self.open: dict[str, Sink] = {}
        for word in trackers(track):
            self._try(word, self._begin, word, folder, step)

    def numbers(self, kind: str, step: int, found: Mapping[str, Any]) -> None:
        """Pass on the numbers, as step/loss or epoch/val_accuracy."""
        named = {
            f"{kind}/{name}": float(value)
            for name, value in found.items()
            if isinstance(value, int | float) and name != "epoch"
        }
        for word, sink in list(self.open.items()):
            self._try(word, sink.numbers, step, named)

    def close(self) -> None:
        """Close all sinks."""
        for word, sink in list(self.open.items()):
            self._try(word, sink.close)
        self.open = {}

    def _begin(self, word: str, folder: Path, step: int) -> None:
        self.open[word] = KINDS[word](folder, step)

    def _try(self, word: str, act: Callable[..., object], *given: object) -> None:
        try:
            act(*given)
        except Exception as error:  # third-party code, networks, disks: whatever it is, the run continues
            self.open.pop(word, None)
            reason = " ".join(str(error).split())[:200]
            cause = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
            self.say(
                f"note: {word} failed and is dropped for this run ({cause}); events.jsonl has all metrics"
            )
