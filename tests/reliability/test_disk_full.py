"""A full disk costs a checkpoint, never the run and never the checkpoint before. A run whose last
checkpoint it costs does not claim success.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from rl_training import cli
from rl_training.cli.experiments import RunArguments
from rl_training.cli.tune import TuneArguments
from rl_training.runtime.checkpoint import verify
from rl_training.runtime.files import write_durable
from tests.reliability.conftest import Reference
from tests.reliability.runs import (
    assert_same_training,
    checkpoints,
    digest,
    result,
    started,
    status,
    the_run,
    wait_for_lines,
)
from tests.reliability.settings import setting, write_setting

NAME = "ppg_cartpole_normalized"


def test_a_refused_write_leaves_the_older_checkpoint_and_the_run_goes_on(
    tmp_path: Path,
    reference: Reference,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    uninterrupted = reference(NAME)  # before any write is refused
    written: list[Path] = []

    def full_after_twenty_files(path: Path, data: bytes) -> None:
        written.append(path)
        if len(written) > 20:
            write_durable(path, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_durable(path, data)

    monkeypatch.setattr("rl_training.runtime.manifest.write_durable", full_after_twenty_files)
    output = tmp_path / "runs"
    config = write_setting(tmp_path / "config.yaml", setting(NAME, output_dir=str(output)))
    with caplog.at_level(logging.WARNING):
        assert cli.main(["train", "--config", str(config)]) == 1
    warnings = [line for line in caplog.messages if "no checkpoint was written" in line]
    assert "No space left on device" in warnings[0]
    assert str(output) in warnings[0]
    run = the_run(output)
    assert status(run) == "failed"
    assert "no checkpoint was written; the latest checkpoint is still" in result(run)["reason"]
    assert digest(run) == digest(uninterrupted)
    kept = checkpoints(run)
    assert len(written) > 20
    assert 0 < len(kept) < len(checkpoints(uninterrupted)) + 1
    for checkpoint in kept:
        verify(checkpoint)
    assert (run / "checkpoints" / "latest").read_text().strip() == kept[-1].name
    assert [path for path in (run / "checkpoints").iterdir() if path.name.startswith(".")] == []


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    """Mount a file system of 4 MB; skips where that is not allowed."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode != 0:
        pytest.skip(f"mounting is not allowed: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(path: Path) -> None:
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_a_run_on_a_full_disk_finishes_and_is_resumed_once_there_is_room(
    tmp_path: Path, reference: Reference
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        output = disk / "runs"
        content = setting(NAME, output_dir=str(output), tracking={"tensorboard": True})
        config = write_setting(tmp_path / "config.yaml", content)
        with started("train", "--config", config) as process:
            wait_for_lines(process, output, 6)
            fill(disk / "filler")
            _, err = process.communicate(timeout=120)
        assert process.returncode == 1, err
        assert "no checkpoint was written" in err
        run = the_run(output)
        assert checkpoints(run) != []
        for checkpoint in checkpoints(run):
            verify(checkpoint)
        (disk / "filler").unlink()
        assert checkpoints(run)[-1].name < checkpoints(reference(NAME))[-1].name
        assert cli.main(["resume", str(run)]) == 0
        assert status(run) == "finished"
        assert_same_training(run, reference(NAME))


@contextlib.contextmanager
def heard_by_nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let both outputs go to a full disk, as those of ``train > log 2>&1``."""
    if not os.path.exists("/dev/full"):
        pytest.skip("needs Linux's device that is always full")
    with monkeypatch.context() as patch, open("/dev/full", "w") as out, open("/dev/full", "w") as e:
        patch.setattr("sys.stdout", out)
        patch.setattr("sys.stderr", e)
        yield


def test_a_full_disk_behind_the_outputs_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its replay buffer is announced before training.
    content = setting("dqn_cartpole_prioritized", output_dir=str(tmp_path / "runs"))
    config = write_setting(tmp_path / "config.yaml", content)
    with heard_by_nobody(monkeypatch):
        assert cli.main(["train", "--config", str(config)]) == 0
        assert cli.main(["resume", str(the_run(tmp_path / "runs"))]) == 0
        assert cli.main(["nonsense"]) == 2
    assert status(the_run(tmp_path / "runs")) == "finished"


def test_a_study_and_a_benchmark_go_on_unheard(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = SimpleNamespace(
        done=["job"], failed={}, stopped=[], elsewhere=[], exit_code=0, trials=2, best_trial=None
    )

    class Says:
        directory = Path("study")

        def run(self, *_: object, say: Callable[[str], None], **options: object) -> SimpleNamespace:
            say("begin")
            say("done")
            return outcome

    monkeypatch.setattr(TuneArguments, "study", lambda _: Says())
    monkeypatch.setattr(RunArguments, "manager", lambda _: Says())
    with heard_by_nobody(monkeypatch):
        assert cli.main(["tune", "--config", "ppo_cartpole"]) == 0
        sys.stdout.close()
        assert cli.main(["benchmark", "run", "cartpole"]) == 0
