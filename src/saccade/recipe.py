"""A run as a value: which model, on what, how; chosen from the data's size, changed by name, kept as JSON."""

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from saccade.data.image.augment import Augment
from saccade.data.image.mixup import Mix
from saccade.errors import UsageError, check_number, check_word
from saccade.train import sinks
from saccade.values import change

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Optim:
    """How the weights move."""

    lr: float = 1e-3
    decay: float = 0.05
    beta2: float = 0.999
    clip: float = 1.0
    layer_decay: float = 1.0
    """Each layer's learning rate is this times that of the layer above it."""
    ema: float = 0.0
    """Decay of a running mean of the weights, which is then what is scored and kept; 0 means none."""

    def __post_init__(self) -> None:
        check_number("optim.lr", self.lr, 1e-9, 100)
        check_number("optim.decay", self.decay, 0, 100)
        check_number("optim.clip", self.clip, 0, 1e9)
        for name in ("beta2", "ema"):
            check_number(f"optim.{name}", getattr(self, name), 0, 0.999999)
        check_number("optim.layer_decay", self.layer_decay, 0.01, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """How long."""

    epochs: int = 30
    batch: int = 64
    accumulate: int = 1
    warmup: float = 0.1
    """The share of all steps over which the learning rate rises."""
    patience: int = 0
    """Epochs without a better score after which training ends early; 0 means never."""
    save: float = 60.0
    """Seconds between checkpoints; the most that a crash can cost."""
    minutes: float = 0.0
    """Train for so long instead of so many epochs; 0 means by epochs."""
    steps: int = 0
    """Train for so many steps instead of epochs; 0 means by epochs."""
    score: int = 0
    """Steps between two looks at what is held back; 0 means an epoch."""

    def __post_init__(self) -> None:
        check_number("budget.epochs", self.epochs, 1, 10**6)
        check_number("budget.batch", self.batch, 1, 10**6)
        check_number("budget.accumulate", self.accumulate, 1, 10**6)
        check_number("budget.warmup", self.warmup, 0, 0.9)
        check_number("budget.patience", self.patience, 0, 10**6)
        check_number("budget.save", self.save, 0, 10**6)
        check_number("budget.minutes", self.minutes, 0, 10**6)
        check_number("budget.steps", self.steps, 0, 10**9)
        check_number("budget.score", self.score, 0, 10**9)


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """What decides a run of any task."""

    model: str = "vit_ti16"
    """A name (`saccade models`), or a model to start from."""
    dropout: float = 0.0
    optim: Optim = field(default_factory=Optim)
    budget: Budget = field(default_factory=Budget)
    seed: int = 0
    val: float = 0.2
    """The share of the data to be scored on, where it has no split of its own."""
    bad: float = 0.01
    """The share of unreadable pictures, or of half-empty pairs, that is borne."""
    workers: int = 1
    precision: str = "fp32"
    device: str = "auto"
    """auto: the accelerator if there is one, else the CPU."""
    compile: bool = False
    """Let torch.compile make faster code first; it takes a minute or more."""
    parallel: str = "ddp"
    """With several processes: ddp keeps the whole model in each, fsdp a slice."""
    track: str = ""
    """Where the numbers go besides the run's folder: tensorboard, wandb, mlflow, or several with commas."""

    def __post_init__(self) -> None:
        check_word("parallel", self.parallel, ("ddp", "fsdp"))
        sinks.words(self.track)
        check_word("precision", self.precision, ("fp32", "bf16", "fp16"))
        for name in ("dropout", "bad"):
            check_number(name, getattr(self, name), 0, 0.99)
        check_number("val", self.val, 0.01, 0.9)
        check_number("workers", self.workers, 0, 256)
        check_number("seed", self.seed, 0, 2**31)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe(Training):
    """Everything that decides a run on pictures, the data aside."""

    image: int = 0
    """Side of the pictures; 0: the model's own."""
    freeze: str = "none"
    """none: everything learns. body: only the head. A number: not the patches and so many blocks."""
    droppath: float = 0.0
    teacher: str = ""
    """A larger model whose answers are learnt too."""
    keep: float = 1.0
    """The share of the patches that is kept at each place; below 1 the model learns which to drop."""
    places: tuple[int, ...] = ()
    """The blocks before which patches are dropped; empty: the usual ones."""
    augment: Augment = field(default_factory=Augment)
    mix: Mix = field(default_factory=Mix)

    def __post_init__(self) -> None:
        Training.__post_init__(self)  # a class with slots is made anew, so super() does not find it
        if not self.freeze.isdecimal():
            check_word("freeze", self.freeze, ("none", "body"))
        check_number("image", self.image, 0, 2**14)
        check_number("droppath", self.droppath, 0, 0.99)
        check_number("keep", self.keep, 0.01, 1)


def choose(pictures: int, started: bool, side: int) -> tuple[Recipe, str]:
    """A sensible recipe for so many training pictures of that side, and the reason in a sentence."""
    small = side <= 64
    augment = (
        Augment(pad=max(side // 8, 1), flip=0.5)
        if small
        else Augment(crop=(0.5, 1.0) if started else (0.3, 1.0))
    )
    if started:
        epochs = 30 if pictures < 1000 else 15 if pictures < 20_000 else 8
        made = Recipe(
            optim=Optim(lr=2e-4 if pictures < 1000 else 3e-4, layer_decay=0.75),
            budget=Budget(epochs=epochs, batch=16 if pictures < 1000 else 32),
            augment=augment,
            mix=Mix(smoothing=0.1),
            droppath=0.05,
        )
        return made, f"fine-tuning on {pictures:,} pictures: few epochs, smaller steps near the input"
    if pictures < 1000:
        budget, policy = Budget(epochs=100, batch=32), "trivial"
    elif pictures < 20_000:
        budget, policy = Budget(epochs=60, batch=64), "trivial"
    else:
        budget, policy = Budget(epochs=20, batch=128), "trivial"
    made = Recipe(
        optim=Optim(lr=1e-3, ema=0.99 if pictures < 20_000 else 0.999),
        budget=budget,
        augment=replace(augment, policy=policy),
        mix=Mix(mixup=0.2, cutmix=0.5, smoothing=0.1) if pictures >= 1000 else Mix(smoothing=0.1),
        droppath=0.1,
    )
    return (
        made,
        f"from scratch on {pictures:,} pictures: strong augmentation, as a ViT knows nothing of pictures yet",
    )


def read(path: Path) -> list[str]:
    """The fields that a TOML file sets, as one would type them after --set."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as a recipe in TOML: {error}") from error
    return list(typed(found))


def typed(found: dict[str, Any], before: str = "") -> Iterator[str]:
    """Fields and their values as one would type them after --set."""
    for name, value in found.items():
        if isinstance(value, dict):
            yield from typed(value, f"{before}{name}.")
        else:
            text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            yield f"{before}{name}={text}"


def override(recipe: T, changes: Iterable[str]) -> T:
    """Set fields as typed after --set: `optim.lr=3e-4`, `budget.epochs=10`."""
    for text in changes:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set was given {text!r}; expected name=value, for example optim.lr=3e-4")
        try:
            recipe = change(recipe, name.strip(), value.strip())
        except ValueError as error:
            raise UsageError(f"cannot set {name}: {error}") from error
    return recipe
