"""The C library's memory, kept from one gradient step to the next.

A step of a network of a few million parameters frees some tens of megabytes, which the next one
asks for again. glibc gives what lies at the heap's end back to the system in between, which then
has to map and to clear it page by page: up to a fifth of such a step.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of ``malloc.h``."""
_KEPT = 2**30
"""Bytes free at the heap's end above which they are given back."""
_LARGEST = 2**25
"""Bytes of a block above which it is mapped by itself, and given back; the most that glibc takes.
It gets there by itself, but no longer once the other threshold is set."""
_OWN_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@functools.cache
def keep_freed_memory() -> None:
    """Let this process keep up to a gigabyte of what it frees, to use it again.

    Nothing happens under another C library than glibc, or where the user has set glibc's thresholds
    by the environment.
    """
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return
    if any(name in os.environ for name in _OWN_SETTINGS):
        return
    library = ctypes.CDLL(None)
    library.mallopt(_TRIM_THRESHOLD, _KEPT)
    library.mallopt(_MMAP_THRESHOLD, _LARGEST)
