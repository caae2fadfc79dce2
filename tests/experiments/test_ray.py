"""A benchmark on a Ray cluster: here one of two CPUs, within this machine."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from rl_training.cli import main
from rl_training.errors import UserError
from rl_training.experiments.jobs import prepare
from rl_training.experiments.manager import ExperimentManager
from rl_training.experiments.ray_backend import RayBackend, run_job

MANIFEST = """
title: Tiny
seeds: [1]
episodes: 2
evaluations: 1
overlays: [tiny]
presets:
  ppo_cartpole: {total_timesteps: 256}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()


def write(directory: Path, text: str = MANIFEST) -> list[str]:
    path = directory / "tiny.yaml"
    path.write_text(text, encoding="utf-8")
    return [str(path), "--output-dir", str(directory / "out")]


def test_a_benchmark_runs_on_a_cluster(
    cluster: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = write(tmp_path)
    assert main(["benchmark", "run", *words, "--backend", "ray"]) == 0
    assert "1 done" in capsys.readouterr().out
    [job] = ExperimentManager(words[0], output_dir=tmp_path / "out").jobs
    assert (job.state().status, job.state().side_by_side) == ("done", 2)
    assert (job.directory / "scores.json").exists()
    assert (job.directory / "log.txt").stat().st_size
    assert ray.is_initialized()  # it was here before, and stays
    assert main(["benchmark", "run", *words, "--backend", "ray"]) == 0
    assert job.state().attempts == 1


@pytest.mark.slow
def test_a_job_that_another_manager_has_is_left_to_it(cluster: None, tmp_path: Path) -> None:
    words = write(tmp_path)
    made = ExperimentManager(words[0], output_dir=tmp_path / "out")
    [job] = prepare(made.manifest, made.directory)
    backend = RayBackend()
    job.write_state(status="failed", attempts=1)
    handle = backend.start(job, 0, 1)  # chosen before the other one took it
    while (status := handle.poll()) is None:
        time.sleep(0.05)
    assert status == 75
    assert job.run is None


@pytest.mark.slow
def test_a_stopped_manager_stops_the_tasks(cluster: None, tmp_path: Path) -> None:
    text = MANIFEST.replace("seeds: [1]", "seeds: [1, 2, 3]").replace("256", "10_000_000")
    made = ExperimentManager(write(tmp_path, text)[0], output_dir=tmp_path / "out")
    threading.Thread(target=_interrupt, args=(made,), daemon=True).start()
    outcome = made.run(jobs=3, say=lambda line: None, backend=RayBackend())
    assert outcome.exit_code == 130
    assert len(outcome.stopped) == 3
    # The third was sent, and had no CPU to begin on.
    assert sorted(job.state().status for job in made.jobs) == ["stopped", "stopped", "waiting"]
    for job in made.jobs[:2]:
        assert job.run is not None and (job.run / "result.json").exists()  # it wrote its end


def _interrupt(made: ExperimentManager) -> None:
    deadline = time.monotonic() + 100
    while len(list(made.directory.glob("*/*/checkpoints/latest"))) < 2:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)


def test_a_cancelled_task_ends_its_process_in_good_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import signal, sys, time\n"
    code += "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
    code += "print('ready', flush=True)\ntime.sleep(100)"
    log = tmp_path / "log.txt"
    waited = subprocess.Popen.wait
    cancelled: list[int] = []

    def wait(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if not cancelled:
            while not (log.exists() and log.read_bytes()):
                time.sleep(0.01)
            cancelled.append(process.pid)
            raise KeyboardInterrupt
        return waited(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    path = os.pathsep.join(sys.path)
    assert run_job(["python", "-c", code], path, str(log)) == 143


def test_mistakes_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r'pip install "rl_training\[ray\]"'):
        RayBackend()


def test_an_address_needs_the_backend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmark", "run", *write(tmp_path), "--ray-address", "here:6379"]) == 2
    assert "--ray-address needs --backend ray." in capsys.readouterr().err
