"""A model examined before torch is imported, and a word on what of it is left aside."""

import sys
from pathlib import Path

from saccade.weights.identify import Found, look


def looked(path: Path, kind: str = "pictures") -> Found:
    """Refuse a damaged model; say that code which it wants to bring along is never run.

    Args:
        kind: which kind of model the command asks: pictures, text, or any.
    """
    found = look(path)
    if kind != "any":
        (found.check_text if kind == "text" else found.check_pictures)()
    if found.code:
        print(
            f"note: {path} names code of its own ({', '.join(found.code)}); it is ignored and never run",
            file=sys.stderr,
        )
    return found
