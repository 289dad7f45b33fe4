"""The settings that all tasks share, changed by name with --set and stored as JSON."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from saccade.errors import UsageError, check_word
from saccade.spellings import TRAIN
from saccade.values import change, flatten, one_of, validate, within

T = TypeVar("T")
LENGTHS = ("budget.epochs", "budget.minutes", "budget.steps")
"""The fields that say how long to train, of which one decides."""
TRACKERS = ("tensorboard", "wandb", "mlflow")


@dataclass(frozen=True, kw_only=True, slots=True)
class Optim:
    """The optimiser's settings."""

    lr: float = within(1e-9, 100, default=1e-3)
    """The peak learning rate: it rises to this, then falls to 0 along a cosine."""
    decay: float = within(0, 100, default=0.05)
    """Weight decay of AdamW, for matrices only."""
    beta2: float = within(0, 0.999999, default=0.999)
    """AdamW's decay of the squared gradients."""
    clip: float = within(0, 1e9, default=1.0)
    """The largest norm of the gradient; 0 means any."""
    layer_decay: float = within(0.01, 1, default=1.0)
    """Each layer's learning rate is this times that of the layer above it."""
    ema: float = within(0, 0.999999, default=0.0)
    """Decay of a moving average of the weights, which is then evaluated and saved; 0 means none."""

    def __post_init__(self) -> None:
        validate(self, "optim.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """How long to train, and how often to evaluate and save."""

    epochs: int = within(1, 10**6, default=30)
    """Passes over the training data."""
    batch: int = within(1, 10**6, default=64)
    """Examples in a batch."""
    accumulate: int = within(1, 10**6, default=1)
    """Batches whose gradients are added up before each step."""
    warmup: float = within(0, 0.9, default=0.1)
    """The share of all steps over which the learning rate rises."""
    patience: int = within(0, 10**6, default=0)
    """Stop after this many epochs without a better score; 0 means never."""
    save: float = within(0, 10**6, default=60.0)
    """Seconds between checkpoints, and the most that a crash can cost."""
    minutes: float = within(0, 10**6, default=0.0)
    """Train for this many minutes instead of a number of epochs; 0 means by epochs."""
    limit: float = within(0, 10**6, default=0.0)
    """End after this many minutes even if epochs are left; 0 means no limit."""
    steps: int = within(0, 10**9, default=0)
    """Train for this many steps instead of a number of epochs; 0 means by epochs."""
    score: int = within(0, 10**9, default=0)
    """Steps between two evaluations on the validation split; 0 means an epoch."""

    def __post_init__(self) -> None:
        validate(self, "budget.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """The settings of a run of any task."""

    subject: ClassVar[str] = "this task"
    """Whose settings these are, for messages."""
    model: str = "vit_ti16"
    """A name (`saccade models`), or a model to start from."""
    dropout: float = within(0, 0.99, default=0.0)
    """The share of activations that are zeroed in training."""
    optim: Optim = field(default_factory=Optim)
    budget: Budget = field(default_factory=Budget)
    seed: int = within(0, 2**31, default=0)
    """Decides the split, the initial weights, the order and every augmentation."""
    val: float = within(0.01, 0.9, default=0.2)
    """The share of the data to validate on, if it has no validation split of its own."""
    bad: float = within(0, 0.99, default=0.01)
    """The share of unreadable images, or of incomplete sentence pairs, that is tolerated."""
    workers: int = within(0, 256, default=1)
    """Processes that load data; 0: the training process does it."""
    precision: str = one_of("fp32", "bf16", "fp16", default="fp32")
    """bf16 and fp16 use automatic mixed precision."""
    device: str = "auto"
    """auto: the accelerator if there is one, else the CPU."""
    compile: bool = False
    """Compile the model with torch.compile first; this takes a minute or more."""
    parallel: str = one_of("ddp", "fsdp", default="ddp")
    """With several processes: ddp keeps the whole model in each, fsdp a shard."""
    track: str = ""
    """Where else the metrics go: tensorboard, wandb or mlflow; separate several with commas."""

    def __post_init__(self) -> None:
        validate(self)
        trackers(self.track)


def trackers(track: str) -> list[str]:
    """Return the trackers that `track` names, each once."""
    found = list(dict.fromkeys(word.strip() for word in track.split(","))) if track.strip() else []
    for word in found:
        check_word("track", word, TRACKERS)
    return found


def set_values(changes: Iterable[str]) -> dict[str, str]:
    """Return the fields that --set names, with their values as typed; the last one counts."""
    pairs = (text.partition("=") for text in changes)
    return {name.strip(): value.strip() for name, _, value in pairs}


def read_recipe(path: Path) -> list[str]:
    """Return the fields that a TOML file sets, as a user would type them after --set."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as a recipe in TOML: {error}") from error
    return list(typed(found))


def typed(found: dict[str, Any], before: str = "") -> Iterator[str]:
    """Yield fields and their values as a user would type them after --set."""
    for name, value in found.items():
        if isinstance(value, dict):
            yield from typed(value, f"{before}{name}.")
        else:
            text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            yield f"{before}{name}={text}"


def from_options(given: Mapping[str, object], sets: Sequence[str], file: Sequence[str] = ()) -> list[str]:
    """Return the options of `train` that are not None as changes; refuse what contradicts --set.

    Args:
        given: Values by option, such as {"epochs": 3}.
        file: The fields that a recipe file sets; an option wins over them.
    """
    made = {TRAIN[name]: str(value) for name, value in given.items() if value is not None}
    typed_, names = set_values(sets), {field: name for name, field in TRAIN.items()}
    for field_ in made.keys() & typed_.keys():
        if not _same(made[field_], typed_[field_]):
            raise UsageError(
                f"--{names[field_]} {made[field_]} and --set {field_}={typed_[field_]} contradict each "
                "other; give one of them"
            )
    lengths = [name for name in LENGTHS if name in made]
    if "budget.epochs" in made:
        lengths += [name for name in LENGTHS[1:] if not _same(typed_.get(name, "0"), "0")]
        made |= {name: "0" for name in LENGTHS[1:] if name in set_values(file)}
    if len(set(lengths)) > 1:
        raise UsageError(f"{' and '.join(lengths)} both say how long to train; give one of them")
    return [f"{name}={value}" for name, value in made.items()]


def _same(a: str, b: str) -> bool:
    try:
        return float(a) == float(b)
    except ValueError:
        return a == b


def origins(
    recipe: object, default: object, layers: Mapping[str, Sequence[str]]
) -> list[tuple[str, str, str]]:
    """Return the name, the value and the origin of each field.

    Args:
        default: The recipe before anything was chosen; what differs and no layer sets depends on the data.
        layers: What was typed, by origin; the last one that names a field counts.
    """
    plain, rows = flatten(default), []
    for name, value in flatten(recipe).items():
        origin = "default" if plain[name] == value else "data"
        origin = next((each for each in reversed(list(layers)) if name in set_values(layers[each])), origin)
        rows.append((name, ",".join(map(str, value)) if isinstance(value, tuple) else str(value), origin))
    return rows


def override(recipe: T, changes: Iterable[str]) -> T:
    """Set fields as typed after --set: `optim.lr=3e-4`, `budget.epochs=10`."""
    for text in changes:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set was given {text!r}; expected name=value, for example optim.lr=3e-4")
        name = name.strip()
        if name in TRAIN.values() and name not in (known := flatten(recipe)):
            leaf = name.rpartition(".")[2]
            if leaf not in known:
                subject = getattr(recipe, "subject", Recipe.subject)
                raise UsageError(f"cannot set {name}: {subject} has no setting {leaf!r}; leave it out")
            name = leaf  # a probe has no groups
        try:
            recipe = change(recipe, name, value.strip())
        except ValueError as error:
            raise UsageError(f"cannot set {name}: {error}") from error
    return recipe
