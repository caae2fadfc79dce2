"""Large, growing tensors in checkpoints: what a save costs, and what a load believes."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rl_training.runtime import files
from rl_training.runtime.checkpoint import (
    CheckpointError,
    CheckpointWriteError,
    digest,
    latest_intact,
    list_checkpoints,
    load_checkpoint,
    save_alone,
    save_checkpoint,
    verify,
)
from rl_training.runtime.sharded import Sharded, rows_per_shard
from rl_training.runtime.state import StateError, decode_state, encode_state
from tests.processes import Process, run_source


class Ring:
    """A ring of rows that count up: row r holds r and r * r."""

    def __init__(self, size: int, shard_rows: int = 4) -> None:
        self.tensor = torch.zeros(size, 2, dtype=torch.int64)
        self.shard_rows, self.written = shard_rows, 0
        self.known: dict[int, tuple[str, int]] = {}

    def grow(self, count: int) -> Ring:
        for row in range(self.written, self.written + count):
            self.tensor[row % len(self.tensor)] = rows(row, row + 1)[0]
        self.written += count
        return self

    def leaf(self, **changes: Any) -> Sharded:
        values: dict[str, Any] = {
            "start": max(0, self.written - len(self.tensor)),
            "stop": self.written,
            "sealed": self.written,
            "shard_rows": self.shard_rows,
            "known": self.known,
        }
        return Sharded.of_ring(self.tensor, **{**values, **changes})


def rows(first: int, last: int) -> Tensor:
    numbers = torch.arange(first, last)
    return torch.stack([numbers, numbers * numbers], 1)


def save(place: Path, ring: Ring, **changes: Any) -> Path:
    arguments: dict[str, Any] = {"step": ring.written, "keep_last": 3, **changes}
    state = {"ring": ring.leaf(), "number": 1}
    return save_checkpoint(place, state=state, policy={}, config={}, **arguments)


def held(leaf: Sharded) -> Tensor:
    return torch.cat([torch.zeros(0, 2, dtype=torch.int64), *leaf.pieces()])


def shard_files(checkpoint: Path) -> set[str]:
    return {path.name for path in (checkpoint / "shards").iterdir()}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files written, links left out."""
    names: list[str] = []
    from rl_training.runtime import manifest

    def note(path: Path, data: bytes) -> None:
        names.append(path.name)
        files.write_durable(path, data)

    monkeypatch.setattr(manifest, "write_durable", note)
    return names


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(1, 12),
    shard_rows=st.integers(1, 6),
    growths=st.lists(st.integers(0, 15), min_size=1, max_size=5),
    unsealed=st.integers(0, 2),
)
def test_the_rows_come_back_however_they_are_cut(
    tmp_path_factory: pytest.TempPathFactory,
    size: int,
    shard_rows: int,
    growths: list[int],
    unsealed: int,
) -> None:
    place, ring = tmp_path_factory.mktemp("run"), Ring(size, shard_rows)
    for growth in growths:
        ring.grow(growth)
        start = max(0, ring.written - size)
        leaf = ring.leaf(sealed=max(start, ring.written - unsealed))
        state = {"ring": leaf}
        path = save_checkpoint(
            place, step=ring.written, state=state, policy={}, config={}, keep_last=2
        )
        loaded = load_checkpoint(path).state
        assert digest(loaded) == digest(state)
        assert torch.equal(held(loaded["ring"]), rows(start, ring.written))
        again = torch.full((size, 2), -1)
        loaded["ring"].copy_into(again)
        for row in range(start, ring.written):
            assert torch.equal(again[row % size], rows(row, row + 1)[0])


def test_a_second_save_writes_only_what_is_new(tmp_path: Path, written: list[str]) -> None:
    ring = Ring(10_000, shard_rows=64)
    first = save(tmp_path, ring.grow(6400))
    assert len(shard_files(first)) == 100
    del written[:]
    second = save(tmp_path, ring.grow(70))
    new = [name for name in written if name.removesuffix(".safetensors") not in ("state", "policy")]
    new = [name for name in new if name.endswith(".safetensors")]
    assert set(new) == shard_files(second) - shard_files(first)
    assert len(new) == 2  # the shard of rows 6400 to 6463, and the tail
    for name in shard_files(first):
        assert (first / "shards" / name).samefile(second / "shards" / name)
    size = sum((second / "shards" / name).stat().st_size for name in new)
    assert size < 70 * 16 + 2 * 200


def test_each_checkpoint_is_complete_when_the_others_are_gone(tmp_path: Path) -> None:
    ring = Ring(50)
    for _ in range(6):
        last = save(tmp_path, ring.grow(7), keep_last=1)
    assert list_checkpoints(tmp_path) == [last]
    verify(last)
    assert torch.equal(held(load_checkpoint(last).state["ring"]), rows(0, 42))


def test_a_full_ring_keeps_linking_and_drops_what_is_overwritten(
    tmp_path: Path, written: list[str]
) -> None:
    ring = Ring(40, shard_rows=4)
    save(tmp_path, ring.grow(62))
    for _ in range(5):
        del written[:]
        path = save(tmp_path, ring.grow(3))
        assert sum(len(name) > 64 for name in written) <= 2
        assert len(shard_files(path)) <= 12
        assert torch.equal(held(load_checkpoint(path).state["ring"]), rows(*bounds(ring)))
    assert len(ring.known) <= 11


def bounds(ring: Ring) -> tuple[int, int]:
    return max(0, ring.written - len(ring.tensor)), ring.written


def test_links_go_on_after_a_resume(tmp_path: Path, written: list[str]) -> None:
    ring = Ring(1000, shard_rows=16)
    first = save(tmp_path, ring.grow(320))
    resumed, loaded = Ring(1000, shard_rows=16), load_checkpoint(first).state["ring"]
    loaded.copy_into(resumed.tensor)
    resumed.written, resumed.known = 320, dict(loaded.known)
    del written[:]
    second = save(tmp_path, resumed.grow(5))
    assert sum(len(name) > 64 for name in written) == 1
    assert torch.equal(held(load_checkpoint(second).state["ring"]), rows(0, 325))


def test_rows_not_sealed_are_written_again(tmp_path: Path) -> None:
    ring = Ring(100, shard_rows=4).grow(8)
    state = {"ring": ring.leaf(sealed=7)}
    save_checkpoint(tmp_path, step=1, state=state, policy={}, config={}, keep_last=2)
    ring.tensor[7] = -1
    path = save(tmp_path, ring.grow(1), step=2)
    assert load_checkpoint(path).state["ring"].read(7, 8).tolist() == [[-1, -1]]


def test_without_hard_links_everything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    ring = Ring(20)
    first = save(tmp_path, ring.grow(18))
    monkeypatch.setattr(os, "link", refuse)
    second = save(tmp_path, ring.grow(9))
    assert torch.equal(held(load_checkpoint(second).state["ring"]), rows(7, 27))
    for name in shard_files(first) & shard_files(second):
        assert not (first / "shards" / name).samefile(second / "shards" / name)
    verify(first)
    verify(second)


def test_a_file_cut_short_is_not_linked_but_written_anew(tmp_path: Path) -> None:
    ring = Ring(100)
    first = save(tmp_path, ring.grow(16))
    for name in shard_files(first):
        os.truncate(first / "shards" / name, 3)
    second = save(tmp_path, ring.grow(4))
    verify(second)
    assert torch.equal(held(load_checkpoint(second).state["ring"]), rows(0, 20))


def test_equal_shards_are_one_file(tmp_path: Path) -> None:
    ring = torch.zeros(64, 3)
    leaf = Sharded.of_ring(ring, start=0, stop=64, sealed=64, shard_rows=8, known={})
    path = save_alone(tmp_path / "x", step=0, state={"ring": leaf}, policy={}, config={})
    assert len(shard_files(path)) == 1
    assert digest(load_checkpoint(path).state) == digest({"ring": leaf})


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "swap"])
def test_a_damaged_shard_is_named_and_the_checkpoint_before_is_used(
    tmp_path: Path, damage: str
) -> None:
    place = tmp_path / "checkpoints"
    ring = Ring(100)
    first = save(place, ring.grow(10))
    second = save(place, ring.grow(10))
    (victim,) = (
        second / "shards" / name
        for name in shard_files(second) - shard_files(first)
        if torch.equal(safetensors.torch.load_file(second / "shards" / name)["rows"], rows(12, 16))
    )
    if damage == "flip":
        data = bytearray(victim.read_bytes())
        data[-1] ^= 1
        victim.write_bytes(data)
    elif damage == "cut":
        os.truncate(victim, 50)
    elif damage == "remove":
        victim.unlink()
    else:
        other = next(path for path in victim.parent.iterdir() if path != victim)
        victim.unlink()
        shutil.copy(other, victim)
    with pytest.raises(CheckpointError, match=victim.name):
        verify(second)
    with pytest.raises(CheckpointError, match=victim.name):
        held(load_checkpoint(second).state["ring"])
    assert latest_intact(tmp_path) == first
    assert torch.equal(held(load_checkpoint(first).state["ring"]), rows(0, 10))


@pytest.mark.parametrize("failing", range(1, 8))
def test_a_full_disk_leaves_the_older_ones_and_the_next_save_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    from rl_training.runtime import manifest

    ring = Ring(100)
    first = save(tmp_path, ring.grow(10))
    calls = iter(range(1, 100))

    def full(path: Path, data: bytes) -> None:
        if next(calls) == failing:
            path.write_bytes(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        files.write_durable(path, data)

    monkeypatch.setattr(manifest, "write_durable", full)
    with pytest.raises(CheckpointWriteError):
        save(tmp_path, ring.grow(13))
    monkeypatch.undo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", first.name]
    verify(first)
    last = save(tmp_path, ring.grow(2))
    verify(last)
    assert torch.equal(held(load_checkpoint(last).state["ring"]), rows(0, 25))


WRITER = """
import sys
from pathlib import Path
from tests.runtime.test_shards import Ring, resume, save
place = Path(sys.argv[1])
ring = resume(place)
while True:
    save(place / "checkpoints", ring.grow(37), keep_last=2)
    print(ring.written, flush=True)
"""


def resume(run: Path) -> Ring:
    """Return the ring of a run's newest intact checkpoint, every row compared."""
    ring = Ring(60)
    if (run / "checkpoints").is_dir() and list_checkpoints(run / "checkpoints"):
        leaf = load_checkpoint(latest_intact(run)).state["ring"]
        assert torch.equal(held(leaf), rows(leaf.start, leaf.stop))
        leaf.copy_into(ring.tensor)
        ring.written, ring.known = leaf.stop, dict(leaf.known)
    return ring


def test_a_writer_killed_at_any_moment_leaves_all_rows_and_goes_on(tmp_path: Path) -> None:
    moments, reached = random.Random(3), 0
    for _ in range(4):
        with Process(run_source, WRITER, str(tmp_path)) as writer:
            writer.wait_for_output()
            time.sleep(moments.uniform(0.01, 0.2))
            writer.kill()
            assert writer.wait() == -signal.SIGKILL
            reached = max(map(int, writer.output.splitlines()))
        for path in list_checkpoints(tmp_path / "checkpoints"):
            verify(path)
        assert resume(tmp_path).written >= reached
    assert reached >= 4 * 37


@pytest.mark.parametrize(
    "change",
    [
        {"start": -1},
        {"shard_rows": 0},
        {"sealed": 99},
        {"stop": 11},
        {"files": []},
        {"files": [[0, 10]]},
        {"files": [[0, 4, "a"], [5, 10, "b"]]},
        {"dtype": "object"},
        {"row_shape": "2"},
    ],
)
def test_a_structure_that_makes_no_sense_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = save(tmp_path, Ring(100).grow(10))
    structure = json.loads((path / "state.json").read_text(encoding="utf-8"))
    structure["dict"]["ring"]["sharded"].update(change)
    from rl_training.runtime.shards import ShardReader

    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    tensors = safetensors.torch.load_file(path / "state.safetensors")
    with pytest.raises((ValueError, KeyError, TypeError)):
        decode_state(tensors, structure, ShardReader(path, manifest).read)


def test_the_digest_covers_rows_and_numbers_and_not_the_cutting() -> None:
    ring = Ring(10, shard_rows=4).grow(13)
    reference = digest(ring.leaf())
    assert digest(ring.leaf(shard_rows=3, sealed=5, known={3: ("x", 1)})) == reference
    moved = Ring(30, shard_rows=7).grow(13)
    assert digest(moved.leaf(start=3)) == reference
    assert digest(ring.leaf(start=4)) != reference
    ring.tensor[11 % 10, 1] += 1
    assert digest(ring.leaf()) != reference
    assert digest(Ring(10).leaf()) != digest(torch.zeros(0, 2, dtype=torch.int64))


def test_rows_without_a_place_for_files_are_refused_by_name() -> None:
    with pytest.raises(StateError, match="/a/b"):
        encode_state({"a": {"b": Ring(4).leaf()}})
    with pytest.raises(ValueError, match="no files"):
        decode_state({}, {"sharded": {}})


def test_a_ring_of_another_shape_takes_nothing() -> None:
    leaf = Ring(10).grow(10).leaf()
    for other in (torch.zeros(9, 2).long(), torch.zeros(10, 3).long(), torch.zeros(10, 2)):
        with pytest.raises(ValueError, match="do not fit"):
            leaf.copy_into(other)


def test_a_shard_is_at_most_eight_mebibytes() -> None:
    assert rows_per_shard(torch.empty(1, 8, 4, 84, 84, dtype=torch.uint8), at_most=2048) == 32
    assert rows_per_shard(torch.empty(1, 4), at_most=2048) == 2048
    assert rows_per_shard(torch.empty(1, 4), at_most=100) == 64
    assert rows_per_shard(torch.empty(1, 2**22), at_most=100) == 1
