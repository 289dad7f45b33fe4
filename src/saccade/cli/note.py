"""A model examined before torch is imported, and a word on what of it is left aside."""

import sys
from pathlib import Path

from saccade.weights.look import Found, look


def looked(path: Path) -> Found:
    """Refuse a damaged model; say that code which it wants to bring along is never run."""
    found = look(path)
    if found.code:
        print(
            f"note: {path} names code of its own ({', '.join(found.code)}); it is ignored and never run",
            file=sys.stderr,
        )
    return found
