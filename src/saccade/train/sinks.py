"""Places that a run's numbers go to besides its folder: TensorBoard, Weights & Biases, MLflow.

They are guests: one that fails is told of once and left out, and the run goes on.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from saccade.errors import UsageError, check_word

MODULES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
INSTALLED = {"tensorboard": "pip install 'saccade[track]'"}


class Sink(Protocol):
    """Takes numbers by their names; may raise anything."""

    def numbers(self, step: int, found: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Writes RUN/tensorboard; `tensorboard --logdir runs` shows all runs side by side."""

    def __init__(self, folder: Path, step: int) -> None:
        """What an earlier process wrote of the steps after `step` is to be done again, so it is not shown."""
        writer = import_module(MODULES["tensorboard"]).SummaryWriter
        self.writer = writer(folder / "tensorboard", purge_step=step + 1)

    def numbers(self, step: int, found: Mapping[str, float]) -> None:
        for name, value in found.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class Wandb:
    """A run of Weights & Biases; who and where is decided by its own settings (WANDB_MODE, ...)."""

    def __init__(self, folder: Path, step: int) -> None:
        self.run = import_module("wandb").init(project="saccade", name=folder.name, dir=str(folder))

    def numbers(self, step: int, found: Mapping[str, float]) -> None:
        self.run.log(dict(found), step=step)

    def close(self) -> None:
        self.run.finish()


class MLflow:
    """A run of MLflow; where it is kept is decided by MLFLOW_TRACKING_URI."""

    def __init__(self, folder: Path, step: int) -> None:
        self.mlflow = import_module("mlflow")
        self.mlflow.start_run(run_name=folder.name)

    def numbers(self, step: int, found: Mapping[str, float]) -> None:
        self.mlflow.log_metrics(dict(found), step=step)

    def close(self) -> None:
        self.mlflow.end_run()


KINDS: dict[str, Callable[[Path, int], Sink]] = {"tensorboard": TensorBoard, "wandb": Wandb, "mlflow": MLflow}


def words(track: str) -> list[str]:
    """The sinks that a recipe's `track` names, each once."""
    found = list(dict.fromkeys(word.strip() for word in track.split(","))) if track.strip() else []
    for word in found:
        check_word("track", word, KINDS)
    return found


def check(track: str) -> None:
    """Refuse a sink whose package is not installed, before a run begins."""
    for word in words(track):
        try:
            import_module(MODULES[word])
        except ImportError as error:
            command = INSTALLED.get(word, f"pip install {word}")
            raise UsageError(
                f"track is {word!r}, but the package {word} is not installed or cannot be imported; "
                f"run {command}, or leave the word out"
            ) from error


class Sinks:
    """All sinks of a run; any of them may break without harm to the others or to the run."""

    def __init__(self, track: str, folder: Path, step: int, say: Callable[[str], None]) -> None:
        """`step`: where the run begins or goes on."""
        self.say = say
        self.open: dict[str, Sink] = {}
        for word in words(track):
            self._try(word, self._begin, word, folder, step)

    def numbers(self, kind: str, step: int, found: Mapping[str, Any]) -> None:
        """Hand on what is a number, as step/loss or epoch/val_accuracy."""
        named = {
            f"{kind}/{name}": float(value)
            for name, value in found.items()
            if isinstance(value, int | float) and name != "epoch"
        }
        for word, sink in list(self.open.items()):
            self._try(word, sink.numbers, step, named)

    def close(self) -> None:
        """Let each finish what it holds."""
        for word, sink in list(self.open.items()):
            self._try(word, sink.close)
        self.open = {}

    def _begin(self, word: str, folder: Path, step: int) -> None:
        self.open[word] = KINDS[word](folder, step)

    def _try(self, word: str, act: Callable[..., object], *given: object) -> None:
        try:
            act(*given)
        except Exception as error:  # foreign code, networks and disks: whatever it is, the run goes on
            self.open.pop(word, None)
            reason = " ".join(str(error).split())[:200]
            told = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
            self.say(f"note: {word} takes no more numbers of this run ({told}); events.jsonl has them all")
