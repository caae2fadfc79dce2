"""``env.wrappers``: gymnasium wrappers by name around the environment of an id."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rl_training.arguments import named_modules
from rl_training.config import config_from_dict
from rl_training.envs import make_env
from rl_training.errors import UserError
from rl_training.recipes.ppo import PPO
from rl_training.registry import algorithm_class
from rl_training.runtime.state import digest

HERE = __name__
DOUBLED, SHIFTED = f"{HERE}:Doubled", f"{HERE}:Shifted"


class Doubled(gymnasium.ObservationWrapper[Any, Any, Any]):
    def observation(self, observation: Any) -> Any:
        return np.float32(2) * observation


class Shifted(gymnasium.ObservationWrapper[Any, Any, Any]):
    def observation(self, observation: Any) -> Any:
        return observation + np.float32(1)


class Needy(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: Any, how: int) -> None:
        super().__init__(env)


def config_of(*wrappers: str, **env: Any) -> Any:
    data = {"algo": "ppo", "env_id": "CartPole-v1", "env": {"wrappers": list(wrappers), **env}}
    return config_from_dict(data, source="test")


def test_the_first_wrapper_is_the_innermost() -> None:
    plain, _ = make_env(config_of(), 0).reset(seed=3)
    wrapped, _ = make_env(config_of(DOUBLED, SHIFTED), 0).reset(seed=3)
    np.testing.assert_array_equal(wrapped, 2 * plain + 1)
    other, _ = make_env(config_of(SHIFTED, DOUBLED), 0).reset(seed=3)
    np.testing.assert_array_equal(other, 2 * (plain + 1))


def test_a_run_in_wrappers_goes_on_bit_for_bit_and_is_evaluated_in_them(tmp_path: Path) -> None:
    make: dict[str, Any] = {
        "num_envs": 2,
        "num_steps": 16,
        "minibatch_size": 16,
        "wrappers": [DOUBLED],
    }
    straight = PPO("CartPole-v1", **make).learn(64).learn(64)
    path = PPO("CartPole-v1", **make).learn(64).save(tmp_path / "saved")
    assert digest(PPO.load(path).learn(64).state_dict()) == digest(straight.state_dict())
    environment = straight.evaluation_environment(num_envs=1, seed=1)
    assert "Doubled" in str(environment.vector.envs[0])


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        ("Doubled", r"env\.wrappers\[0\] must have the form 'module:Class'"),
        ("nowhere_at_all:Doubled", r"env\.wrappers: .*there is no module 'nowhere_at_all'"),
        (f"{HERE}:Doubledd", r"env\.wrappers: module .* Did you mean 'Doubled'"),
        ("os:system", r"env\.wrappers: os:system must be a subclass of gymnasium\.Wrapper"),
        ("subprocess:Popen", r"Popen must be a subclass of gymnasium\.Wrapper"),
        (f"{HERE}:Needy", r"env\.wrappers: .*Needy does not go around .* 'how'"),
    ],
)
def test_what_is_no_wrapper_is_refused(wrapper: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        make_env(config_of(wrapper), 0)
    assert "\n" not in str(caught.value)


def test_the_pipeline_of_atari_games_takes_none() -> None:
    with pytest.raises(UserError, match=r"env\.wrappers must be empty with env\.atari"):
        config_of(DOUBLED, atari={"enabled": True})


def test_a_wrapper_s_module_needs_trust() -> None:
    config = config_of("one.place:Wrapper", "another:Wrapper")
    assert named_modules(config) == ["another", "one.place"]
    assert named_modules(config, env="CartPole-v1") == []


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minigrid", None)
    with pytest.raises(UserError, match=r'pip install "rl_training\[minigrid\]"'):
        PPO("minigrid:MiniGrid-Empty-5x5-v0")


@pytest.mark.parametrize("name", ["ppo", "ppg"])
def test_minigrid_s_small_images_get_the_encoder_that_takes_them(name: str) -> None:
    pytest.importorskip("minigrid")
    make: Any = algorithm_class(name)
    agent = make(
        "minigrid:MiniGrid-Empty-5x5-v0",
        wrappers=["minigrid.wrappers:ImgObsWrapper"],
        num_envs=2,
        num_steps=16,
        minibatch_size=16,
        feature_size=8,
    )
    assert agent.observation_space.shape == (7, 7, 3)
    assert type(agent.model.encoder).__name__ == "ImpalaCNN"
    agent.learn(32)
