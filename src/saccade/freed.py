"""Memory that a step gives back is kept for the next step, where the C library can be asked to."""

import ctypes
import sys

_MMAP_THRESHOLD, _TOP_PAD, _TRIM_THRESHOLD = -3, -2, -1
"""Names of glibc's mallopt (malloc.h)."""
LARGE, PAD, NEVER = 1 << 30, 64 << 20, (1 << 31) - 1


def keep_freed() -> bool:
    """Ask glibc to keep freed memory; False where there is no glibc.

    Every step takes and frees the same tensors of some megabytes. By default they go back to the system, and
    the next step pays for having thousands of pages zeroed and mapped again: a seventh of the time of a small
    ViT's step (benchmarks/step.py). The peak stays what it was; what was freed below it is not given back
    until the process ends.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        change = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    wanted = ((_MMAP_THRESHOLD, LARGE), (_TRIM_THRESHOLD, NEVER), (_TOP_PAD, PAD))
    return sum(change(name, value) for name, value in wanted) == len(wanted)
