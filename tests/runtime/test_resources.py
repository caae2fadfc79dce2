"""What the machine has left."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_training.runtime import resources
from rl_training.runtime.resources import available_disk, available_memory, size_text


def test_memory_and_disk_are_found(tmp_path: Path) -> None:
    memory = available_memory()
    assert memory is None or memory > 2**20
    assert available_disk(tmp_path / "not" / "there") > 0


def test_a_containers_limit_counts_without_what_it_caches_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "_CGROUP", tmp_path)
    monkeypatch.setattr(resources, "_system_memory", lambda: 10_000)
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 400\ninactive_file 300\nactive_file 200\n")
    assert available_memory() == 10_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory() == 10_000
    (tmp_path / "memory.max").write_text("1000\n")
    assert available_memory() == 400


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (28_224_000_000, "28.2 GB"),
        (5.64e15, "5.64e+03 TB"),
    ],
)
def test_sizes_read_well(size: float, text: str) -> None:
    assert size_text(size) == text
