"""A finished run: nothing changes unless its budget grows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rl_training import cli
from tests.reliability.conftest import Reference
from tests.reliability.runs import (
    assert_same_training,
    checkpoints,
    content,
    digest,
    evaluations,
    execute,
    metrics,
    result,
    status,
    the_run,
)
from tests.reliability.settings import FRAMES, ITERATIONS, setting, write_setting

NAME = "ppo_cartpole"
BUDGET = ITERATIONS * FRAMES


@pytest.fixture
def run(tmp_path: Path, reference: Reference) -> Path:
    return shutil.copytree(reference(NAME), tmp_path / "run")


def test_resuming_it_changes_no_byte_and_says_so(run: Path) -> None:
    before = content(run)
    done = execute("resume", run)
    assert done.returncode == 0
    assert f"finished at step {BUDGET:,}" in done.stdout
    assert "nothing was changed" in done.stdout
    assert content(run) == before


@pytest.mark.parametrize(("budget", "status"), [(1, 2), (BUDGET - 1, 2), (BUDGET, 0)])
def test_a_budget_that_is_not_larger_changes_nothing(
    run: Path, budget: int, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(run)
    assert cli.main(["resume", str(run), "--total-timesteps", str(budget)]) == status
    refused = f"total_timesteps is {budget}, and {BUDGET} steps are done already."
    assert (refused in capsys.readouterr().err) == (status == 2)
    assert content(run) == before


def train(directory: Path, **changes: Any) -> Path:
    settings = setting(NAME, output_dir=str(directory / "runs"), **changes)
    config = write_setting(directory / "config.yaml", settings)
    assert cli.main(["train", "--config", str(config)]) == 0
    return the_run(directory / "runs")


SHORT = {
    "total_timesteps": 8 * FRAMES,
    "algorithm": {"target_kl": None},
    "tracking": {"log_interval": None},
}


def learning_rates(run: Path) -> list[float]:
    return [line["train/learning_rate"] for line in metrics(run)]


def test_a_larger_budget_keeps_the_schedules_at_their_end(tmp_path: Path) -> None:
    run = train(tmp_path, **SHORT)
    straight = [1e-3 * (1 - done / 8) for done in range(8)]
    assert learning_rates(run) == pytest.approx(straight, rel=1e-6)
    assert cli.main(["resume", str(run), "--total-timesteps", str(12 * FRAMES)]) == 0
    assert learning_rates(run) == pytest.approx([*straight, 0.0, 0.0, 0.0, 0.0], rel=1e-6)
    assert result(run)["global_step"] == 12 * FRAMES


def test_reschedule_stretches_the_schedules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path, **SHORT)
    assert capsys.readouterr().out.endswith("--total-timesteps N --reschedule\n")
    words = ["resume", str(run), "--total-timesteps", str(12 * FRAMES), "--reschedule"]
    assert cli.main(words) == 0
    expected = [1e-3 * (1 - done / 8) for done in range(8)]
    expected += [1e-3 * (1 - done / 12) for done in range(8, 12)]
    assert learning_rates(run) == pytest.approx(expected, rel=1e-6)


def test_a_run_extended_twice_ends_as_the_one_extended_once(tmp_path: Path) -> None:
    run = train(tmp_path, **SHORT)
    other = shutil.copytree(run, tmp_path / "other")
    assert cli.main(["resume", str(run), "--total-timesteps", str(14 * FRAMES)]) == 0
    for iterations in (10, 14):
        assert cli.main(["resume", str(other), "--total-timesteps", str(iterations * FRAMES)]) == 0
    assert digest(run) == digest(other)
    assert metrics(run) == metrics(other)


def pretend_killed(run: Path, *, budget: int | None = None) -> None:
    """Leave the run as a kill would: its last words unsaid, perhaps with a larger budget begun."""
    metadata = json.loads((run / "metadata.json").read_text(encoding="utf-8"))
    (run / "metadata.json").write_text(json.dumps({**metadata, "status": "running"}))
    if budget is None:
        (run / "result.json").unlink()
    else:
        path = run / "config.yaml"
        path.write_text(
            path.read_text().replace(f"total_timesteps: {8 * FRAMES}", f"total_timesteps: {budget}")
        )


def test_a_run_killed_after_its_last_checkpoint_still_gets_its_result(
    run: Path, reference: Reference
) -> None:
    pretend_killed(run)
    assert cli.main(["resume", str(run)]) == 0
    assert_same_training(run, reference(NAME))


def test_an_extended_run_killed_before_a_new_checkpoint_keeps_the_larger_budget(
    tmp_path: Path,
) -> None:
    run = train(tmp_path, **SHORT)
    other = shutil.copytree(run, tmp_path / "other")
    assert cli.main(["resume", str(other), "--total-timesteps", str(12 * FRAMES)]) == 0
    pretend_killed(run, budget=12 * FRAMES)
    assert cli.main(["resume", str(run)]) == 0
    assert result(run)["global_step"] == 12 * FRAMES
    assert digest(run) == digest(other)


def test_a_run_that_reached_its_goal_is_finished_before_its_budget(tmp_path: Path) -> None:
    run = train(tmp_path, evaluation={"interval": 4 * FRAMES, "stop_on_return": 1.0})
    assert result(run)["global_step"] == 4 * FRAMES
    assert "reached" in result(run)["reason"]
    before = content(run)
    assert cli.main(["resume", str(run)]) == 0
    assert content(run) == before


def test_the_last_step_is_evaluated_once(tmp_path: Path) -> None:
    run = train(tmp_path, **SHORT, evaluation={"interval": 4 * FRAMES})
    assert [line["step"] for line in evaluations(run)] == [4 * FRAMES, 8 * FRAMES]
    assert status(run) == "finished"
    assert result(run)["eval"]["return_mean"] == evaluations(run)[-1]["return_mean"]


def test_one_checkpoint_of_a_finished_run_can_be_gone_on_from(
    run: Path, reference: Reference
) -> None:
    assert cli.main(["resume", str(checkpoints(run)[0])]) == 0
    assert_same_training(run, reference(NAME))
