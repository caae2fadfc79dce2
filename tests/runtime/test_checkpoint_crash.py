"""Killed at any moment, on a full disk, under an audit hook: what was saved before stays whole."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.runtime import checkpoint as checkpoint_module
from rl_training.runtime import checkpoint_directory, files, manifest
from rl_training.runtime.checkpoint import (
    CheckpointWriteError,
    NoCheckpointError,
    latest_intact,
    list_checkpoints,
    load_checkpoint,
    load_policy,
    read_link,
    save_checkpoint,
)
from tests.processes import Process, run_source

WRITER = """
import sys, torch
from rl_training.runtime.checkpoint import save_checkpoint
step = int(sys.argv[2])
print("ready", flush=True)
while True:
    # Every second step is saved twice, the second time with other content.
    for version in range(1 + step % 2):
        save_checkpoint(sys.argv[1], step=step, keep_last=2, best=step % 3 == 0, config={"a": 1},
                        state={"step": step, "v": version, "w": torch.full((5000,), float(step))},
                        policy={"step": step})
    print(step, flush=True)
    step += 1
"""


def test_a_writer_killed_at_any_moment_leaves_an_intact_newest_checkpoint(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    moments = random.Random(7)
    step = 1
    for _ in range(6):
        with Process(run_source, WRITER, str(checkpoints), str(step)) as writer:
            assert writer.wait_for_output().startswith("ready\n")
            time.sleep(moments.uniform(0.01, 0.25))
            writer.kill()
            assert writer.wait() == -signal.SIGKILL
            done = [int(line) for line in writer.output.splitlines()[1:]]
        if not done and not list_checkpoints(checkpoints):
            continue
        loaded = load_checkpoint(latest_intact(tmp_path))
        reached = loaded.state["step"]
        assert reached >= max(done, default=step - 1)
        assert torch.equal(loaded.state["w"], torch.full((5000,), float(reached)))
        assert load_policy(loaded.path).state == {"step": reached}
        best = read_link(checkpoints, "best")
        if best is not None:
            assert load_checkpoint(best).state["step"] % 3 == 0
        step = reached + 1
    assert step > 1
    save_checkpoint(checkpoints, step=step, state={}, policy={}, config={}, keep_last=2)
    assert [path.name for path in checkpoints.iterdir() if path.name.startswith(".")] == []
    assert len(list_checkpoints(checkpoints)) <= 3


def save(checkpoints: Path, step: int, size: int = 10, best: bool = False) -> Path:
    return save_checkpoint(
        checkpoints,
        step=step,
        state={"w": torch.zeros(size), "step": step},
        policy={"w": torch.zeros(size)},
        config={},
        keep_last=2,
        best=best,
    )


class Crash(BaseException):
    """Stands for the end of the process between two system calls."""


def count_down(monkeypatch: pytest.MonkeyPatch, left: int, error: BaseException) -> list[int]:
    """Let the ``left``-th file operation from now, and every one after it, raise ``error``."""
    counter = [left]

    def guard(original: Any) -> Any:
        def guarded(*arguments: Any, **options: Any) -> Any:
            counter[0] -= 1
            if counter[0] < 0:
                raise error
            return original(*arguments, **options)

        return guarded

    for module in (files, manifest, checkpoint_module, checkpoint_directory):
        for name in ("write_durable", "sync_directory"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, guard(getattr(module, name)))
    monkeypatch.setattr(Path, "rename", guard(Path.rename))
    monkeypatch.setattr(os, "replace", guard(os.replace))
    return counter


def test_a_stop_before_any_single_file_operation_loses_nothing(tmp_path: Path) -> None:
    operations = 0
    while True:
        checkpoints = tmp_path / str(operations) / "checkpoints"
        for step in (1, 2):
            save(checkpoints, step)
        with pytest.MonkeyPatch.context() as patch:
            counter = count_down(patch, operations, Crash())
            with contextlib.suppress(Crash):
                save(checkpoints, 3, best=True)
            finished = counter[0] >= 0
        newest = load_checkpoint(latest_intact(checkpoints.parent)).state["step"]
        assert newest in (2, 3)
        # Whoever resumes from the new one has the new best; the other way round it comes again.
        best = read_link(checkpoints, "best")
        assert newest == 2 or (best is not None and best.name == "step_000000000003")
        assert save(checkpoints, 4).name == "step_000000000004"
        assert load_checkpoint(latest_intact(checkpoints.parent)).state["step"] == 4
        if finished:
            break
        operations += 1
    # Eight files, three directories, the rename and the link at the least.
    assert operations > 12


def test_every_file_and_directory_is_on_the_disk_before_the_checkpoint_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    at_rename: dict[str, Any] = {}
    fsync, rename = os.fsync, Path.rename

    def record_fsync(descriptor: int) -> None:
        flushed.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def record_rename(path: Path, target: Path) -> Path:
        at_rename["inodes"] = {part.stat().st_ino for part in [path, *path.rglob("*")]}
        at_rename["manifest"] = (path / "manifest.json").stat().st_ino
        at_rename["flushed"] = list(flushed)
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(Path, "rename", record_rename)
    path = save(tmp_path / "checkpoints", 1)
    before = at_rename["flushed"]
    assert at_rename["inodes"] <= set(before)
    assert before[-2:] == [at_rename["manifest"], path.stat().st_ino]
    after = flushed[len(before) :]
    parent = path.parent.stat().st_ino
    latest = (path.parent / "latest").stat().st_ino
    assert after == [parent, latest, parent]


def test_a_full_disk_at_any_write_keeps_the_older_checkpoints_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    checkpoints = tmp_path / "checkpoints"
    for step in (1, 2):
        save(checkpoints, step)
    before = sorted(path.name for path in checkpoints.iterdir())
    for operations in range(9):
        with pytest.MonkeyPatch.context() as patch:
            full = OSError(errno.ENOSPC, "No space left on device")
            count_down(patch, operations, full)
            with pytest.raises(CheckpointWriteError, match=r"step 3.*No space left on device"):
                save(checkpoints, 3)
        assert sorted(path.name for path in checkpoints.iterdir()) == before
        assert latest_intact(tmp_path).name == "step_000000000002"
    assert save(checkpoints, 3).name == "step_000000000003"


def test_a_file_cut_off_by_a_full_disk_is_removed_with_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = tmp_path / "checkpoints"
    save(checkpoints, 1)

    def half(path: Path, data: bytes) -> None:
        path.write_bytes(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(manifest, "write_durable", half)
    with pytest.raises(CheckpointWriteError):
        save(checkpoints, 2)
    assert sorted(path.name for path in checkpoints.iterdir()) == ["latest", "step_000000000001"]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("mounting a small file system needs rights")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=False)


def test_a_disk_that_is_really_full_keeps_the_older_checkpoint(tiny_disk: Path) -> None:
    checkpoints = tiny_disk / "checkpoints"
    first = save(checkpoints, 1, size=2_000)
    with pytest.raises(CheckpointWriteError, match="No space left on device"):
        save(checkpoints, 2, size=100_000)
    assert latest_intact(tiny_disk) == first
    assert list_checkpoints(checkpoints) == [first]
    assert save(checkpoints, 3, size=2_000).name == "step_000000000003"


AUDITED = """
import sys
refused = []
def hook(event, arguments):
    if event == "pickle.find_class":
        refused.append(event)
        raise RuntimeError(event)
import numpy, torch, pickle
from rl_training.runtime import checkpoint, seeding
def refuse(*arguments, **options):
    refused.append("load")
    raise RuntimeError("a pickle-based load")
torch.load = pickle.load = pickle.loads = pickle.Unpickler = numpy.load = refuse
sys.addaudithook(hook)
state = {"rng": seeding.global_rng_state(), "w": torch.ones(3), "a": numpy.arange(3)}
path = checkpoint.save_checkpoint(sys.argv[1] + "/checkpoints", step=1, state=state, policy=state,
                                  config={"a": 1}, keep_last=1)
loaded = checkpoint.load_checkpoint(checkpoint.latest_intact(sys.argv[1]))
assert checkpoint.digest(loaded.state) == checkpoint.digest(state)
assert checkpoint.digest(checkpoint.load_policy(path).state) == checkpoint.digest(state)
assert not refused, refused
print("clean")
"""


def test_saving_and_loading_unpickle_nothing_under_an_audit_hook(tmp_path: Path) -> None:
    with Process(run_source, AUDITED, str(tmp_path)) as process:
        out, err = process.communicate(timeout=120)
    assert out == "clean\n", err


def test_no_checkpoint_at_all_is_told_apart_from_damaged_ones(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / ".tmp-dead").mkdir(parents=True)
    with pytest.raises(NoCheckpointError):
        latest_intact(tmp_path)
