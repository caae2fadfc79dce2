"""What the machine has left: memory and disk, in bytes."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_memory() -> int | None:
    """Return how many bytes a process can still use without swapping; None where unknown.

    What the system caches of files counts as available. In a container its limit counts.
    """
    limits = [_system_memory(), _container_memory()]
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def available_disk(directory: str | os.PathLike[str]) -> int:
    """Return the free bytes of the file system that holds, or will hold, ``directory``."""
    place = Path(directory).absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def size_text(size: float) -> str:
    """Return a number of bytes for people: ``"7.06 GB"``."""
    if size < 1000:
        return f"{size:.0f} bytes"
    units = ["kB", "MB", "GB", "TB"]
    power = min(int(math.log10(size) / 3), len(units))
    return f"{size / 1000**power:.3g} {units[power - 1]}"


def _system_memory() -> int | None:
    try:
        for line in _MEMINFO.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _container_memory() -> int | None:
    try:
        limit = int((_CGROUP / "memory.max").read_text(encoding="ascii"))
        used = int((_CGROUP / "memory.current").read_text(encoding="ascii"))
        statistics = (_CGROUP / "memory.stat").read_text(encoding="ascii").split()
        # Files that the system holds in memory and gives up when it needs room.
        cached = int(statistics[statistics.index("inactive_file") + 1])
    except (OSError, ValueError, IndexError):  # no container, or "max": no limit
        return None
    return max(limit - max(used - cached, 0), 0)
