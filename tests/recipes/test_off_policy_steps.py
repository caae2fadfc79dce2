"""What happens when is counted in environment steps, whatever the number of environments."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.errors import UserError
from rl_training.registry import algorithm_class
from tests.recipes.environments import Identity, RandomEnds, Tracking
from tests.recipes.runs import iterate, make

OFF_POLICY = ("dqn", "sac", "td3")
ENVIRONMENT: dict[str, Any] = {"dqn": Identity, "sac": Tracking, "td3": Tracking}
every_algorithm = pytest.mark.parametrize("name", OFF_POLICY)


@every_algorithm
@pytest.mark.parametrize("num_envs", [1, 4, 7])
@pytest.mark.parametrize(("ratio", "train_every"), [(1.0, 1), (0.29, 1), (2.5, 10), (1 / 3, 16)])
def test_gradient_steps_are_the_ratio_times_the_steps_after_the_warm_up(
    name: str, num_envs: int, ratio: float, train_every: int
) -> None:
    warm_up = 21
    algorithm = make(
        name,
        ENVIRONMENT[name],
        num_envs=num_envs,
        warm_up=warm_up,
        gradient_steps_per_step=ratio,
        train_every=train_every,
        minibatch_size=4,
        hidden_sizes=[4],
    )
    assert algorithm.frames_per_batch == num_envs * math.ceil(train_every / num_envs)
    for batch in algorithm.collector():
        algorithm.update(batch)
        steps = algorithm.global_step
        expected = max(math.floor(round((steps - warm_up) * ratio, 6)), 0)
        assert algorithm.gradient_steps == expected
        if steps >= 60:
            break


@pytest.mark.parametrize("num_envs", [1, 4, 7])
@pytest.mark.parametrize("interval", [1, 10, 33])
def test_the_target_is_updated_every_so_many_steps(num_envs: int, interval: int) -> None:
    algorithm = make(
        "dqn", Identity, num_envs=num_envs, train_every=8, target_update_interval=interval
    )
    for batch in algorithm.collector():
        algorithm.update(batch)
        assert algorithm.target_updates == algorithm.global_step // interval
        if algorithm.global_step > 100:
            break


def test_a_soft_update_that_is_due_several_times_counts_as_often() -> None:
    algorithm = make("dqn", Identity, tau=0.1, target_update_interval=10)
    with torch.no_grad():
        algorithm.target_parameters.flat.zero_()
        algorithm.parameters.flat.fill_(1.0)
    algorithm._begin_update(35)
    expected = torch.full_like(algorithm.target_parameters.flat, 1 - 0.9**3)
    torch.testing.assert_close(algorithm.target_parameters.flat, expected)


@every_algorithm
@pytest.mark.parametrize("num_envs", [1, 4, 7])
def test_warm_up_actions_are_uniform_valid_and_seeded(name: str, num_envs: int) -> None:
    def collected(seed: int) -> torch.Tensor:
        algorithm = make(
            name, ENVIRONMENT[name], num_envs=num_envs, warm_up=400, train_every=420, seed=seed
        )
        (batch,), _ = iterate(algorithm, 1, update=False)
        actions: torch.Tensor = batch["action"]
        return actions

    first, again, other = collected(1), collected(1), collected(2)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    random = first[:, : 400 // num_envs].flatten()
    if name == "dqn":
        assert set(random.tolist()) == {0, 1, 2, 3}
        assert random.bincount().min() > 50
    else:
        assert random.min() < -0.95 and random.max() > 0.95
        assert random.mean().abs() < 0.1


def test_the_warm_up_ends_within_a_rollout_at_its_step() -> None:
    algorithm = make("td3", Tracking, num_envs=4, warm_up=42, train_every=80)
    algorithm.config.algorithm.exploration_deviation = 0.0
    algorithm.noise.deviation = 0.0
    (batch,), _ = iterate(algorithm, 1, update=False)
    with torch.no_grad():
        expected = algorithm.model.actor(batch["observation"])
    by_policy = (batch["action"] - expected).abs().amax((0, 2)) < 1e-5
    # Steps 0 to 40 begin before the 42nd environment step, 44 is the first after.
    assert by_policy.tolist() == [False] * 11 + [True] * 9


def test_epsilon_falls_over_its_share_of_the_budget() -> None:
    algorithm = make(
        "dqn",
        Identity,
        total_timesteps=1000,
        exploration_fraction=0.2,
        exploration_initial=1.0,
        exploration_final=0.1,
    )
    found = [algorithm.epsilon(step) for step in (0, 100, 200, 900)]
    assert found == pytest.approx([1.0, 0.55, 0.1, 0.1])
    algorithm.schedule_horizon = 2000
    assert algorithm.epsilon(200) == pytest.approx(0.55)


class Lopsided(gymnasium.Env[Any, Any]):
    """Bounds of another size in each dimension; only actions within them may arrive."""

    def __init__(self, high: tuple[float, ...] = (100.0, 0.5)) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Box(
            np.array([0.0, -0.1], np.float32), np.array(high, np.float32)
        )
        self.seen: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.seen.append(action.copy())
        return np.zeros(1, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_actions_are_scaled_to_the_bounds_of_each_dimension(name: str) -> None:
    environment = Lopsided()
    algorithm = make(name, environment, num_envs=1, warm_up=200, train_every=200)
    (batch,), _ = iterate(algorithm, 1, update=False)
    stored = batch["action"][0].numpy()
    expected = np.array([0.0, -0.1]) + (stored + 1) / 2 * np.array([100.0, 0.6])
    np.testing.assert_allclose(np.array(environment.seen), expected, rtol=1e-5, atol=1e-5)
    assert np.ptp(np.array(environment.seen), 0) == pytest.approx([100.0, 0.6], rel=0.05)


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_infinite_bounds_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="finite bounds"):
        make(name, lambda: Lopsided((np.inf, 0.5)))


def test_actions_of_the_wrong_kind_are_refused() -> None:
    with pytest.raises(UserError, match="dqn needs Discrete"):
        make("dqn", Tracking)
    with pytest.raises(UserError, match="td3 needs Box"):
        make("td3", Identity)
    with pytest.raises(UserError, match="gsde needs continuous"):
        make("sac", Identity, gsde=True)


@every_algorithm
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tau": 0.0}, "tau must lie in"),
        ({"warm_up": -1}, "warm_up must not be negative"),
        ({"gradient_steps_per_step": 0.0}, "gradient_steps_per_step must be positive"),
        ({"replay_capacity": 16}, "replay_capacity must be at least 32"),
        ({"normalize_observation": True}, "env.normalize_observation must be off"),
    ],
)
def test_impossible_values_are_named(name: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make(name, ENVIRONMENT[name], **change)


def test_networks_have_the_papers_sizes_unless_others_are_given() -> None:
    algorithm = algorithm_class("sac")("Pendulum-v1", replay_capacity=1000)
    model = algorithm.config.model
    assert (model.hidden_sizes, model.activation, model.orthogonal_init) == (
        [256, 256],
        "relu",
        False,
    )
    other = algorithm_class("sac")("Pendulum-v1", replay_capacity=1000, activation="elu")
    assert (other.config.model.hidden_sizes, other.config.model.activation) == ([256, 256], "elu")
    assert algorithm_class("ppo")("Pendulum-v1").config.model.hidden_sizes == [64, 64]


def test_rainbow_switches_all_six_parts_on() -> None:
    algorithm = make("dqn", RandomEnds, rainbow=True)
    settings = algorithm.settings
    assert settings.double and settings.dueling and settings.prioritized
    assert settings.distributional and settings.noisy and algorithm.n_steps == 3
    assert algorithm.model.num_atoms == 51
    assert algorithm.epsilon(0) == 0.0


@every_algorithm
@pytest.mark.parametrize("ratio", [4.0, 0.25])
def test_another_ratio_after_loading_makes_up_for_nothing(
    tmp_path: Path, name: str, ratio: float
) -> None:
    settings: dict[str, Any] = {"num_envs": 2, "warm_up": 20, "train_every": 4}
    settings.update(minibatch_size=4, hidden_sizes=[4])
    first = make(name, ENVIRONMENT[name], gradient_steps_per_step=1.0, **settings)
    first.learn(32)
    assert first.gradient_steps == 12
    first.save(tmp_path / "saved")
    changes: dict[str, Any] = {"gradient_steps_per_step": ratio, "warm_up": 0}
    loaded = type(first).load(tmp_path / "saved", env=ENVIRONMENT[name], **changes)
    loaded.learn(8)
    assert loaded.gradient_steps == 12 + 8 * ratio
    loaded.save(tmp_path / "again")
    again = type(first).load(tmp_path / "again", env=ENVIRONMENT[name])
    again.learn(8)
    assert again.gradient_steps == 12 + 16 * ratio


def test_another_target_interval_after_loading_makes_up_for_nothing(tmp_path: Path) -> None:
    first = make("dqn", Identity, num_envs=2, train_every=4, target_update_interval=1000)
    first.learn(64).save(tmp_path / "saved")
    assert first.target_updates == 0
    loaded = type(first).load(tmp_path / "saved", env=Identity, target_update_interval=4)
    loaded.learn(16)
    assert loaded.target_updates == 4


@every_algorithm
def test_a_warm_up_that_takes_the_whole_budget_is_announced(name: str) -> None:
    for warm_up, announced in ((99, False), (100, True)):
        agent = make(name, ENVIRONMENT[name], total_timesteps=100, warm_up=warm_up)
        assert any("nothing will be learned" in line for line in agent.describe()) == announced
