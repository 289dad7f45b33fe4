"""One small run, begun and done, whose copies are killed, stopped and hurt, and must end like it."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nursery import ask
from trees import state as tree_state
from trees import tree

from saccade.train.checkpoint import latest, step_of

RECIPE = [
    "budget.batch=4",
    "budget.accumulate=2",
    "budget.save=0",
    "optim.ema=0.9",
    "dropout=0.1",
    "droppath=0.1",
    "mix.mixup=0.2",
    "augment.policy=trivial",
    "augment.erase=0.3",
    "workers=0",
]
KILLED = -9


class Place:
    """A run that has begun, the same run at its end, and how long and by which calls it came there."""

    def __init__(self, folder: Path, epochs: int) -> None:
        self.folder = folder
        tree(folder / "pictures", {"cat": 14, "dog": 14, "eel": 12})
        self.words = [folder / "pictures", "vit_xs2_8"], [*RECIPE, f"budget.epochs={epochs}"]
        assert self.begin(folder / "begun")["code"] == 0
        whole = self.copy("whole")
        done = ask("resume", whole, calls=folder / "calls.json")
        assert done["code"] == 0
        self.seconds, self.proof = done["seconds"], proof(whole)
        self.calls = json.loads((folder / "calls.json").read_text())
        self.pictures = tree_state(folder / "pictures")

    def begin(self, run: Path, **plan: object) -> dict:
        data, changes = self.words
        return ask("begin", *data, run, *changes, **plan)

    def copy(self, name: str, save: float = 0) -> Path:
        """The run as it began, but for the seconds between two checkpoints."""
        run = Path(shutil.copytree(self.folder / "begun", self.folder / name))
        recipe = json.loads((run / "recipe.json").read_text())
        recipe["budget"]["save"] = save
        (run / "recipe.json").write_text(json.dumps(recipe))
        return run

    def trial(self, name: str, save: float = 0, **plan: object) -> bool:
        """Kill the run as planned and go on with it; False if it was over before."""
        run = self.copy(name, save)
        code = ask("resume", run, **plan)["code"]
        assert code in (KILLED, 0)
        place, damaged = latest(run / "checkpoints")
        assert place is not None
        assert damaged == []
        if not save:
            assert logged(run) - step_of(place) <= 1
        told = run.with_suffix(".told")
        assert ask("resume", run, told=told)["code"] == 0, told.read_text()
        assert proof(run) == self.proof
        assert not list(run.rglob("*.tmp"))
        assert tree_state(self.folder / "pictures") == self.pictures
        shutil.rmtree(run)
        return code == KILLED


def proof(run: Path) -> dict[str, str]:
    """Hashes of all that must be the same: weights, running mean, optimiser, results, the model kept."""
    last = sorted((run / "checkpoints").iterdir())[-1]
    names = ("results.csv", "model.safetensors", "model.json", "preprocess.json", "labels.txt")
    files = [*sorted(last.iterdir()), *(run / name for name in names)]
    assert {"module.safetensors", "optimizer.safetensors", "ema.safetensors"} <= {p.name for p in files}
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def logged(run: Path) -> int:
    """The last step that was done before the kill."""
    lines = (run / "events.jsonl").read_text().splitlines()
    return max(json.loads(line)["step"] for line in lines if line.endswith("}"))


@contextmanager
def placed(epochs: int) -> Iterator[Place]:
    """On a disk in memory where there is one: what is tried here is a kill, and not a power cut."""
    memory = Path("/dev/shm")
    folder = tempfile.mkdtemp(prefix="saccade-", dir=memory if memory.is_dir() else None)
    try:
        yield Place(Path(folder), epochs)
    finally:
        shutil.rmtree(folder)
