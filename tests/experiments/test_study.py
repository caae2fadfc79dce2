"""Tuning: the best is found and written, what is killed goes on, what fails does not matter."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rl_training.cli import main
from rl_training.config import TrainConfig, load_config
from rl_training.errors import UserError
from rl_training.experiments import study as study_module
from rl_training.experiments import study_session
from rl_training.experiments.search_space import between, choice, logarithmic
from rl_training.experiments.study import Study, StudyOutcome
from rl_training.experiments.study_results import counted
from rl_training.runtime.run_lock import RunLock
from tests.experiments.fake_runs import FakeBackend, Score

RATE = "algorithm.learning_rate"
SPACE = {RATE: logarithmic(1e-5, 1e-1), "algorithm.num_epochs": choice(1, 10, 20)}


def score(config: TrainConfig) -> float:
    """Best at a rate of 1e-2 and 10 epochs; a little other with each seed."""
    rate = float(config.algorithm.learning_rate)
    return 200 - 1e4 * abs(rate - 1e-2) - abs(config.algorithm.num_epochs - 10) + config.seed


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_session, "_POLL_SECONDS", 0.0)


def study(directory: Path, **options: Any) -> Study:
    settings: dict[str, Any] = {"space": SPACE, "evaluations": 3, "episodes": 5, **options}
    return Study("ppo_cartpole", output_dir=directory, **settings)


def run(
    made: Study,
    trials: int,
    *,
    score: Score = score,
    killed_after: int | None = None,
    jobs: int = 1,
) -> tuple[StudyOutcome, FakeBackend]:
    backend = FakeBackend(score, made.settings.evaluations, killed_after)
    outcome = made.run(trials, jobs=jobs, say=lambda line: None, backend=backend)
    return outcome, backend


def rows(directory: Path) -> list[dict[str, Any]]:
    content: dict[str, list[dict[str, Any]]] = json.loads((directory / "trials.json").read_bytes())
    return content["trials"]


def test_the_best_trial_is_written_as_a_preset(tmp_path: Path) -> None:
    outcome, _ = run(study(tmp_path), 8)
    assert (outcome.trials, outcome.exit_code) == (8, 0)
    done = [row for row in rows(tmp_path) if row["state"] == "done"]
    best = max(done, key=lambda row: row["score"])
    assert outcome.best_trial == best["trial"] != 0
    assert outcome.best_score == pytest.approx(sum(best["scores"]) / 2)
    assert outcome.preset == tmp_path / "best.yaml"
    preset, base = load_config(outcome.preset), load_config("ppo_cartpole")
    assert preset.algorithm.learning_rate == outcome.best_values[RATE]
    assert (preset.total_timesteps, preset.seed) == (base.total_timesteps, base.seed)
    assert preset.algorithm.gae_lambda == base.algorithm.gae_lambda  # outside of the space
    assert (preset.evaluation, preset.checkpoint) == (base.evaluation, base.checkpoint)
    text = " ".join(outcome.preset.read_text("utf-8").replace("\n#", "").split())
    assert (
        f"trial {best['trial']}, the best of 8 trials of rl-training tune, from ppo_cartpole"
        in text
    )
    assert "5 deterministic episodes of the final policy, seeds 1, 2:" in text
    own = rows(tmp_path)[0]
    assert f"by the same measure: {own['scores'][0]:.1f}, {own['scores'][1]:.1f}" in text


def test_the_first_trial_has_the_preset_s_own_values(tmp_path: Path) -> None:
    space = {RATE: logarithmic(1e-6, 1e-5)}  # its own lies outside
    outcome, _ = run(study(tmp_path, space=space), 3)
    first = rows(tmp_path)[0]
    assert first["own"] and first["values"] == {RATE: 1e-3}
    assert outcome.best_trial == 0 and outcome.preset is not None
    assert load_config(outcome.preset) == load_config("ppo_cartpole")
    assert "none of 3 trials was better" in outcome.preset.read_text("utf-8")


def test_a_trial_that_is_behind_is_pruned(tmp_path: Path) -> None:
    run(study(tmp_path, sampler="random"), 12)
    pruned = [row for row in rows(tmp_path) if row["state"] == "pruned"]
    done = [row for row in rows(tmp_path) if row["state"] == "done"]
    assert len(pruned) >= 2 and len(done) >= 5
    assert all(len(row["evaluations"]) < 6 for row in pruned)
    assert all(len(row["evaluations"]) == 6 for row in done)
    assert all(row["trial"] >= 5 for row in pruned)
    ends = [row["evaluations"][-1] for row in done]
    assert max(ends) == pytest.approx(max(row["score"] for row in done))


@pytest.mark.parametrize(
    ("killed_after", "trials"),
    [
        (1, 3),
        (17, 5),
        # More than the ten that TPE draws at random.
        pytest.param(52, 16, marks=pytest.mark.slow),
    ],
)
def test_a_killed_study_ends_as_one_that_was_left_alone(
    tmp_path: Path, killed_after: int, trials: int
) -> None:
    run(study(tmp_path / "whole"), trials)
    with pytest.raises(RuntimeError, match="killed"):
        run(study(tmp_path / "killed"), trials, killed_after=killed_after)
    outcome, backend = run(study(tmp_path / "killed"), trials)
    assert outcome.trials == trials
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")
    if killed_after > 10:
        assert "trial_0000__seed1" not in backend.started  # what was done is not done again


def test_a_full_disk_behind_the_storage_stops_a_study_in_one_line_and_costs_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optuna, sqlalchemy = pytest.importorskip("optuna"), pytest.importorskip("sqlalchemy.exc")
    storage = optuna.storages.RDBStorage
    write, written = storage.set_trial_user_attr, []

    def full_at_the_third(self: Any, trial_id: int, key: str, value: Any) -> None:
        written.append(key)
        if written.count("scores") == 3:
            full = sqlalchemy.OperationalError("UPDATE", {}, OSError("database or disk is full"))
            raise optuna.exceptions.StorageInternalError("An exception is raised") from full
        write(self, trial_id, key, value)

    run(study(tmp_path / "whole"), 5)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "set_trial_user_attr", full_at_the_third)
        with pytest.raises(
            UserError, match=r"study.db cannot be written \(database or disk is full"
        ):
            run(study(tmp_path / "full"), 5)
    assert len([row for row in rows(tmp_path / "full") if row["state"] == "done"]) == 2
    run(study(tmp_path / "full"), 5)
    assert rows(tmp_path / "full") == rows(tmp_path / "whole")


def test_more_trials_go_on_with_a_study(tmp_path: Path) -> None:
    run(study(tmp_path / "whole"), 4)
    run(study(tmp_path / "parts"), 2)
    _, backend = run(study(tmp_path / "parts"), 4)
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
    assert "trial_0001__seed1" not in backend.started
    _, backend = run(study(tmp_path / "parts"), 4)
    assert backend.started == []


def test_a_failed_trial_does_not_stop_the_study(tmp_path: Path) -> None:
    def failing(config: TrainConfig) -> float:
        if config.algorithm.learning_rate > 1e-2 and config.seed == 2:
            raise ArithmeticError("a loss became infinite")
        return score(config)

    outcome, _ = run(study(tmp_path, sampler="random", pruner="none"), 8, score=failing)
    assert outcome.trials == 8 and outcome.exit_code == 0
    assert set(outcome.failed.values()) == {"seed 2: a loss became infinite"}
    states = {row["trial"]: row["state"] for row in rows(tmp_path)}
    assert {trial for trial, state in states.items() if state == "failed"} == set(outcome.failed)

    def broken(config: TrainConfig) -> float:
        raise ArithmeticError("never")

    outcome, _ = run(study(tmp_path / "broken"), 2, score=broken)
    assert (outcome.exit_code, outcome.best_trial, outcome.preset) == (1, None, None)


def test_values_that_do_not_fit_together_are_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = {"algorithm.minibatch_size": choice(64, 256, 512), RATE: logarithmic(1e-4, 1e-2)}
    outcome, _ = run(study(tmp_path, space=space, sampler="random"), 6)
    refused = [row for row in rows(tmp_path) if row["state"] == "refused"]
    assert outcome.trials == 6 and len(rows(tmp_path)) == 6 + len(refused) > 6
    assert all("minibatch_size must lie in [2, 256]" in row["error"] for row in refused)
    monkeypatch.setattr(study_session, "_REFUSALS", 3)
    impossible = study(tmp_path / "none", space={"algorithm.target_kl": between(-2.0, -1.0)})
    with pytest.raises(UserError, match="no values of the search space fit together"):
        run(impossible, 2)


def test_jobs_run_side_by_side(tmp_path: Path) -> None:
    outcome, backend = run(study(tmp_path), 5, jobs=3)
    assert outcome.trials == 5 and backend.most_at_a_time == 3
    _, backend = run(study(tmp_path / "one"), 3)
    assert backend.most_at_a_time == 1


def test_a_study_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    run(study(tmp_path), 1)
    [path] = tmp_path.rglob("study.json")
    content = json.loads(path.read_text("utf-8"))
    del content["config"]["evaluation"]["max_episode_steps"]
    path.write_text(json.dumps(content), encoding="utf-8")
    outcome, _ = run(study(tmp_path), 2)
    assert outcome.trials == 2


def test_another_study_in_the_folder_is_refused(tmp_path: Path) -> None:
    run(study(tmp_path), 1)
    with pytest.raises(
        UserError, match=r"has a study with other settings \(seeds, episodes\): delete it"
    ):
        run(study(tmp_path, seeds=[1, 2, 3], episodes=6), 1)
    with RunLock(tmp_path), pytest.raises(UserError, match="another process works on"):
        run(study(tmp_path), 1)


@pytest.mark.parametrize(
    ("name", "content"), [("study.json", b"{"), ("study.db", b"SQLite format 3\0" + b"?" * 4000)]
)
def test_a_damaged_study_is_refused_in_one_line(name: str, content: bytes, tmp_path: Path) -> None:
    run(study(tmp_path), 1)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"{name} is damaged"):
        run(study(tmp_path, seeds=[1, 2, 3]) if name == "study.json" else study(tmp_path), 2)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"seeds": []}, "seeds must be different whole numbers"),
        ({"seeds": [1, 1]}, "seeds must be different whole numbers"),
        ({"evaluations": 0}, "evaluations must be at least 1, not 0."),
        ({"sampler": "grid"}, "sampler must be tpe or random, not grid."),
        ({"space": {}}, "the search space is empty."),
        (
            {"space": {"algorithm.learning_rat": choice(1)}},
            "Did you mean 'algorithm.learning_rate'",
        ),
        ({"space": {"algorithm": choice(1)}}, "algorithm is a group of fields"),
        ({"space": {RATE: logarithmic(0.0, 1.0)}}, "must be positive where log is true"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        study(tmp_path, **options)


def test_without_optuna_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r'pip install "rl_training\[tune\]"'):
        study(tmp_path)


def command(directory: Path, *, trials: int, steps: int = 256) -> list[str]:
    space, overlay = directory / "space.yaml", directory / "small.yaml"
    space.write_text("algorithm.num_epochs: {choices: [1, 2]}\n", encoding="utf-8")
    overlay.write_text(f"total_timesteps: {steps}\n", encoding="utf-8")
    words = ["tune", "--config", "ppo_cartpole", "--config", "tiny", "--config", str(overlay)]
    words += ["--trials", str(trials), "--seeds", "1", "--evaluations", "2", "--episodes", "2"]
    return [*words, "--space", str(space), "--output-dir", str(directory / "study")]


def test_the_command_line_tunes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_module, "LocalBackend", lambda: FakeBackend(score, 2))
    assert main(command(tmp_path, trials=2)) == 0
    out = capsys.readouterr().out
    assert "2 trials in" in out and "best    trial 0: 101.0, mean over the seeds" in out
    assert "          algorithm.num_epochs: 20" in out
    assert (
        f"train   rl-training train --config {tmp_path / 'study' / 'best.yaml'} --seed 101" in out
    )
    assert main(["tune", "--trials", "2"]) == 2
    assert "what to tune is missing" in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_command_goes_on_with_its_run(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "rl_training", *command(tmp_path, trials=2, steps=12_000)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    job = tmp_path / "study" / "trial_0000__seed1"
    deadline = time.monotonic() + 100
    while not any(job.glob("*/checkpoints/latest")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.kill()  # its run lives on, and is waited for
    process.wait()
    assert subprocess.run(words, check=False, stdout=subprocess.DEVNULL).returncode == 0
    assert [row["state"] for row in rows(tmp_path / "study")] == ["done", "done"]
    assert len(list(job.glob("*/result.json"))) == 1
    assert json.loads((job / "state.json").read_bytes())["attempts"] == 1


def test_numbers_of_trials_are_said_right() -> None:
    assert (counted(1, "trial"), counted(0, "trial"), counted(3, "trial")) == (
        "1 trial",
        "0 trials",
        "3 trials",
    )


def test_one_trial_is_not_compared_with_itself(tmp_path: Path) -> None:
    outcome, _ = run(study(tmp_path), 1)
    assert outcome.preset is not None
    text = " ".join(outcome.preset.read_text("utf-8").replace("\n#", "").split())
    assert "Hyperparameters: as before: there was no other trial." in text
