"""Evaluation: fair, repeatable, and its statistics by hand."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rl_training import (
    evaluation,
)
from rl_training.data.return_statistics import interquartile_mean, statistics
from rl_training.envs import episode_seed
from rl_training.errors import UserError
from rl_training.runtime.progress import ProgressCallback
from tests.api.runs import make
from tests.recipes.environments import Identity


class Unequal(gymnasium.Env[Any, Any]):
    """Short episodes earn little: seeds decide between 1 step of return 1 and 30 of return 30."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.length = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.length = 0, 1 if self.np_random.random() < 0.5 else 30
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return np.zeros(2, np.float32), 1.0, self.time == self.length, False, {}


def test_every_environment_plays_its_quota_so_that_short_episodes_are_not_favoured() -> None:
    algorithm = make(env=Unequal)
    algorithm.config.evaluation.num_envs = 8
    record = algorithm.evaluate(episodes=44, seed=11)
    # 44 over 8: six each of the first four, five each of the others; known from their seeds.
    expected = [
        1 if np.random.default_rng(episode_seed(11, row, episode)).random() < 0.5 else 30
        for row in range(8)
        for episode in range(6 if row < 4 else 5)
    ]
    assert record["lengths"] == expected
    assert record["returns"] == [float(length) for length in expected]
    assert record["return_mean"] == pytest.approx(sum(expected) / 44)
    assert 10 < record["return_mean"] < 21, "the mean of many is 15.5; the first to finish give 3"


def test_evaluation_is_a_function_of_the_seed() -> None:
    algorithm = make()
    first, again = (algorithm.evaluate(episodes=4, seed=2) for _ in range(2))
    other = algorithm.evaluate(episodes=4, seed=3)
    assert first == again
    assert first["returns"] != other["returns"]
    drawn = [algorithm.evaluate(4, seed=2, deterministic=False) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert drawn[0]["deterministic"] is False
    with pytest.raises(UserError, match="at least 1"):
        algorithm.evaluate(episodes=0)


def test_evaluation_reports_raw_rewards_and_leaves_the_statistics() -> None:
    algorithm = make(env=Identity, normalize_observation=True, normalize_reward=True).learn(64)
    before = algorithm.normalizer.state_dict()
    record = algorithm.evaluate(episodes=3)
    assert all(value == round(value) for value in record["returns"])
    after = algorithm.normalizer.state_dict()
    assert json.dumps(before, default=str) == json.dumps(after, default=str)


def test_statistics_by_hand() -> None:
    found = statistics([4.0, 1.0, 2.0, 9.0], [1, 2, 3, 6])
    assert found["return_mean"] == 4.0
    assert found["return_std"] == pytest.approx(np.sqrt((0 + 9 + 4 + 25) / 4))
    assert found["return_iqm"] == 3.0  # of 2 and 4
    assert found["length_mean"] == 3.0
    assert found["episodes"] == 4
    alone = statistics([7.0], [3])
    assert alone["return_iqm"] == alone["return_mean"] == 7.0
    assert alone["return_ci95"] == [7.0, 7.0]


def test_the_interquartile_mean_counts_border_values_in_part() -> None:
    # Of six values a quarter is 1.5: the second and the fifth count half.
    found = interquartile_mean([10.0, 60.0, 20.0, 50.0, 30.0, 40.0])
    assert found == pytest.approx((0.5 * 20 + 30 + 40 + 0.5 * 50) / 3)
    assert interquartile_mean([1.0, 2.0, 3.0]) == pytest.approx(2.0)
    assert interquartile_mean([1.0, 3.0]) == 2.0


@pytest.mark.parametrize("count", [4, 8, 20, 100])
def test_the_interquartile_mean_is_scipy_s_trimmed_mean(count: int) -> None:
    stats = pytest.importorskip("scipy.stats", reason="compares with SciPy")
    values = np.random.default_rng(count).normal(size=count)
    assert interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25))


def test_the_interval_is_the_one_of_the_mean() -> None:
    values = np.random.default_rng(0).normal(100.0, 10.0, 400)
    low, high = statistics(values.tolist(), [1] * 400)["return_ci95"]
    # The normal approximation: mean ± 1.96 s / sqrt(n), here ± 0.98.
    half = 1.96 * values.std() / 20
    assert low == pytest.approx(values.mean() - half, abs=0.1)
    assert high == pytest.approx(values.mean() + half, abs=0.1)
    assert [low, high] == statistics(values.tolist(), [1] * 400)["return_ci95"]


class Endless(gymnasium.Env[Any, Any]):
    """Earns 1 a step, for ever; the observation is the number of steps since the reset."""

    observation_space = gymnasium.spaces.Box(0.0, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return np.full(1, self.time, np.float32), 1.0, False, False, {}


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("name", ["ppo", "recurrent_ppo"])
def test_an_episode_without_an_end_is_cut_and_said_to_be(
    name: str, vectorization: str, caplog: pytest.LogCaptureFixture
) -> None:
    algorithm = make(name, env=Endless, vectorization=vectorization)
    algorithm.config.evaluation.max_episode_steps = 7
    algorithm.config.evaluation.num_envs = 2
    record = algorithm.evaluate(episodes=5)
    assert record["lengths"] == [7] * 5
    assert record["returns"] == [7.0] * 5, "each after a reset"
    assert (record["episodes_cut"], record["agents"]) == (5, 1)
    assert caplog.text.count("5 of 5 evaluation episodes did not end within 7 steps") == 1
    assert "evaluation.max_episode_steps" in caplog.text
    algorithm.close()


def test_the_limit_of_an_evaluation_leaves_episodes_that_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    algorithm = make(env=Unequal)
    free = algorithm.evaluate(episodes=12, seed=4)
    algorithm.config.evaluation.max_episode_steps = 30  # the last step is an end of its own
    assert algorithm.evaluate(episodes=12, seed=4) == free
    assert free["episodes_cut"] == 0
    assert caplog.text == ""
    algorithm.config.evaluation.max_episode_steps = 29
    cut = algorithm.evaluate(episodes=12, seed=4)
    assert cut["lengths"] == [min(length, 29) for length in free["lengths"]]
    assert cut["episodes_cut"] == free["lengths"].count(30) > 0
    algorithm.config.evaluation.max_episode_steps = None
    assert algorithm.evaluate(episodes=12, seed=4) == free


def test_training_knows_nothing_of_the_evaluation_s_limit() -> None:
    algorithm = make(env=Endless, evaluation={"max_episode_steps": 5})
    assert not next(iter(algorithm.collector()))["next", "done"].any()
    algorithm.close()


def test_a_run_of_an_environment_without_an_end_comes_to_its_own(tmp_path: Path) -> None:
    algorithm = make(
        env=Endless,
        output_dir=str(tmp_path),
        evaluation={"max_episode_steps": 5, "episodes": 3},
        tracking={"tensorboard": False},
    ).learn(64)
    algorithm.close()
    (line,) = next(tmp_path.glob("*/evaluations.jsonl")).read_text().splitlines()
    assert json.loads(line)["lengths"] == [5, 5, 5]


def test_a_limit_of_no_steps_is_refused() -> None:
    with pytest.raises(UserError, match=r"evaluation\.max_episode_steps must be at least 1"):
        make(evaluation={"max_episode_steps": 0})


def test_one_evaluation_may_have_a_limit_of_its_own() -> None:
    algorithm = make(env=Endless, evaluation={"max_episode_steps": 5})
    record = algorithm.evaluate(episodes=3, max_episode_steps=8)
    assert (record["lengths"], record["episodes_cut"]) == ([8, 8, 8], 3)
    assert algorithm.evaluate(episodes=2)["lengths"] == [5, 5]
    with pytest.raises(UserError, match="max_episode_steps"):
        algorithm.evaluate(episodes=1, max_episode_steps=0)
    algorithm.close()


def test_an_evaluation_tells_how_far_it_is_and_ends_as_one_that_does_not() -> None:
    algorithm = make(env=Unequal)
    algorithm.config.evaluation.num_envs = 2
    told: list[tuple[int, int, int]] = []
    record = evaluation.evaluate(algorithm, episodes=3, seed=11, tell=lambda *far: told.append(far))
    assert record == evaluation.evaluate(algorithm, episodes=3, seed=11)
    played = [each[0] for each in told]
    assert played == sorted(played) and played[0] == 0 and played[-1] < 3
    assert {each[1] for each in told} == {3}
    assert [each[2] for each in told] == list(range(2, 2 * len(told) + 1, 2))


def test_the_evaluations_of_a_training_are_followed_by_its_progress() -> None:
    class Line(ProgressCallback):
        def __init__(self) -> None:
            super().__init__(stream=io.StringIO())
            self.told: list[tuple[int, int]] = []

        def evaluating(self, context: Any, played: int, episodes: int, steps: int) -> None:
            self.told.append((context.global_step, episodes))

    line = Line()
    make(env=Unequal, episodes=3, interval=64).learn(64, callbacks=[line])
    assert set(line.told) == {(64, 3)}
