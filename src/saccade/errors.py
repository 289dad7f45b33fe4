"""Errors that a person can mend: what was found, what was expected, what to do; each knows its exit code."""

from collections.abc import Iterable
from difflib import get_close_matches


class SaccadeError(Exception):
    """The parent of every error with a sentence for the person at the keyboard; exit code 2, wrong usage."""

    exit_code = 2


class UsageError(SaccadeError, ValueError):
    """A name, an argument or a combination of them that cannot work."""


class DataError(SaccadeError):
    """Pictures or other data that cannot be used."""

    exit_code = 3


class ModelError(SaccadeError):
    """A model file or folder that is refused."""

    exit_code = 4


class ResourceError(SaccadeError):
    """Out of disk or memory."""

    exit_code = 5


def check_word(what: str, found: str, known: Iterable[str]) -> None:
    """Refuse a word that is not one of the known ones, and name the nearest."""
    known = list(known)
    if found not in known:
        near = get_close_matches(str(found), known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"{what} is {found!r}, which is not known{hint} (known: {', '.join(known)})")


def check_number(what: str, found: int | float, low: int | float, high: int | float) -> None:
    """Refuse a number outside its sensible range."""
    if not low <= found <= high:
        raise UsageError(f"{what} is {found}; expected a number from {low} to {high}")
