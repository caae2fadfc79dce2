"""Mistakes in what an environment is given, or gives, told in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rl_training import PPO
from rl_training.config import TrainConfig, replace_config
from rl_training.envs import make_env
from rl_training.envs.gymnasium_ids import make_by_id
from rl_training.errors import EnvironmentFailedError, UserError
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run
from rl_training.workflows import resume_checkpoint, train
from tests.envs.scripted import Counter, collect, generator, make_vector


class Bare(gymnasium.Env[Any, Any]):
    """Has no constructor, so Python says of an argument only that it takes none."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)


class Wrapped(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Does not record how it was constructed."""


class Fraction(Counter):
    """Says integers; shows a float at the reset, or only from the first step on."""

    shown_at = 0

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-1000, 1000, (2,), np.int64)

    def _show(self) -> Any:
        return np.array([0.5, 1.0]) if self.time >= self.shown_at else np.array([0, 1])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._show_after(super().step(action))

    def _show_after(self, result: Any) -> Any:
        return (self._show(), *result[1:])


class FractionLater(Fraction):
    shown_at = 1


@pytest.fixture
def bare() -> Any:
    gymnasium.register("Refusals/Bare-v0", entry_point=lambda **given: Bare(**given))
    yield "Refusals/Bare-v0"
    del gymnasium.registry["Refusals/Bare-v0"]


def test_a_class_without_a_constructor_takes_nothing(bare: str) -> None:
    with pytest.raises(UserError, match=r"env_kwargs \['a'\]: .*takes no arguments"):
        make_env(TrainConfig(algo="ppo", env_id=bare, env_kwargs={"a": 1}), 0)
    with pytest.raises(UserError, match="cannot render 'human': it takes no render_mode"):
        make_env(TrainConfig(algo="ppo", env_id=bare), 0, render_mode="human")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"disable_env_checker": True}, "'disable_env_checker' is not an argument"),
        ({"id": "x"}, "'id' is not an argument"),
        ({"self": 1}, "'self' is not an argument"),
        ({"max_episode_steps": 0}, "max_episode_steps must be .*, not 0"),
        ({"max_episode_steps": "a"}, "max_episode_steps must be .*, not 'a'"),
        ({"max_episode_steps": True}, "max_episode_steps must be .*, not True"),
        ({"render_mode": 3}, "render_mode must be text or null, not 3"),
    ],
)
def test_arguments_that_no_environment_takes(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        make_env(TrainConfig(algo="ppo", env_id="CartPole-v1", env_kwargs=arguments), 0)


@pytest.mark.parametrize("env_id", [":", ".x:y", "a b:c", ":x", "..:x"])
def test_an_id_whose_module_has_no_name(env_id: str) -> None:
    with pytest.raises(UserError, match="names no module; the form is 'my_package:MyEnv-v0'"):
        make_env(TrainConfig(algo="ppo", env_id=env_id), 0)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_floats_in_an_integer_space(vectorization: str) -> None:
    with pytest.raises(UserError, match="says int64, and an environment returned a float64"):
        collect(make_vector(Fraction, num_envs=2, vectorization=vectorization), 1, generator())


def test_floats_in_an_integer_space_that_come_with_the_first_step() -> None:
    with pytest.raises(UserError, match="says int64, and an environment returned a float64"):
        collect(make_vector(FractionLater, num_envs=2), 1, generator())


def test_a_wrapper_that_cannot_be_made_again_is_found_before_training(tmp_path: Path) -> None:
    env = Wrapped(gymnasium.make("CartPole-v1"))
    algorithm = PPO(env, num_steps=16, minibatch_size=16, output_dir=str(tmp_path))
    complaint = "the wrapper Wrapped of CartPole-v1 does not say how to make another one"
    with pytest.raises(UserError, match=complaint):
        algorithm.evaluate(episodes=1)
    with pytest.raises(UserError, match=complaint):
        algorithm.learn(16)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("key", ["entropy_coefficient", "value_coefficient"])
def test_a_negative_coefficient(key: str) -> None:
    negative: dict[str, Any] = {key: -1.0}
    with pytest.raises(UserError, match=f"algorithm.{key} must not be negative, not -1"):
        PPO("CartPole-v1", **negative)
    with pytest.raises(UserError, match=r"algorithm.adam_epsilon must be at most 1\.0, not 1"):
        PPO("CartPole-v1", adam_epsilon=1e9)


def test_wrong_arguments_of_evaluation_are_refused_before_training(tmp_path: Path) -> None:
    config = replace_config(
        TrainConfig(algo="ppo", env_id="CartPole-v1", output_dir=str(tmp_path), num_envs=2),
        **{"evaluation.env_kwargs": {"zzz": 1}, "total_timesteps": 128, "num_steps": 32},
    )
    with pytest.raises(UserError, match="zzz"):
        train(config)
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_a_policy_by_name_is_refused_with_what_to_write() -> None:
    several: Any = ("MlpPolicy", "CartPole-v1")  # as Stable-Baselines3 has it
    with pytest.raises(UserError, match="one thing without a keyword, the environment"):
        PPO(*several)


class Answers(Counter):
    """Gives another info at resets or steps, or another reward."""

    def __init__(self, **answers: Any) -> None:
        super().__init__()
        self.answers = answers

    def reset(self, **keywords: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(**keywords)
        return observation, self.answers.get("reset", info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Any]:
        observation, reward, terminated, truncated, info = super().step(action)
        answers = self.answers
        return (
            observation,
            answers.get("reward", reward),
            terminated,
            truncated,
            answers.get("step", info),
        )


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        ({"reset": None}, r"reset must return \(observation, info\), info a dict, not None"),
        ({"reset": [1]}, r"info a dict, not \[1\]"),
        ({"step": None}, r"truncated, info\), info a dict, not None"),
        ({"reward": "1.5"}, "a reward must be one number, not '1.5'"),
        ({"reward": None}, "a reward must be one number, not None"),
    ],
)
def test_an_info_or_a_reward_of_another_kind(
    answers: dict[str, Any], complaint: str, vectorization: str
) -> None:
    def answering() -> Answers:
        return Answers(**answers)

    with pytest.raises(EnvironmentFailedError, match=f"Answers failed.*{complaint}"):
        PPO(answering, num_envs=2, num_steps=32, vectorization=vectorization).learn(64)


def test_rewards_of_any_kind_of_number() -> None:
    for reward in (2, np.float32(0.5), np.array([1.5]), True, np.int8(3)):
        algorithm = PPO(lambda each=reward: Answers(reward=each), num_envs=2, num_steps=32)
        batch = next(iter(algorithm.collector()))
        assert (batch["next", "reward"] == float(np.asarray(reward).reshape(()))).all()
        algorithm.close()


def test_an_unknown_id_of_a_module_gets_the_module_s_own_ids() -> None:
    gymnasium.register("RefusalsWalk-v0", entry_point="tests.envs.test_refusals:Bare")
    gymnasium.register("ARunOfRefusals-v0", entry_point=lambda **_: Bare())
    with pytest.raises(UserError) as refused:
        make_by_id("tests.envs.test_refusals:RefusalsWolk-v0", {})
    message = str(refused.value)
    assert "Did you mean 'tests.envs.test_refusals:RefusalsWalk-v0'?" in message
    assert "registers " in message and "ARunOfRefusals-v0" in message
    assert "CartPole" not in message
    with pytest.raises(UserError, match="Module 'json' registers no environment"):
        make_by_id("json:CartPoole-v1", {})
    with pytest.raises(UserError, match=r"Did you mean 'CartPole-v1'\?"):
        make_by_id("CartPoole-v1", {})


def masks_missing(tmp_path: Path, **changes: Any) -> TrainConfig:
    return replace_config(
        TrainConfig(algo="ppo", env_id="CartPole-v1", output_dir=str(tmp_path), num_envs=2),
        **{"env.action_masks": "info", "total_timesteps": 128, "num_steps": 64, **changes},
    )


@pytest.mark.parametrize("tensorboard", [False, True])
def test_a_mistake_that_only_playing_shows_leaves_no_run(tmp_path: Path, tensorboard: bool) -> None:
    (tmp_path / "older").mkdir()
    changes: dict[str, Any] = {"tracking.tensorboard": tensorboard}
    with pytest.raises(UserError, match="info has no 'action_mask'"):
        train(masks_missing(tmp_path, **changes))
    assert [each.name for each in tmp_path.iterdir()] == ["older"]
    algorithm = PPO("CartPole-v1", action_masks="info", num_steps=64, output_dir=str(tmp_path))
    with pytest.raises(UserError, match="info has no 'action_mask'"):
        algorithm.learn(128)
    assert [each.name for each in tmp_path.iterdir()] == ["older"]


class Leaves(Callback):
    """Fails like a mistake of the user's, after what it was told to do first."""

    def __init__(self, first: str) -> None:
        self.first = first

    def on_train_start(self, context: Any) -> None:
        if self.first == "file":
            (context.run.directory / "mine.txt").write_text("kept")
        if self.first != "iteration":
            raise UserError("a mistake")

    def on_iteration(self, context: Any, metrics: Any) -> None:
        raise UserError("a mistake")


@pytest.mark.parametrize("first", ["file", "iteration"])
def test_what_was_written_by_others_or_learnt_is_never_removed(tmp_path: Path, first: str) -> None:
    config = masks_missing(tmp_path, **{"env.action_masks": "off"})
    with pytest.raises(UserError, match="a mistake"):
        train(config, callbacks=[Leaves(first)])
    (run,) = tmp_path.iterdir()
    assert (run / "config.yaml").is_file() and (run / "metadata.json").is_file()
    assert (run / "metrics.jsonl").is_file() and (first != "file" or (run / "mine.txt").is_file())


def test_a_run_that_stood_there_before_is_never_removed(tmp_path: Path) -> None:
    config = masks_missing(tmp_path, **{"env.action_masks": "off"})
    run = Run.create(config, [])  # as of a training that was killed before its first checkpoint
    run.close("failed")
    with pytest.raises(UserError, match="a mistake"):
        resume_checkpoint(run.directory, callbacks=[Leaves("nothing")])
    assert (run.directory / "config.yaml").is_file()
    assert resume_checkpoint(run.directory).status == "finished"
