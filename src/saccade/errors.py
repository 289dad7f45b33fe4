"""Errors that the user can fix: what was found, what was expected, what to do; each has its exit code."""

import errno
from collections.abc import Callable, Iterable
from difflib import get_close_matches


class SaccadeError(Exception):
    """The base of every error with a message for the user; exit code 2, wrong usage."""

    exit_code = 2


class UsageError(SaccadeError, ValueError):
    """A name, an argument or a combination of them that cannot work."""


class DataError(SaccadeError):
    """Images or other data that cannot be used."""

    exit_code = 3


class ModelError(SaccadeError):
    """A model file or folder that is refused."""

    exit_code = 4


class NotFiniteError(ModelError):
    """A model's answer to an image is NaN or infinite; the next image may work."""


class ResourceError(SaccadeError):
    """Out of disk or memory."""

    exit_code = 5


class StoppedError(SaccadeError):
    """A signal stopped the run; its state is saved."""

    exit_code = 130


class DivergedError(SaccadeError):
    """The loss or the weights were not finite repeatedly."""

    exit_code = 1


TOO_MANY_FILES = (
    "this process may not open as many files as it needs; expected a limit of 64 or more; "
    "close other programs, or raise the limit with `ulimit -n 1024`"
)


def check_handles(error: BaseException) -> None:
    """Raise a ResourceError if the process has no file handles left: the file itself may be fine."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        raise ResourceError(TOO_MANY_FILES) from error


def not_finite(what: str = "the model") -> NotFiniteError:
    """Return the error for a model whose numbers overflow."""
    return NotFiniteError(
        f"{what} answers with NaN or infinite numbers; its weights are too large or damaged; "
        f"run `saccade doctor` on it"
    )


def did_you_mean(
    word: str,
    known: Iterable[str],
    otherwise: str = "",
    *,
    most: int = 1,
    show: Callable[[str], str] = repr,
    lead: str = "; ",
) -> str:
    """Return "; did you mean 'x'?" with the known words nearest to a word; `otherwise` if none is near."""
    near = get_close_matches(str(word), list(known), n=most)
    return f"{lead}did you mean {' or '.join(map(show, near))}?" if near else otherwise


def check_word(what: str, found: str, known: Iterable[str]) -> None:
    """Refuse a word that is not one of the known ones, and name the nearest."""
    known = list(known)
    if found not in known:
        hint = did_you_mean(found, known)
        raise UsageError(f"{what} is {found!r}, which is not known{hint} (known: {', '.join(known)})")


def check_number(what: str, found: int | float, low: int | float, high: int | float) -> None:
    """Refuse a number outside its sensible range."""
    if not low <= found <= high:
        raise UsageError(f"{what} is {found}; expected a number from {low} to {high}")
