"""What resume verifies of an environment, and which are named because nothing could."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from rl_training.envs import ResumeError, as_vector
from rl_training.envs.replay import VERIFIED_LENGTH, ActionLog
from rl_training.errors import UserError
from tests.envs.scripted import Counter, collect, generator, make_config, make_vector


class LateNoise(Counter):
    """Only the last reward of an episode depends on what no seed decides: a count of objects."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        self.number = LateNoise.made
        LateNoise.made += 1

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminal, limit, information = super().step(action)
        return observation, reward + (terminal or limit) * self.number, terminal, limit, information


class Drawing(Counter):
    """Every step moves one of the process-wide generators."""

    draw: Callable[[], Any] = staticmethod(random.random)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.draw()
        return super().step(action)


class DrawingAtReset(Counter):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        np.random.random()
        return super().reset(seed=seed)


class DrawingNumPy(Drawing):
    draw = staticmethod(np.random.normal)


def test_the_last_finished_episode_is_verified_too() -> None:
    LateNoise.made = 0
    environment = make_vector(LateNoise, num_envs=2, seed=3)
    collect(environment, 20, generator())
    state = environment.state_dict()
    assert all(len(each["actions"]) in (2, 3, 4, 5) for each in state["finished"])
    with pytest.raises(ResumeError, match=r"environment 0 .* its last finished episode"):
        make_vector(LateNoise, num_envs=2, seed=3).load_state_dict(state)


@pytest.mark.parametrize("key", ["observation", "return", "actions"])
def test_every_part_of_a_finished_episode_counts(key: str) -> None:
    environment = make_vector(Counter, num_envs=2, seed=3)
    collect(environment, 20, generator())
    state = environment.state_dict()
    make_vector(Counter, num_envs=2, seed=3).load_state_dict(state)
    last = state["finished"][1]
    last[key] = last[key][:-1] if key == "actions" else np.nextafter(last[key], 1e9)
    with pytest.raises(ResumeError, match=r"environment 1 .* its last finished episode"):
        make_vector(Counter, num_envs=2, seed=3).load_state_dict(state)


def test_the_log_keeps_finished_episodes_up_to_a_length() -> None:
    log = ActionLog(2)
    for step in range(VERIFIED_LENGTH + 1):
        log.append(np.array([step, -step]))
        if step in (3, VERIFIED_LENGTH - 1):
            log.finish([0])
            log.begin([0])
    log.finish([1])
    log.begin([1])
    first, second = log.finished()
    assert first is not None
    assert first.tolist() == list(range(4, VERIFIED_LENGTH))
    assert second is None
    for step in range(20_000):
        log.append(np.array([step, step]))
        log.begin([0, 1])
    assert len(log) < 8000
    again = log.finished()[0]
    assert again is not None
    assert again.tolist() == first.tolist()


@pytest.mark.parametrize("env", [Drawing, DrawingNumPy, DrawingAtReset])
def test_process_wide_randomness_is_named_once(env: type[Counter], caplog: Any) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            collect(make_vector(env, num_envs=2, seed=3), 6, generator())
    (message,) = [each.getMessage() for each in caplog.records]
    assert message.startswith(f"{env.__name__}: ")
    assert "process-wide" in message


def test_an_environment_of_seeded_draws_is_not_named(caplog: Any) -> None:
    collect(make_vector(Counter, num_envs=2, seed=3), 6, generator())
    assert not caplog.records


@pytest.mark.parametrize("name", ["NormalizeReward", "NormalizeObservation"])
@pytest.mark.parametrize("where", ["one", "vector", "rows", "workers"])
def test_wrappers_with_running_statistics_are_refused(name: str, where: str) -> None:
    def one() -> Any:
        wrapper: Any = getattr(gymnasium.wrappers, name)
        return gymnasium.wrappers.TimeLimit(wrapper(Counter()), 9)

    mode = gymnasium.vector.AutoresetMode.DISABLED
    whole: Any = getattr(gymnasium.wrappers.vector, name)
    makers: dict[str, Any] = {
        "one": lambda: one(),
        "vector": lambda: whole(SyncVectorEnv([Counter] * 2)),
        "rows": lambda: SyncVectorEnv([one] * 2, autoreset_mode=mode),
        "workers": lambda: AsyncVectorEnv([one] * 2, context="fork", autoreset_mode=mode),
    }
    made = makers[where]()
    remedy = "env.normalize_" + name.removeprefix("Normalize").lower()
    with pytest.raises(UserError, match=f"wrapper {name} .*{remedy}"):
        as_vector(made, make_config())
    made.close()


def test_a_frozen_normalizing_wrapper_is_taken() -> None:
    env = gymnasium.wrappers.NormalizeReward(Counter())
    env.update_running_mean = False
    assert as_vector(env, make_config()).num_envs == 1


def test_one_object_cannot_be_two_rows() -> None:
    env = Counter()
    with pytest.raises(UserError, match="rows 0 and 1 are the same Counter object"):
        as_vector(lambda: env, make_config(), num_envs=2)
    with pytest.raises(UserError, match="rows 0 and 2 are the same Counter object"):
        makers: list[Callable[[], Any]] = [lambda: env, Counter, lambda: env]
        mode = gymnasium.vector.AutoresetMode.DISABLED
        as_vector(SyncVectorEnv(makers, autoreset_mode=mode), make_config())
