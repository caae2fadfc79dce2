"""SIGINT and SIGTERM: the iteration is finished and saved; the second one stops at once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from rl_training import cli
from tests.reliability import environments
from tests.reliability.conftest import Reference
from tests.reliability.runs import (
    assert_same_training,
    checkpoints,
    result,
    started,
    status,
    the_run,
    wait_for_lines,
)
from tests.reliability.settings import FRAMES, ITERATIONS, setting, write_setting

NAME = "ppg_cartpole_normalized"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_saves_and_the_run_resumes_to_the_same_end(
    tmp_path: Path, reference: Reference, number: signal.Signals
) -> None:
    output = tmp_path / "runs"
    config = write_setting(tmp_path / "config.yaml", setting(NAME, output_dir=str(output)))
    with started("train", "--config", config) as process:
        wait_for_lines(process, output, 7)
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number, err
    run = the_run(output)
    assert f" resume {run}\n" in out
    assert "Traceback" not in err
    assert status(run) == "interrupted"
    stopped = result(run)
    assert stopped["status"] == "interrupted"
    assert stopped["reason"] == number.name
    assert stopped["eval"] is None or stopped["global_step"] < ITERATIONS * FRAMES
    assert checkpoints(run)[-1].name == f"step_{stopped['global_step']:012d}"
    assert stopped["global_step"] % FRAMES == 0
    assert cli.main(["resume", str(run)]) == 0
    assert_same_training(run, reference(NAME))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_whole_group_leaves_the_workers_to_finish_the_iteration(
    tmp_path: Path, reference: Reference, number: signal.Signals
) -> None:
    """As a terminal's Ctrl-C, ``timeout`` and clusters send it."""
    output, name = tmp_path / "runs", "ppg_cartpole_async"
    config = write_setting(tmp_path / "config.yaml", setting(name, output_dir=str(output)))
    with started("train", "--config", config) as process:
        wait_for_lines(process, output, 5)
        os.killpg(process.pid, number)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 128 + number, err
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)  # no worker is left
    run = the_run(output)
    assert status(run) == "interrupted"
    assert cli.main(["resume", str(run)]) == 0
    assert_same_training(run, reference(name))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_stops_at_once(tmp_path: Path, number: signal.Signals) -> None:
    output = tmp_path / "runs"
    content = setting(
        "ppo_cartpole",
        env_id=environments.environment_id("Stuck"),
        output_dir=str(output),
        evaluation={"interval": None},
        tracking={"log_interval": None, "tensorboard": False},
    )
    config = write_setting(tmp_path / "config.yaml", content)
    with started("train", "--config", config) as process:
        wait_for_lines(process, output, 6)  # the seventh iteration takes a minute
        time.sleep(0.3)
        process.send_signal(number)
        time.sleep(1.0)
        assert process.poll() is None, "the first signal must wait for the iteration"
        process.send_signal(number)
        before = time.monotonic()
        process.communicate(timeout=50)
        assert time.monotonic() - before < 30
    assert process.returncode in (128 + number, -number)
    latest = checkpoints(the_run(output))[-1]
    assert latest.name <= f"step_{6 * FRAMES:012d}"
