"""Which libraries, machine and commit a run was made with."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

LIBRARIES = ("rl_training", "torch", "torchrl", "tensordict", "gymnasium", "numpy")


@functools.cache
def library_versions() -> dict[str, str]:
    """Return the version of Python and of each library that shapes a run; imports none of them."""
    return {"python": platform.python_version(), **{name: _version(name) for name in LIBRARIES}}


def machine() -> dict[str, Any]:
    """Return what the run's speed, and in the last bit its numbers, depend on."""
    return {
        "host": platform.node(),
        "platform": platform.platform(),
        "processor": platform.machine(),
        "processor_name": _processor_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpus": os.cpu_count(),
    }


@functools.cache
def _processor_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def git_commit() -> str | None:
    """Return the commit of the working directory; None outside a repository.

    ``-dirty`` is added when files differ from it.
    """
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude", "*"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


def _version(name: str) -> str:
    if name == "rl_training":
        return _own_version()
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"


def _own_version() -> str:
    try:
        from rl_training.version import __version__
    except ImportError:
        return "unknown"
    return str(__version__)
