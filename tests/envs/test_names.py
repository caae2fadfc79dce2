"""What messages call an environment that was given as an object, or by what makes it."""

from __future__ import annotations

import functools
import logging
import random
from typing import Any

import gymnasium
import pytest

from rl_training import PPO, check_env
from rl_training.envs import make_batched_env
from rl_training.errors import UserError
from tests.envs.scripted import Counter, make_config
from tests.recipes.parallel_environments import Crowd
from tests.recipes.test_parallel_environments import ID


class Draws(Counter):
    """Draws from Python's generator at every reset."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        random.random()
        return super().reset(seed=seed, options=options)


MAKERS: dict[str, Any] = {
    "Counter": Counter,
    "Counter again": functools.partial(Counter),
    "Counter at last": lambda: Counter(),
    "CartPole-v1": functools.partial(gymnasium.make, "CartPole-v1"),
}


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("name", MAKERS)
def test_messages_name_what_was_made_and_not_what_makes_it(name: str, vectorization: Any) -> None:
    config = make_config()
    config.env.vectorization = vectorization
    environment = make_batched_env(config, MAKERS[name], num_envs=2)
    assert environment.name == name.partition(" ")[0]
    environment.close()


@pytest.mark.parametrize(
    ("env", "env_id"),
    [
        (functools.partial(Counter), "python:Counter"),
        (functools.partial(gymnasium.make, "CartPole-v1"), "python:CartPole-v1"),
        (functools.partial(gymnasium.make, id="CartPole-v1"), "python:CartPole-v1"),
        (gymnasium.wrappers.TimeLimit(Counter(), 9), "python:Counter"),
        (Counter, "python:Counter"),
        (gymnasium.make("CartPole-v1"), "CartPole-v1"),
        (Crowd(), "python:crowd_v0"),
    ],
)
def test_a_run_is_called_by_what_is_made(env: Any, env_id: str) -> None:
    algorithm = PPO(env, num_steps=64)
    assert algorithm.config.env_id == env_id
    algorithm.close()


def test_evaluation_warns_by_the_same_id_in_workers_too(caplog: pytest.LogCaptureFixture) -> None:
    gymnasium.register("Names/Draws-v0", f"{__name__}:Draws", max_episode_steps=5)
    algorithm = PPO("Names/Draws-v0", num_steps=64)
    with caplog.at_level(logging.WARNING):
        algorithm.evaluate(episodes=1)
    assert "Names/Draws-v0: its reset or step draws" in caplog.text
    for each in ("sync", "async"):
        algorithm.config.env.vectorization = each
        environment = algorithm.evaluation_environment(num_envs=1, seed=0)
        assert environment.name == "Names/Draws-v0"
        environment.close()
    algorithm.close()
    del gymnasium.registry["Names/Draws-v0"]


@pytest.mark.parametrize(
    ("env", "name"), [(ID, ID), (Crowd, "crowd_v0"), (functools.partial(Crowd), "crowd_v0")]
)
def test_parallel_environments_are_called_by_their_id_or_the_name_they_give(
    env: Any, name: str
) -> None:
    algorithm = PPO(env, num_envs=3, num_steps=64)
    assert algorithm.environment.name == name
    evaluation = algorithm.evaluation_environment(num_envs=3, seed=0)
    assert evaluation.name == name
    evaluation.close()
    algorithm.close()


@pytest.mark.parametrize("env", [Crowd, Crowd(), lambda: Crowd()])
def test_check_env_says_that_it_looks_at_one_agent(env: Any) -> None:
    with pytest.raises(
        UserError, match=r"^crowd_v0 is an environment of several agents: check-env"
    ):
        check_env(env)
