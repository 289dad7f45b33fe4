"""Convert frozen dataclasses of numbers and strings to and from JSON, and change their fields by name."""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, field, fields, is_dataclass, replace
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin

from saccade.errors import check_number, check_word, did_you_mean
from saccade.spellings import FIELDS

T = TypeVar("T")


def to_json(value: Any) -> dict[str, Any]:
    """Return the fields as plain JSON values."""
    return asdict(value)


def from_json(kind: type[T], found: Any) -> T:
    """Read a `kind` that `to_json` wrote; a wrong name or type is a ValueError."""
    if not isinstance(found, Mapping):
        raise ValueError(f"found {found!r}; expected the fields of {kind.__name__}")
    known = {each.name: each.type for each in fields(kind)}  # type: ignore[arg-type]
    for name in found:
        check_field(kind, name)
    return kind(**{name: _value(name, known[name], value) for name, value in found.items()})


def flatten(value: Any) -> dict[str, Any]:
    """Return the fields by name, those of groups like `optim.lr`."""
    found: dict[str, Any] = {}
    for each in fields(value):
        inner = getattr(value, each.name)
        if is_dataclass(inner):
            found |= {f"{each.name}.{name}": one for name, one in flatten(inner).items()}
        else:
            found[each.name] = inner
    return found


def check_field(kind: type, name: str) -> None:
    """Refuse a name that is not a field of `kind`, and suggest the nearest, also in a group of fields."""
    known = [each.name for each in fields(kind)]
    if name in known:
        return
    inner = [f"{each.name}.{one.name}" for each in fields(kind) if is_dataclass(each.type)
             for one in fields(each.type)]  # fmt: skip
    other = FIELDS.get(name.replace("_", "-").lower(), "")
    meant = [each for each in inner if each.endswith(f".{name}")] or [
        each for each in (*known, *inner) if each == other or each.endswith(f".{other}")
    ]
    hint = f"; did you mean {meant[0]!r}?" if meant else did_you_mean(name, known)
    if not hint:
        hint = did_you_mean(name, [each.partition(".")[2] for each in inner], f" (it has {', '.join(known)})")
    raise ValueError(f"{kind.__name__} has no field {name!r}{hint}")


def within(low: int | float, high: int | float, *, default: Any = MISSING, name: str = "") -> Any:
    """Declare the smallest and the largest number of a dataclass field, or of each item if it is a tuple.

    Args:
        name: What messages call the field, if not by its name.
    """
    return field(default=default, metadata={"range": (low, high), "name": name})


def one_of(*known: str, default: Any = MISSING, name: str = "") -> Any:
    """Declare the words that a dataclass field may be; `name` as for `within`."""
    return field(default=default, metadata={"words": known, "name": name})


def validate(value: Any, prefix: str = "") -> None:
    """Refuse a dataclass with a field that is not as `within` or `one_of` declares it."""
    for each in fields(value):
        what, found = prefix + (each.metadata.get("name") or each.name), getattr(value, each.name)
        if "words" in each.metadata:
            check_word(what, found, each.metadata["words"])
        elif "range" in each.metadata:
            for number in found if isinstance(found, tuple) else (found,):
                check_number(what, number, *each.metadata["range"])


def change(value: T, name: str, text: str) -> T:
    """Set one field, named like `optim.lr`, from typed text."""
    first, _, rest = name.partition(".")
    check_field(type(value), first)
    now = getattr(value, first)
    if rest and not is_dataclass(now):
        raise ValueError(f"{first} of {type(value).__name__} is {now!r} and has no field {rest!r}")
    if is_dataclass(now) and not rest:
        inner = ", ".join(f"{first}.{each.name}" for each in fields(now))
        raise ValueError(f"{first} is a group of fields; set one of {inner}")
    wanted = next(each.type for each in fields(value) if each.name == first)  # type: ignore[arg-type]
    return replace(value, **{first: change(now, rest, text) if rest else _parse(first, wanted, now, text)})  # type: ignore[type-var]


def _parse(name: str, wanted: Any, now: Any, text: str) -> Any:
    try:
        match now:
            case bool():
                return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[
                    text.lower()
                ]
            case int():
                return int(text)
            case float():
                return float(text)
            case tuple():
                parts, inner = text.strip("()[]").split(","), get_args(wanted)
                kinds = [inner[0]] * len(parts) if inner[-1] is Ellipsis else inner
                return tuple(kind(part) for part, kind in zip(parts, kinds, strict=True))
            case _:
                return text
    except (ValueError, KeyError):
        kind = type(now).__name__
        raise ValueError(f"{name} is {kind} (now {now!r}), so it cannot become {text!r}") from None


def _value(name: str, wanted: Any, value: Any) -> Any:
    if is_dataclass(wanted) and isinstance(wanted, type):
        return from_json(wanted, value)
    if isinstance(wanted, UnionType) and type(value) in get_args(wanted):
        return value
    if get_origin(wanted) is tuple:
        inner = get_args(wanted)
        if isinstance(value, list | tuple) and (inner[-1] is Ellipsis or len(value) == len(inner)):
            return tuple(_value(name, inner[0], item) for item in value)
    elif wanted is float and type(value) is int:
        return float(value)
    elif type(value) is wanted:
        return value
    raise ValueError(f"{name} is {value!r}; expected {wanted.__name__ if type(wanted) is type else wanted}")
