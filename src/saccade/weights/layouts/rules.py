"""Other people's names and shapes for our tensors: one table of rules a layout, read in both directions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from einops import rearrange
from torch import Tensor, nn

from saccade.data.image.preprocess import Preprocess
from saccade.errors import ModelError
from saccade.models.hybrid import HybridConfig
from saccade.models.looped import LoopConfig
from saccade.models.vit import ViTConfig

Config = ViTConfig | HybridConfig
C = TypeVar("C", bound=ViTConfig | HybridConfig | LoopConfig)
Tensors = dict[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]
Change = Callable[..., Sequence[Tensor]]


def same(*tensors: Tensor) -> Sequence[Tensor]:
    """Nothing changes but the name."""
    return tensors


@dataclass(frozen=True, slots=True)
class Rule:
    """These tensors of ours are those of theirs; `load` turns theirs into ours, `save` ours into theirs."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    load: Change = same
    save: Change = same


@dataclass(frozen=True, slots=True)
class Layout(Generic[C]):
    """One project's way to store a ViT; each of google, timm, hf and dynamicvit ends with its own."""

    name: str
    recognise: Callable[[Iterable[str]], bool]
    clean: Callable[[str], str | None]
    """A name as the table has it; None for a tensor that the model does not need."""
    rules: Callable[[C], list[Rule]]
    read_config: Callable[[Shapes, Mapping[str, Any], tuple[int, int] | None], tuple[C, list[Rule]]]
    read_preprocess: Callable[[Mapping[str, Any], C], Preprocess]
    write_side: Callable[[C, Preprocess, list[str]], dict[str, Any]]
    """The files beside the weights, by name."""


def reshaped(ours: str, theirs: str, pattern: str, **sizes: int) -> Rule:
    """One tensor, rearranged: `pattern` is einops' «theirs -> ours», and is turned around for saving."""
    left, right = pattern.split(" -> ")
    return Rule(
        (ours,),
        (theirs,),
        lambda t: (rearrange(t, f"{left} -> {right}", **sizes),),
        lambda t: (rearrange(t, f"{right} -> {left}", **sizes),),
    )


def renamed(ours: str, theirs: str, parts: Iterable[str] = ("weight", "bias")) -> list[Rule]:
    """A module whose tensors change nothing but the module's name."""
    return [Rule((f"{ours}.{part}",), (f"{theirs}.{part}",)) for part in parts]


def load(rules: Iterable[Rule], theirs: Mapping[str, Tensor]) -> Tensors:
    """Their tensors under our names."""
    found: Tensors = {}
    for rule in rules:
        found.update(zip(rule.ours, rule.load(*(theirs[name] for name in rule.theirs)), strict=True))
    return found


def save(rules: Iterable[Rule], ours: Mapping[str, Tensor]) -> Tensors:
    """Our tensors under their names."""
    made: Tensors = {}
    for rule in rules:
        made.update(zip(rule.theirs, rule.save(*(ours[name] for name in rule.ours)), strict=True))
    return made


def state(module: nn.Module) -> Tensors:
    """The tensors of a module by name, without those that hold nothing (a model with no class token)."""
    return {name: tensor for name, tensor in module.state_dict().items() if tensor.numel()}


def some(names: Iterable[str], most: int = 4) -> str:
    """The first few names, and how many more there are."""
    listed = sorted(names)
    more = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {more} more" if more > 0 else "")


def examine(what: str, expected: Shapes, found: Shapes) -> None:
    """Refuse a set of tensors that is not the expected one, naming what is missing, extra or misshapen."""
    wrong = []
    if missing := expected.keys() - found.keys():
        wrong.append(f"{len(missing)} missing ({some(missing)})")
    if extra := found.keys() - expected.keys():
        wrong.append(f"{len(extra)} with no place here ({some(extra)})")
    shapes = [n for n in expected.keys() & found.keys() if tuple(expected[n]) != tuple(found[n])]
    if shapes:
        told = some(f"{n} is {_by(found[n])} instead of {_by(expected[n])}" for n in shapes)
        wrong.append(f"{len(shapes)} of the wrong shape ({told})")
    if wrong:
        raise ModelError(
            f"{what} does not hold the tensors of the model it describes: {'; '.join(wrong)}; "
            f"check that the file and its config belong together"
        )


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "a single number"
