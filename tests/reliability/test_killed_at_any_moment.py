"""What a kill must not lose: warm starts, stops, extensions, branches; and who may train a run."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rl_training import PPO, TrainConfig, UserError, replace_config, resume_checkpoint, train
from rl_training.runtime.callbacks import Callback, TrainContext
from rl_training.runtime.run_lock import RunLock
from rl_training.workflows import TrainResult
from tests.api.runs import SMALL, make, parameters
from tests.reliability.runs import checkpoints, evaluations, metrics, result, status, the_run

LINEAR = {"learning_rate_schedule": "linear"}


def config(output: Path, **changes: Any) -> TrainConfig:
    base = TrainConfig(algo="ppo", env_id="CartPole-v1", output_dir=str(output))
    quiet = {"tensorboard": False, "episodes": 2, **SMALL}
    return replace_config(base, **{**quiet, "total_timesteps": 256, **changes})


class Killed(BaseException):
    """Stands for SIGKILL: nothing is written after it."""


class Kill(Callback):
    def __init__(self, step: int, *, when: str = "iteration") -> None:
        self._step, self._when = step, when

    def on_train_start(self, context: TrainContext) -> None:
        self._perhaps(context, "start")

    def on_iteration(self, context: TrainContext, metrics: Mapping[str, float]) -> None:
        self._perhaps(context, "iteration")

    def on_evaluation(self, context: TrainContext, record: Mapping[str, Any]) -> None:
        self._perhaps(context, "evaluation")

    def _perhaps(self, context: TrainContext, when: str) -> None:
        if (when, context.global_step) == (self._when, self._step):
            raise Killed


def killed(act: Callable[[], Any], run: Callable[[], Path]) -> Path:
    """Let ``act`` be killed, and return its run as a kill would have left it."""
    with pytest.raises(Killed):
        act()
    directory = run()
    (directory / "result.json").unlink(missing_ok=True)
    metadata = json.loads((directory / "metadata.json").read_text())
    (directory / "metadata.json").write_text(json.dumps({**metadata, "status": "running"}))
    return directory


def test_a_warm_start_survives_a_kill_before_the_first_checkpoint(tmp_path: Path) -> None:
    source = train(config(tmp_path / "source")).run_dir
    warm = config(tmp_path / "whole", init_from=str(source), seed=4)
    whole = train(warm)
    cold = train(config(tmp_path / "cold", seed=4))
    assert whole.digest != cold.digest
    other = replace_config(warm, output_dir=str(tmp_path / "cut"))
    run = killed(lambda: train(other, callbacks=[Kill(64)]), lambda: the_run(tmp_path / "cut"))
    assert [path.name for path in checkpoints(run)] == ["step_000000000000"]
    without = shutil.copytree(run, tmp_path / "without")
    shutil.rmtree(without / "checkpoints")
    assert resume_checkpoint(run).digest == whole.digest
    assert resume_checkpoint(without).digest == whole.digest


def test_a_warm_start_is_the_constructor_s_too(tmp_path: Path) -> None:
    source = make()
    source.learn(64).save(tmp_path / "saved")
    assert (parameters(make(init_from=str(tmp_path / "saved"))) == parameters(source)).all()


def test_an_object_that_goes_on_in_a_run_of_its_own_survives_a_kill(tmp_path: Path) -> None:
    def trained(name: str) -> Any:
        return make(output_dir=str(tmp_path / name), final=False, tensorboard=False).learn(64)

    whole = trained("whole").learn(192)
    cut = trained("cut")
    first = the_run(tmp_path / "cut")
    run = killed(
        lambda: cut.learn(192, callbacks=[Kill(128)]),
        lambda: next(path for path in (tmp_path / "cut").iterdir() if path != first),
    )
    assert [path.name for path in checkpoints(run)] == ["step_000000000064"]
    without = shutil.copytree(run, tmp_path / "without")
    shutil.rmtree(without / "checkpoints")
    digests = {result(each)["digest"] for each in (tmp_path / "whole").iterdir()}
    assert resume_checkpoint(run).digest in digests
    assert whole.global_step == 256
    with pytest.raises(UserError, match="began at step 64"):
        resume_checkpoint(without)


def test_a_loaded_object_writes_runs_when_it_is_told_where(tmp_path: Path) -> None:
    make().learn(64).save(tmp_path / "saved")
    PPO.load(tmp_path / "saved", output_dir=str(tmp_path / "runs")).learn(64)
    assert result(the_run(tmp_path / "runs"))["global_step"] == 128


def test_an_extension_with_new_schedules_survives_a_kill(tmp_path: Path) -> None:
    run = train(config(tmp_path / "runs", **LINEAR)).run_dir
    other = shutil.copytree(run, tmp_path / "other")
    whole = resume_checkpoint(run, total_timesteps=512, reschedule=True)

    def extend() -> None:
        resume_checkpoint(other, total_timesteps=512, reschedule=True, callbacks=[Kill(320)])

    killed(extend, lambda: other)
    assert resume_checkpoint(other).digest == whole.digest
    assert metrics(other) == metrics(run)


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self._step = step

    def on_iteration(self, context: TrainContext, metrics: Mapping[str, float]) -> None:
        if context.global_step == self._step:
            context.stop("that is enough")


def test_a_run_that_a_callback_stopped_stays_stopped_after_a_kill(tmp_path: Path) -> None:
    whole = train(config(tmp_path / "whole"), callbacks=[StopAt(128)])
    stop = [StopAt(128), Kill(128, when="evaluation")]
    run = killed(
        lambda: train(config(tmp_path / "cut"), callbacks=stop),
        lambda: the_run(tmp_path / "cut"),
    )
    again = resume_checkpoint(run)
    assert (again.metrics["global_step"], again.reason) == (128, "that is enough")
    assert again.digest == whole.digest
    assert evaluations(run) == evaluations(whole.run_dir)
    assert [path.name for path in checkpoints(run)] == ["step_000000000128"]
    assert resume_checkpoint(run, total_timesteps=320).metrics["global_step"] == 320


def test_a_branch_that_is_killed_at_once_is_the_one_that_goes_on(tmp_path: Path) -> None:
    whole = train(config(tmp_path / "runs", total_timesteps=192, checkpoint={"interval": 64}))
    run = whole.run_dir
    earlier = run / "checkpoints" / "step_000000000064"
    expected = metrics(run)
    killed(lambda: resume_checkpoint(earlier, callbacks=[Kill(64, when="start")]), lambda: run)
    assert (run / "checkpoints" / "latest").read_text().strip() == earlier.name
    assert resume_checkpoint(run).digest == whole.digest
    assert metrics(run) == expected


@pytest.mark.parametrize("kept", [True, False])
def test_a_branch_forsakes_the_best_of_the_future_it_left(tmp_path: Path, kept: bool) -> None:
    returns = {64: 9.5, 128: 8.5, 192: 10.0}

    class Scripted(Callback):
        """Evaluates by the script."""

        def on_iteration(self, context: TrainContext, metrics: Mapping[str, float]) -> None:
            played = {"return_mean": returns[context.global_step], "return_std": 0.0}
            record = {**played, "return_iqm": 0.0, "episodes": 1, "returns": [0.0]}
            for callback in context.callbacks:  # type: ignore[attr-defined]
                callback.on_evaluation(context, record)

    settings = config(tmp_path / "runs", total_timesteps=192, final=False)
    settings = replace_config(settings, checkpoint={"interval": 64, "keep_last": 9})
    run = train(settings, callbacks=[Scripted()]).run_dir
    best, saved = run / "checkpoints" / "best", [path.name for path in checkpoints(run)]
    assert saved == [f"step_{step:012d}" for step in returns]
    assert best.read_text().strip() == saved[2]
    if not kept:
        shutil.rmtree(run / "checkpoints" / saved[0])
    returns[128] = 7.0
    resume_checkpoint(
        run / "checkpoints" / saved[not kept], total_timesteps=128, callbacks=[Scripted()]
    )
    assert best.exists() == kept
    assert not kept or best.read_text().strip() == saved[0]
    # The future that was left is gone on with after all: its best is the best again.
    returns[256] = 1.0
    resume_checkpoint(run / "checkpoints" / saved[2], total_timesteps=256, callbacks=[Scripted()])
    assert best.read_text().strip() == saved[2]


class Endless(gymnasium.Env[Any, Any]):
    """Never ends, and may send a signal to its process at one of its steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space: Any = gymnasium.spaces.Discrete(2)
    signal_at: int | None = None

    def __init__(self) -> None:
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps == self.signal_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return np.zeros(2, np.float32), 0.0, False, False, {}


def test_a_signal_ends_an_evaluation_without_end_and_nothing_is_lost(tmp_path: Path) -> None:
    class Signals(Endless):
        signal_at = 100  # training takes 64 steps of each, so an evaluation gets it

    algorithm = make(env=Signals, output_dir=str(tmp_path), tensorboard=False, episodes=1)
    with pytest.raises(SystemExit) as stopped:
        algorithm.learn(128)
    assert stopped.value.code == 143
    run = the_run(tmp_path)
    assert status(run) == "interrupted"
    assert result(run)["reason"] == "SIGTERM"
    assert [path.name for path in checkpoints(run)] == ["step_000000000128"]


def test_an_evaluation_that_a_signal_ended_is_made_first_by_the_resumed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"evaluation": {"interval": 128, "episodes": 2}, "checkpoint": {"interval": 100}}
    whole = train(config(tmp_path / "whole", **settings))
    original = PPO.evaluation_environment

    def signalled(self: Any, **keywords: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return original(self, **keywords)

    monkeypatch.setattr(PPO, "evaluation_environment", signalled)
    cut = train(config(tmp_path / "cut", **settings))
    assert (cut.status, cut.exit_code, cut.metrics["global_step"]) == ("interrupted", 143, 128)
    monkeypatch.undo()
    again = resume_checkpoint(cut.run_dir)
    assert again.digest == whole.digest
    assert evaluations(cut.run_dir) == evaluations(whole.run_dir)
    best = [(path / "checkpoints" / "best").read_text() for path in (cut.run_dir, whole.run_dir)]
    assert best[0] == best[1]


def test_an_episode_without_end_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rl_training.evaluation.LONG_EPISODE", 300)
    monkeypatch.setattr("rl_training.evaluation._CHECK_EVERY", 100)
    make(env="CartPole-v1", env_kwargs={"max_episode_steps": 299}).evaluate(2)
    assert "time limit" not in caplog.text

    class Long(Endless):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            observation, reward, *_ = super().step(action)
            return observation, reward, self._steps >= 900, False, {}

    make(env=Long).evaluate(2)
    assert caplog.text.count("Is a time limit missing (max_episode_steps)?") == 1


def test_one_training_at_a_time(tmp_path: Path) -> None:
    with RunLock(tmp_path):
        with pytest.raises(UserError, match="this process is training"):
            RunLock(tmp_path).acquire()
        (tmp_path / ".lock").read_bytes()  # opening and closing it lifts no lock
        child = os.fork()
        if child == 0:
            os._exit(_refused(tmp_path))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    RunLock(tmp_path).acquire()


def _refused(directory: Path) -> int:
    try:
        RunLock(directory).acquire()
    except UserError as error:
        return 1 if "another process is training" in str(error) else 2
    return 0


def test_a_run_in_training_is_not_resumed_from_within(tmp_path: Path) -> None:
    seen: list[str] = []

    class ResumesItself(Callback):
        def on_iteration(self, context: TrainContext, metrics: Mapping[str, float]) -> None:
            assert context.run is not None
            with pytest.raises(UserError, match="training") as refused:
                resume_checkpoint(context.run.directory)
            seen.append(str(refused.value))

    done: TrainResult = train(config(tmp_path, total_timesteps=64), callbacks=[ResumesItself()])
    assert done.status == "finished"
    assert len(seen) == 1
