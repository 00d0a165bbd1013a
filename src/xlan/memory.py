"""What becomes of memory that was freed.

A training step frees large blocks and asks for the same ones again a moment later. The C library gives such blocks back
to the system, which hands them out again page by page: thousands of page faults a step, a tenth of its time or more.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's numbers of the two settings, from malloc.h
_NEVER = (1 << 31) - 1
_LARGEST_OF_OLD = 1 << 25  # older versions take no larger threshold


def keep_freed_memory() -> bool:
    """Let the C library keep what is freed for what is allocated next; whether it will.

    Only glibc has this setting, and only where its own environment variables (`MALLOC_…`) say nothing. The process then
    stays as large as it ever was: for long computations, not for servers.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        library = ctypes.CDLL(None)
        mallopt, _ = library.mallopt, library.gnu_get_libc_version
    except (OSError, TypeError, AttributeError):  # Windows, macOS, musl
        return False
    kept = mallopt(_MMAP_THRESHOLD, _NEVER) or mallopt(_MMAP_THRESHOLD, _LARGEST_OF_OLD)
    return bool(kept and mallopt(_TRIM_THRESHOLD, _NEVER))
