"""Callbacks of one's own, and those that stop training."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rl_training import (
    Callback,
    TrainConfig,
    resume_checkpoint,
    train,
)
from rl_training.config import replace_config
from rl_training.runtime.callbacks import StopOnReturn, TrainContext
from tests.api.runs import CHECKPOINTS, SMALL, make
from tests.recipes.environments import Identity


class StopWhenLucky(Callback):
    """Stops at the third iteration; notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_train_start(self, context: TrainContext) -> None:
        self.calls.append(f"start {context.global_step}/{context.total_timesteps}")

    def on_iteration(self, context: TrainContext, metrics: Mapping[str, float]) -> None:
        assert metrics["loss/policy"] == context.metrics["loss/policy"]
        self.calls.append(f"iteration {context.global_step}")
        if context.global_step == 128:
            assert context.evaluate()["episodes"] == 2
        if context.global_step == 192:
            context.stop("lucky")

    def on_evaluation(self, context: TrainContext, record: Mapping[str, Any]) -> None:
        self.calls.append(f"evaluation of {record['episodes']}")

    def on_train_end(self, context: TrainContext) -> None:
        self.calls.append(f"end {context.global_step}")


def test_a_callback_of_one_s_own_sees_everything_and_stops_training() -> None:
    callback = StopWhenLucky()
    algorithm = make(episodes=2).learn(10_000, callbacks=[callback])
    assert algorithm.global_step == 192
    assert callback.calls == [
        "start 0/10000",
        "iteration 64",
        "iteration 128",
        "evaluation of 2",
        "iteration 192",
        "end 192",
    ]


class Remembers(Callback):
    """Counts iterations over resumes."""

    def __init__(self) -> None:
        self.count = 0

    def on_iteration(self, context: TrainContext, metrics: Mapping[str, float]) -> None:
        self.count += 1

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]


@pytest.mark.parametrize(("first", "second"), [(False, True), (True, False)])
def test_a_callback_s_state_survives_whether_progress_is_shown_or_not(
    tmp_path: Path, first: bool, second: bool
) -> None:
    config = TrainConfig(algo="ppo", env_id="CartPole-v1", output_dir=str(tmp_path))
    config = replace_config(config, **SMALL, **CHECKPOINTS, total_timesteps=128)
    result = train(config, callbacks=[Remembers()], progress=first)
    counts = Remembers()
    resume_checkpoint(result.run_dir, total_timesteps=192, callbacks=[counts], progress=second)
    assert counts.count == 3
    # Without it, as from the command line, the run goes on too.
    resume_checkpoint(result.run_dir, total_timesteps=256, progress=second)


class Scripted(gymnasium.Env[Any, Any]):
    """Episodes of one step. Each earns the next of ``scores``, whoever plays."""

    scores: Iterator[float] = itertools.repeat(0.0)

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), next(self.scores), True, False, {}


def learn_on_scores(scores: list[float], **changes: Any) -> Any:
    """Train with an evaluation per iteration of 64 steps whose means are ``scores``."""

    class Evaluated(Scripted):
        pass

    algorithm = make(env=Scripted, interval=64, episodes=1, **changes)
    given = iter(scores)
    original = algorithm.evaluation_environment

    def evaluation_environment(**keywords: Any) -> Any:
        Evaluated.scores = itertools.repeat(next(given))
        return original(**{**keywords, "env": Evaluated})

    algorithm.evaluation_environment = evaluation_environment
    return algorithm.learn(640)


def test_training_stops_at_the_return_that_is_asked_for() -> None:
    assert learn_on_scores([1, 2, 4.9, 5, 9], stop_on_return=5.0).global_step == 4 * 64


def test_training_stops_when_evaluations_do_not_improve() -> None:
    # Three in a row without a new best: 2, 2 (equal is no improvement) and 1 after the 3.
    assert learn_on_scores([1, 3, 2, 3, 4, 2, 4, 1, 9, 9], patience=3).global_step == 8 * 64


def test_a_user_s_callbacks_may_be_the_library_s() -> None:
    algorithm = make(env=Identity, interval=64, episodes=2)
    algorithm.learn(640, callbacks=[StopOnReturn(threshold=0.0)])
    assert algorithm.global_step == 64


def test_false_is_said_to_end_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Finished(Callback):
        def on_iteration(self, context: TrainContext, metrics: Mapping[str, float]) -> Any:
            return False

    assert make().learn(192, callbacks=[Finished()]).global_step == 192
    assert caplog.text.count("Finished.on_iteration returned False, and training goes on") == 1
