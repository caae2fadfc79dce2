"""Loggers write what they are given, go back on resume, and never stop a run."""

from __future__ import annotations

import json
import logging
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.errors import UserError
from rl_training.runtime.loggers import JsonlLogger, TensorBoardLogger, WandbLogger
from rl_training.runtime.seeding import seed_everything
from tests.processes import Process, run_source


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_values_that_json_lacks_become_null_and_arrays_become_lists(tmp_path: Path) -> None:
    log = JsonlLogger(tmp_path / "log.jsonl")
    values = {
        "nan": float("nan"),
        "list": [float("inf"), 1.5],
        "numpy": np.float32(0.5),
        "array": np.array([1.0, np.nan]),
        "tensor": torch.tensor(3),
        "text": "é",
        "nested": {"x": -float("inf")},
    }
    log.log(7, values)
    assert json.loads((tmp_path / "log.jsonl").read_text()) == {
        "step": 7,
        "nan": None,
        "list": [None, 1.5],
        "numpy": 0.5,
        "array": [1.0, None],
        "tensor": 3,
        "text": "é",
        "nested": {"x": None},
    }


def test_each_line_is_in_the_file_at_once(tmp_path: Path) -> None:
    log = JsonlLogger(tmp_path / "log.jsonl")
    for step in range(3):
        log.log(step, {})
        assert steps(tmp_path / "log.jsonl") == list(range(step + 1))


def test_the_state_is_the_length_and_loading_it_cuts_off_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = JsonlLogger(path)
    log.log(1, {"x": 1.0})
    state = log.state_dict()
    assert state == {"offset": path.stat().st_size} == {"offset": len('{"step": 1, "x": 1.0}\n')}
    log.log(2, {})
    log.close()
    again = JsonlLogger(path)
    again.load_state_dict(state)
    again.log(3, {})
    assert steps(path) == [1, 3]
    again.load_state_dict({})
    assert path.read_bytes() == b""


@pytest.mark.parametrize("size", [1, 70_000, 200_000])
def test_a_last_line_cut_short_by_a_crash_is_removed(tmp_path: Path, size: int) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2, "x": "' + b"x" * size)
    JsonlLogger(path).log(2, {})
    assert steps(path) == [1, 2]


def test_a_file_of_one_half_line_starts_empty(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step"')
    JsonlLogger(path)
    assert path.read_bytes() == b""


def test_a_file_that_lost_lines_is_continued_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = JsonlLogger(tmp_path / "log.jsonl")
    log.log(1, {})
    log.load_state_dict({"offset": 1000})
    assert "shorter" in caplog.text
    log.log(2, {})
    assert steps(tmp_path / "log.jsonl") == [1, 2]


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("mounting a small file system needs rights")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=False)


def test_a_full_disk_loses_lines_with_one_warning_and_no_half_line(
    full_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = JsonlLogger(full_disk / "log.jsonl")
    log.log(1, {})
    filler = full_disk / "filler"
    filler.write_bytes(b"x" * 12288)
    for step in (2, 3):
        log.log(step, {"x": "y" * 8000})
    assert steps(full_disk / "log.jsonl") == [1]
    assert len(caplog.records) == 1
    filler.unlink()
    log.log(4, {})
    assert steps(full_disk / "log.jsonl") == [1, 4]


def scalars(directory: Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing import (
        event_accumulator,
    )

    accumulator = event_accumulator.EventAccumulator(str(directory))
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(name)]


def test_tensorboard_shows_each_step_once_after_a_crash_and_resume(tmp_path: Path) -> None:
    log = TensorBoardLogger(tmp_path)
    log.log(10, {"loss/policy": 1.0})
    state = log.state_dict()
    assert state == {"last_step": 10}
    log.log(20, {"loss/policy": -99.0})
    log.close()

    resumed = TensorBoardLogger(tmp_path)
    resumed.load_state_dict(state)
    resumed.log(20, {"loss/policy": 2.0})
    resumed.log(30, {"loss/policy": 3.0})
    resumed.close()
    resumed.close()
    assert scalars(tmp_path, "loss/policy") == [(10, 1.0), (20, 2.0), (30, 3.0)]


def test_tensorboard_hides_everything_of_a_run_that_began_again(tmp_path: Path) -> None:
    log = TensorBoardLogger(tmp_path)
    log.log(0, {"x": -1.0})
    log.log(10, {"x": -1.0})
    log.load_state_dict({})
    log.log(10, {"x": 5.0})
    log.close()
    assert scalars(tmp_path, "x") == [(10, 5.0)]


def test_tensorboard_is_imported_with_the_first_metrics(tmp_path: Path) -> None:
    program = (
        "import sys; from rl_training.runtime.loggers import TensorBoardLogger\n"
        "log = TensorBoardLogger(__import__('pathlib').Path(sys.argv[1]))\n"
        "assert 'torch.utils.tensorboard' not in sys.modules\n"
        "assert 'wandb' not in sys.modules\n"
    )
    with Process(run_source, program, str(tmp_path / "tb")) as process:
        _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert not (tmp_path / "tb").exists()


def test_a_tensorboard_that_fails_is_switched_off_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    log = TensorBoardLogger(tmp_path / "file")
    with caplog.at_level(logging.WARNING):
        for step in range(3):
            log.log(step, {"x": 1.0})
    log.state_dict()
    log.close()
    warnings = [record for record in caplog.records if "TensorBoard failed" in record.getMessage()]
    assert len(warnings) == 1


def test_loggers_leave_the_global_generators_alone(tmp_path: Path) -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    seed_everything(1)
    expected = draw()
    seed_everything(1)
    log = TensorBoardLogger(tmp_path)
    log.log(1, {"x": 1.0})
    log.close()
    assert draw() == expected


class FakeWandb:
    """Records what the logger asks of wandb; fails where it is told to."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.starts: list[dict[str, Any]] = []
        self.logged: list[tuple[dict[str, float], int]] = []
        self.finished = 0

    def Settings(self, **options: Any) -> dict[str, Any]:  # noqa: N802 (wandb calls it so)
        return options

    def init(self, **options: Any) -> FakeWandb:
        random.random()
        if self.failing == "init":
            raise RuntimeError("no network")
        self.starts.append(options)
        return self

    def log(self, metrics: dict[str, float], step: int) -> None:
        if self.failing == "log":
            raise RuntimeError("no network")
        self.logged.append((metrics, step))

    def finish(self) -> None:
        self.finished += 1


def wandb_logger(directory: Path) -> WandbLogger:
    return WandbLogger(
        mode="offline",
        directory=directory,
        project="p",
        config={"seed": 1},
        group="g",
        tags=["t"],
    )


def test_wandb_resumes_under_the_run_id_of_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    log = wandb_logger(tmp_path / "a")
    log.log(1, {"x": 1.0})
    state = log.state_dict()
    log.close()
    moved = wandb_logger(tmp_path / "b")
    assert moved.run_id != state["run_id"]
    moved.load_state_dict(state)
    moved.log(2, {"x": 2.0})
    moved.close()
    assert [start["id"] for start in fake.starts] == [state["run_id"]] * 2
    assert {start["resume"] for start in fake.starts} == {"allow"}
    assert fake.starts[0]["mode"] == "offline"
    assert fake.starts[0]["group"] == "g"
    assert fake.starts[0]["config"] == {"seed": 1}
    assert fake.logged == [({"x": 1.0}, 1), ({"x": 2.0}, 2)]
    assert fake.finished == 2


@pytest.mark.parametrize("failing", ["init", "log"])
def test_a_wandb_that_fails_never_stops_the_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failing: str,
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", FakeWandb(failing))
    log = wandb_logger(tmp_path)
    for step in range(3):
        log.log(step, {"x": 1.0})
    log.close()
    assert [record.getMessage() for record in caplog.records] == [
        "Weights & Biases failed and is off for the rest of the run: no network"
    ]


def test_wandb_draws_nothing_from_the_runs_generators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", FakeWandb())
    random.seed(5)
    expected = random.random()
    random.seed(5)
    wandb_logger(tmp_path).log(1, {})
    assert random.random() == expected


def test_a_missing_wandb_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r'pip install "rl_training\[wandb\]"'):
        wandb_logger(tmp_path)


def test_a_wandb_that_cannot_be_imported_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb.py").write_text("raise AttributeError('numpy has no\\nfloat_')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(
        UserError, match=r"\(AttributeError: numpy has no float_\): mend it, or use"
    ):
        WandbLogger(mode="offline", directory=tmp_path, project="p", config={})


def test_wandb_offline_writes_its_files_into_the_run_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    directory = tmp_path / "run"
    directory.mkdir()
    log = wandb_logger(directory)
    log.log(1, {"x": 1.0})
    state = log.state_dict()
    log.close()
    resumed = wandb_logger(directory)
    resumed.load_state_dict(state)
    resumed.log(2, {"x": 2.0})
    resumed.close()
    assert "failed" not in caplog.text
    found = list((directory / "wandb").glob(f"offline-run-*/run-{state['run_id']}.wandb"))
    assert len(found) >= 1
    assert all(path.stat().st_size > 0 for path in found)
