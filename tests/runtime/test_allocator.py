"""Memory that is freed and asked for again is there without the system's help."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from tests.reliability.runs import environment

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator")

COUNT = """
import ctypes
import resource
import sys

import torch

from rl_training.runtime.allocator import keep_freed_memory


def work():
    '''Write to tensors of 8 MiB, and free them, the last one first: the heap's end is free.'''
    tensors = [torch.empty(2**21).fill_(1.0) for _ in range(4)]
    while tensors:
        tensors.pop()


def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def steady():
    for _ in range(5):
        work()
    before = faults()
    for _ in range(10):
        work()
    return (faults() - before) / 10 * resource.getpagesize() / 2**25


torch.set_num_threads(1)
# What glibc does by itself depends on what lies where in the heap: here, as it is at its worst.
ctypes.CDLL(None).mallopt(-1, 2**17)
before = steady()
keep_freed_memory()
print(before, steady())
"""


def new_pages(**variables: str) -> list[float]:
    """Return the share of the memory asked for that the system has to map, at every call: before
    and after it was told to keep what is freed.
    """
    done = subprocess.run(
        [sys.executable, "-c", COUNT],
        capture_output=True,
        text=True,
        env={**environment(), **variables},
        check=True,
    )
    return [float(word) for word in done.stdout.split()]


def test_freed_memory_is_used_again_without_new_pages() -> None:
    before, after = new_pages()
    assert before > 0.9
    assert after < 0.01


def test_settings_of_the_environment_are_left_alone() -> None:
    before, after = new_pages(MALLOC_TRIM_THRESHOLD_="131072")
    assert before > 0.9
    assert after > 0.9
