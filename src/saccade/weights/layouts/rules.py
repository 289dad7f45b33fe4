"""Other people's names and shapes for our tensors: one table of rules per layout, read in both directions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from einops import rearrange
from torch import Tensor, nn

from saccade.data.image.preprocess import Preprocess
from saccade.errors import ModelError
from saccade.models.hybrid import HybridConfig
from saccade.models.looped import LoopConfig
from saccade.models.vit import ViTConfig
from saccade.weights.formats.safetensors import Header
from saccade.wording import printable, some

Config = ViTConfig | HybridConfig
C = TypeVar("C", bound=ViTConfig | HybridConfig | LoopConfig)
Tensors = dict[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]
FLOATS = ("float16", "bfloat16", "float32", "float64")
Change = Callable[..., Sequence[Tensor]]


def same(*tensors: Tensor) -> Sequence[Tensor]:
    """Return the tensors as they are; only the name changes."""
    return tensors


def join(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Concatenate; for meta tensors only the shape, as torch.cat would import its compiler (2 s)."""
    if not tensors[0].is_meta:
        return torch.cat(list(tensors), dim)
    shape = list(tensors[0].shape)
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    return tensors[0].new_empty(shape)


@dataclass(frozen=True, slots=True)
class Rule:
    """Our names and theirs of the same weights; `load` turns theirs into ours, `save` ours into theirs."""

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
    """Return the rule of a rearranged tensor: `pattern` is einops' «theirs -> ours», reversed for saving."""
    left, right = pattern.split(" -> ")
    return Rule(
        (ours,),
        (theirs,),
        lambda t: (rearrange(t, f"{left} -> {right}", **sizes),),
        lambda t: (rearrange(t, f"{right} -> {left}", **sizes),),
    )


def renamed(ours: str, theirs: str, parts: Iterable[str] = ("weight", "bias")) -> list[Rule]:
    """Return the rules of a module that only changes its name."""
    return [Rule((f"{ours}.{part}",), (f"{theirs}.{part}",)) for part in parts]


def front_rule(tokens: list[str], counts: list[int], embedded: int, grid: tuple[int, int], pos: str) -> Rule:
    """Return the rule of class tokens, registers and positions; our class token includes its position.

    Args:
        tokens: their names of the tokens in front, in order.
        counts: how many vectors each of those holds.
        embedded: how many of the vectors in front have an entry in their position table.
    """

    def load(*theirs: Tensor) -> tuple[Tensor, ...]:
        *front, positions = (rearrange(t, "1 n d -> n d") for t in theirs)
        table = rearrange(positions[embedded:], "(r c) d -> r c d", r=grid[0])
        if not front:
            return (table,)
        own = join(front)
        return join([own[:embedded] + positions[:embedded], own[embedded:]]), table

    def save(*ours: Tensor) -> tuple[Tensor, ...]:
        *front, table = ours
        positions = join([table.new_zeros(embedded, table.shape[-1]), rearrange(table, "r c d -> (r c) d")])
        parts = torch.split(front[0], counts) if front else ()
        return tuple(rearrange(t, "n d -> 1 n d").contiguous() for t in (*parts, positions))

    ours = ("front", "position.table") if tokens else ("position.table",)
    return Rule(ours, (*tokens, pos), load, save)


def load(rules: Iterable[Rule], theirs: Mapping[str, Tensor]) -> Tensors:
    """Return their tensors under our names."""
    found: Tensors = {}
    for rule in rules:
        found.update(zip(rule.ours, rule.load(*(theirs[name] for name in rule.theirs)), strict=True))
    return found


def save(rules: Iterable[Rule], ours: Mapping[str, Tensor]) -> Tensors:
    """Return our tensors under their names."""
    made: Tensors = {}
    for rule in rules:
        made.update(zip(rule.theirs, rule.save(*(ours[name] for name in rule.ours)), strict=True))
    return made


def state(module: nn.Module) -> Tensors:
    """Return the tensors of a module by name, without empty ones (a model with no class token)."""
    return {name: tensor for name, tensor in module.state_dict().items() if tensor.numel()}


def some_sorted(names: Iterable[str], most: int = 4) -> str:
    """Return the first few names of a set, whole, and how many more there are."""
    return some(sorted(names), most, limit=10_000)


def examine(what: str, expected: Shapes, found: Shapes) -> None:
    """Refuse a set of tensors that is not the expected one, naming what is missing, extra or misshapen."""
    wrong = []
    if missing := expected.keys() - found.keys():
        wrong.append(f"{len(missing)} missing ({some_sorted(missing)})")
    if extra := found.keys() - expected.keys():
        wrong.append(f"{len(extra)} unexpected ({some_sorted(extra)})")
    shapes = [n for n in expected.keys() & found.keys() if tuple(expected[n]) != tuple(found[n])]
    if shapes:
        listed = some_sorted(f"{n} is {_by(found[n])} instead of {_by(expected[n])}" for n in shapes)
        wrong.append(f"{len(shapes)} of the wrong shape ({listed})")
    if wrong:
        raise ModelError(
            f"{what} does not hold the tensors of the model it describes: {'; '.join(wrong)}; "
            f"check that the file and its config belong together"
        )


def check_dtypes(where: str, expected: Mapping[str, Tensor], found: Mapping[str, Header]) -> None:
    """Refuse integers, complex and 8-bit numbers where the model computes with floating-point ones."""
    wrong = []
    for name in expected.keys() & found.keys():
        whole = str(expected[name].dtype).removeprefix("torch.")
        fits = FLOATS if expected[name].is_floating_point() else (whole,)
        if found[name].dtype not in fits:
            wrong.append(f"{printable(name, 60)} is {found[name].dtype}")
    if wrong:
        raise ModelError(
            f"{where} holds {len(wrong)} tensors with an unsupported dtype ({some_sorted(wrong, 2)}); "
            f"expected {', '.join(FLOATS)}; ask its author for weights that are not quantised"
        )


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "a single number"
