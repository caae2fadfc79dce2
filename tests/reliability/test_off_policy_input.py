"""DQN, SAC and TD3: what cannot be trained with is refused in one line that names the key."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rl_training import SAC, TD3, UserError
from rl_training.registry import algorithm_class
from tests.recipes.environments import RandomEnds

ENVIRONMENTS = {"dqn": "CartPole-v1", "sac": "Pendulum-v1", "td3": "Pendulum-v1"}
NUMBERS = ("int", "float", "int | None", "float | None")


def make(name: str, env: Any = None, **changes: Any) -> Any:
    small = {"num_envs": 2, "minibatch_size": 8, "replay_capacity": 200, "hidden_sizes": [8]}
    return algorithm_class(name)(env or ENVIRONMENTS[name], **{**small, **changes})


def fields(name: str) -> list[str]:
    """Return the settings that are numbers."""
    every = dataclasses.fields(algorithm_class(name).Config)
    return [field.name for field in every if field.type in NUMBERS]


def assert_refused(name: str, key: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"\b{key}\b"):
        make(name, **{key: value})
        raise AssertionError(f"{name} takes {key}={value}")


def test_the_settings_are_found() -> None:
    assert {"tau", "n_steps", "max_gradient_norm", "target_entropy"} < set(fields("sac"))
    assert min(len(fields(name)) for name in ENVIRONMENTS) > 14


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_no_setting_is_infinite_or_beyond_all_bounds(name: str) -> None:
    for key in fields(name):
        for value in (math.inf, -math.inf, math.nan, 1e300, -1e300, 10**400):
            assert_refused(name, key, value)


MAY_BE_NEGATIVE = {"value_min", "value_max", "target_entropy", "log_std_init"}
MAY_BE_ZERO = {
    "warm_up",
    "discount",
    "exploration_initial",
    "exploration_final",
    "exploration_fraction",
    "priority_exponent",
    "importance_exponent",
    "target_policy_noise",
    "target_noise_clip",
    "exploration_deviation",
    *MAY_BE_NEGATIVE,
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_numbers_that_have_to_be_positive(name: str) -> None:
    for key in fields(name):
        if key not in MAY_BE_NEGATIVE:
            assert_refused(name, key, -2)  # gSDE's interval may be -1
        if key not in MAY_BE_ZERO:
            assert_refused(name, key, 0)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("sac", {"tau": 1.5}, r"algorithm.tau must lie in \(0, 1\], not 1.5"),
        ("td3", {"discount": 1.01}, r"algorithm.discount must lie in \[0, 1\], not 1.01"),
        ("sac", {"gradient_steps_per_step": 1e-7}, "gradient_steps_per_step must be at least"),
        ("sac", {"gradient_steps_per_step": 1e5}, "gradient_steps_per_step must be at most 10,000"),
        ("sac", {"train_every": 2**60}, "algorithm.train_every must be at most"),
        ("sac", {"gradient_steps_per_step": "1/2"}, "algorithm.gradient_steps_per_step: expected"),
        ("td3", {"policy_delay": 1.5}, "algorithm.policy_delay: expected"),
        ("dqn", {"num_atoms": 10**6}, "algorithm.num_atoms must be at most 1,000"),
        ("dqn", {"value_min": 5.0, "value_max": 5.0}, "algorithm.value_max must be above"),
        ("dqn", {"exploration_final": 1.1}, "algorithm.exploration_final must lie"),
        ("dqn", {"loss": "l3"}, "algorithm.loss"),
        ("td3", {"exploration_noise": "uniform"}, "algorithm.exploration_noise"),
        ("sac", {"precision": "float8"}, "algorithm.precision"),
        ("sac", {"replay_storage": "tape"}, "algorithm.replay_storage"),
        ("sac", {"replay_capacity": 7}, "algorithm.replay_capacity must be at least 8"),
        ("dqn", {"n_steps": 150}, "algorithm.replay_capacity must be at least 302"),
        ("sac", {"replay_capacity": 10**15}, "would fit"),
        ("sac", {"target_entropy": 1.0}, "algorithm.target_entropy must lie between minus"),
        ("sac", {"env": "CartPole-v1", "target_entropy": 0.7}, "target_entropy must lie between 0"),
        ("sac", {"env": "CartPole-v1", "target_entropy": -1.0}, "target_entropy must lie between"),
        ("sac", {"env": "CartPole-v1", "gsde": True}, "algorithm.gsde needs continuous actions"),
        ("td3", {"batch_size": 8}, "unknown key 'batch_size'. Here it is minibatch_size"),
        ("dqn", {"buffer_size": 8}, "unknown key 'buffer_size'. Here it is replay_capacity"),
        ("sac", {"clip_range": 0.2}, "unknown key 'clip_range'. Did you mean"),
        ("sac", {"normalize_observation": True}, "env.normalize_observation must be off for sac"),
        ("td3", {"normalize_reward": True}, "env.normalize_reward must be off for td3"),
    ],
    ids=str,
)
def test_impossible_values_are_named(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        make(name, **changes)
    assert "\n" not in str(refused.value)


def test_the_largest_target_entropy_is_taken() -> None:
    assert make("sac", target_entropy=math.log(2)).target_entropy == pytest.approx(math.log(2))
    discrete = make("sac", env="CartPole-v1", target_entropy=math.log(2))
    assert discrete.target_entropy == pytest.approx(math.log(2))


def test_advice_names_a_field_that_there_is() -> None:
    for cls in (SAC, TD3):
        with pytest.raises(UserError) as refused:
            cls("Pendulum-v1", clip_range=1)
        assert "clip_epsilon" not in str(refused.value)


# ---- spaces


def environment(action: Any, observation: Any = None) -> Any:
    class Spaces(gymnasium.Env[Any, Any]):
        observation_space: Any = observation or spaces.Box(-1, 1, (3,), np.float32)
        action_space = action

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return self._observe(), {}

        def step(self, action: Any) -> Any:
            assert self.action_space.contains(action), action
            return self._observe(), 1.0, bool(self.np_random.random() < 0.2), False, {}

        def _observe(self) -> Any:
            space = self.observation_space
            low, high = space.low, space.high
            drawn = low + self.np_random.random(space.shape or ()) * (high - low)
            return np.asarray(drawn, space.dtype)

    return Spaces


def box(low: Any, high: Any, shape: tuple[int, ...] = (2,), dtype: Any = np.float32) -> Any:
    return spaces.Box(np.full(shape, low, dtype), np.full(shape, high, dtype), shape, dtype)


HALF = spaces.Box(np.array([-1, 0], np.float32), np.array([1, np.inf], np.float32))


@pytest.mark.parametrize(
    ("name", "action", "message"),
    [
        ("sac", box(-np.inf, np.inf), "needs finite bounds"),
        ("td3", box(-np.inf, np.inf), "needs finite bounds"),
        ("sac", HALF, "needs finite bounds"),
        ("td3", HALF, "needs finite bounds"),
        ("td3", spaces.Discrete(3), r"td3 needs Box or .*, and Discrete\(3\) is a Discrete"),
        (
            "dqn",
            box(-1, 1),
            "dqn needs Discrete actions, and Box.* is a Box. Taken by: ppo, ppg, sac",
        ),
        ("dqn", box(-np.inf, np.inf), "dqn needs Discrete actions, and Box"),
        ("dqn", box(-1, 1, (2, 2)), "dqn needs Discrete actions, and Box"),
        ("sac", box(-1, 1, (2, 2)), r"sac needs actions of shape \(A,\), not \[2, 2\]"),
        ("td3", box(-1, 1, ()), r"td3 needs actions of shape \(A,\), not \[\]"),
        ("dqn", box(0, 5, dtype=np.int32), "is an integer Box"),
        ("dqn", spaces.MultiDiscrete([2, 3]), "MultiDiscrete"),
        ("sac", spaces.MultiBinary(2), "MultiBinary"),
        ("td3", spaces.Tuple((spaces.Discrete(2),)), "Tuple"),
    ],
    ids=str,
)
def test_actions_of_the_wrong_kind_are_named(
    name: str, action: spaces.Space[Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make(name, environment(action))


@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.parametrize("kind", [spaces.Dict({"a": spaces.Text(3)}), spaces.Text(4)], ids=str)
def test_observations_of_the_wrong_kind_are_named(name: str, kind: spaces.Space[Any]) -> None:
    action = spaces.Discrete(2) if name == "dqn" else box(-1, 1)
    with pytest.raises(UserError, match="is not supported; supported: Box"):
        make(name, environment(action, kind))


@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.parametrize(
    "observation",
    [
        box(-1, 1, ()),
        box(-1, 1, (2, 3)),
        box(0, 200, (3,), np.uint8),
        box(-9, 9, (3,), np.int64),
        box(0, 9, (3,), np.uint16),
        box(0, 9, (3,), np.uint32),
        box(0, 9, (3,), np.uint64),
        box(-1, 1, (3,), np.float64),
    ],
    ids=str,
)
def test_observations_of_every_shape_and_dtype_are_learnt_from(
    name: str, observation: spaces.Space[Any]
) -> None:
    action: Any = spaces.Discrete(3, start=5)
    if name != "dqn":
        low, high = np.array([-1, 10], np.float32), np.array([1, 10.5], np.float32)
        action = spaces.Box(low, high)
    algorithm = make(name, environment(action, observation), warm_up=10, train_every=2)
    algorithm.learn(40)
    assert algorithm.gradient_steps > 5
    seen = np.zeros((4, *(observation.shape or ())), observation.dtype)
    for each in algorithm.predict(seen, deterministic=False)[0]:
        assert action.contains(each)


# ---- many gradient steps


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_large_ratio_is_taken_exactly(name: str) -> None:
    algorithm = make(
        name,
        lambda: RandomEnds(discrete=name == "dqn"),
        gradient_steps_per_step=12.5,
        warm_up=17,
        train_every=1,
        minibatch_size=2,
    )
    algorithm.learn(21)
    assert algorithm.global_step == 22
    assert algorithm.gradient_steps == 62  # floor(5 * 12.5)


def test_a_directory_of_the_replay_that_cannot_be_used(tmp_path: Path) -> None:
    for key, name in (("replay_directory", "sac"), ("auxiliary_directory", "ppg")):
        changes: Any = {key: " "}
        env = "Pendulum-v1"
        with pytest.raises(UserError, match=rf"algorithm\.{key} must name a directory or be null"):
            algorithm_class(name)(env, **changes)
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        with pytest.raises(UserError) as refused:
            make("sac", replay_storage="disk", replay_directory=str(tmp_path / place))
        message = str(refused.value)
        assert "cannot lie in" in message and "give another directory" in message
        assert "0 bytes" not in message
    unwritable = Path("/proc/replay")  # where even root makes no file
    if Path("/proc").is_dir():
        with pytest.raises(UserError, match="/proc cannot be written"):
            make("dqn", replay_storage="disk", replay_directory=str(unwritable))
    make("dqn", replay_storage="disk", replay_directory=str(tmp_path / "new" / "one")).close()
