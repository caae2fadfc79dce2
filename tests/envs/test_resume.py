from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from tensordict import TensorDict

from rl_training.envs import ResumeError, VectorEnv, make_batched_env
from rl_training.envs.replay import ActionLog, Replayed, require_equal
from rl_training.errors import UserError
from tests.envs.scripted import (
    Continuous,
    Counter,
    Samples,
    Unrepeatable,
    collect,
    generator,
    make_config,
    make_vector,
    random_actions,
)


def leaves(value: Any, prefix: str = "") -> dict[str, Any]:
    """Every leaf of a state as (kind, bytes): what a digest sees."""
    if isinstance(value, dict):
        pairs = [leaves(item, f"{prefix}/{key}") for key, item in value.items()]
    elif isinstance(value, list):
        pairs = [leaves(item, f"{prefix}/{index}") for index, item in enumerate(value)]
    else:
        data = value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        return {prefix: (type(value), data.dtype, data.shape, data.tobytes())}
    return {key: leaf for pair in pairs for key, leaf in pair.items()}


def run_on(environment: VectorEnv, actions: torch.Generator) -> Any:
    """The next reset, which must return the root, and what follows."""
    return collect(environment, 80, actions, environment.reset())


def check_resume(make: Callable[[], VectorEnv], steps: int) -> None:
    interrupted, drawn = make(), generator()
    collect(interrupted, steps, drawn)
    state = copy.deepcopy(interrupted.state_dict())
    interrupted.continue_episodes()
    position = drawn.get_state()
    expected = run_on(interrupted, drawn)
    final = leaves(interrupted.state_dict())
    interrupted.close()

    resumed = make()
    resumed.load_state_dict(state)
    assert leaves(resumed.state_dict()) == leaves(state)
    drawn.set_state(position)
    assert (run_on(resumed, drawn) == expected).all()
    assert leaves(resumed.state_dict()) == final
    resumed.close()


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    ("env_id", "steps", "package"),
    [
        ("CartPole-v1", 77, "gymnasium"),
        ("Pendulum-v1", 333, "gymnasium"),
        ("LunarLander-v3", 150, "Box2D"),
        ("HalfCheetah-v5", 120, "mujoco"),
    ],
)
def test_a_resumed_run_continues_bit_for_bit(
    env_id: str, steps: int, package: str, normalize: bool
) -> None:
    pytest.importorskip(package)
    config = make_config(env_id, normalize_observation=normalize, normalize_reward=normalize)
    check_resume(lambda: make_vector(config=config), steps)


# 0: no step since the reset. The others leave episodes of different lengths, some just begun.
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 5, 17])
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_any_moment_of_the_episodes_can_be_resumed(vectorization: str, steps: int) -> None:
    if steps == 0:
        environment = make_vector(Samples, vectorization=vectorization)
        root = environment.reset()
        resumed = make_vector(Samples, vectorization=vectorization)
        resumed.load_state_dict(environment.state_dict())
        assert (resumed.reset() == root).all()
        return
    check_resume(lambda: make_vector(Samples, num_envs=4, vectorization=vectorization), steps)


def test_a_state_may_cross_from_processes_to_one_process() -> None:
    across = make_vector(Samples, num_envs=4, vectorization="async")
    within = make_vector(Samples, num_envs=4)
    collect(across, 13, generator())
    within.load_state_dict(across.state_dict())
    assert leaves(within.state_dict()) == leaves(across.state_dict())
    across.continue_episodes()
    assert (run_on(across, generator(1)) == run_on(within, generator(1))).all()
    across.close()


def user_vector(kind: Any, mode: AutoresetMode, **settings: Any) -> VectorEnv:
    makers: list[Any] = [lambda: gymnasium.make("CartPole-v1")] * 3
    vector = kind(makers, autoreset_mode=mode, **settings)
    return make_batched_env(make_config(), vector)


@pytest.mark.parametrize(
    "make",
    [
        lambda: make_vector(lambda: gymnasium.make("CartPole-v1")),
        lambda: make_vector(gymnasium.make("CartPole-v1")),
        lambda: make_vector(Continuous),
        lambda: user_vector(SyncVectorEnv, AutoresetMode.DISABLED),
        lambda: user_vector(SyncVectorEnv, AutoresetMode.NEXT_STEP),
        lambda: user_vector(AsyncVectorEnv, AutoresetMode.DISABLED, context="fork"),
        lambda: user_vector(AsyncVectorEnv, AutoresetMode.NEXT_STEP, context="fork"),
    ],
    ids=["callable", "instance", "float64", "sync", "sync next", "async", "async next"],
)
def test_a_users_environment_resumes(make: Callable[[], VectorEnv]) -> None:
    check_resume(make, 50)


def test_resuming_into_an_environment_in_use_resumes_too() -> None:
    environment, other = make_vector(Counter), make_vector(Counter)
    collect(environment, 21, generator())
    collect(other, 40, generator(5))
    other.load_state_dict(environment.state_dict())
    environment.continue_episodes()
    assert (run_on(environment, generator(1)) == run_on(other, generator(1))).all()


def test_a_saved_state_is_not_changed_by_going_on() -> None:
    environment = make_vector(Counter, normalize_observation=True, normalize_reward=True)
    root = environment.reset()
    for _ in range(9):
        root["action"] = random_actions(environment, generator())
        _, root = environment.step_and_maybe_reset(root)
    state = environment.state_dict()
    before = leaves(copy.deepcopy(state))
    collect(environment, 50, generator(), root)
    assert leaves(state) == before


def with_memory(environment: VectorEnv, steps: int, root: Any) -> Any:
    """Steps of a policy that counts its own steps in next."""
    for _ in range(steps):
        hidden = root.get("hidden", torch.zeros(environment.num_envs, 2))
        nested = root.get(
            "core", TensorDict({"cell": torch.zeros(environment.num_envs)}, root.shape)
        )
        root["action"] = random_actions(environment, generator())
        root["next"] = TensorDict({"hidden": hidden + 1, "core": nested + 1}, root.shape)
        _, root = environment.step_and_maybe_reset(root)
    return root


def test_recurrent_state_is_restored_with_the_root() -> None:
    environment, resumed = make_vector(Continuous), make_vector(Continuous)
    root = with_memory(environment, 6, environment.reset())
    resumed.load_state_dict(environment.state_dict())
    restored = resumed.reset()
    assert (restored == root).all()
    assert restored["hidden"].tolist() == [[6.0, 6.0]] * 3
    assert restored["core", "cell"].tolist() == [6.0] * 3


def test_an_environment_that_does_not_reproduce_is_named() -> None:
    Unrepeatable.made = 0
    environment = make_vector(Unrepeatable, num_envs=2)
    collect(environment, 7, generator())
    with pytest.raises(ResumeError, match=r"Unrepeatable.*environment 1 .*--resume approximate"):
        make_vector(Unrepeatable, num_envs=2).load_state_dict(environment.state_dict())


def tampered(key: str, change: Callable[[Any], Any]) -> dict[str, Any]:
    environment = make_vector(Continuous)
    collect(environment, 7, generator())
    state = copy.deepcopy(environment.state_dict())
    state[key] = change(state[key])
    return state


def nudge(row: int) -> Callable[[Any], Any]:
    def change(values: Any) -> Any:
        values[row] = np.nextafter(values[row], np.inf)
        return values

    return change


def drop_last(actions: list[Any]) -> list[Any]:
    return [actions[0], actions[1][:-1], actions[2]]


@pytest.mark.parametrize(
    ("key", "change", "row"),
    [("observation", nudge(2), 2), ("returns", nudge(0), 0), ("actions", drop_last, 1)],
)
def test_one_bit_is_enough_to_refuse(key: str, change: Callable[[Any], Any], row: int) -> None:
    with pytest.raises(ResumeError, match=f"environment {row} "):
        make_vector(Continuous).load_state_dict(tampered(key, change))


def test_an_episode_that_ends_in_the_replay_is_refused() -> None:
    environment = make_vector(Counter, num_envs=1, seed=3)
    collect(environment, 1, generator())
    state = environment.state_dict()
    # Longer than any of its episodes.
    state["actions"] = [np.repeat(state["actions"][0], 20, axis=0)]
    with pytest.raises(ResumeError, match="environment 0 "):
        make_vector(Counter, num_envs=1, seed=3).load_state_dict(state)


def test_an_end_that_the_recorded_episode_had_not_is_refused_even_with_equal_values() -> None:
    recorded = Replayed(np.zeros((2, 3)), np.zeros(2), [])
    require_equal(recorded, recorded, "Toy-v0")
    with pytest.raises(ResumeError, match="Toy-v0: environment 1 "):
        require_equal(recorded, recorded._replace(ended=[1]), "Toy-v0")


def test_approximate_resume_begins_the_next_episodes_and_says_so(caplog: Any) -> None:
    environment = make_vector(Counter, seed=3, normalize_observation=True)
    with_memory(environment, 20, environment.reset())
    state = environment.state_dict()
    resumed = make_vector(Counter, seed=3, normalize_observation=True)
    with caplog.at_level(logging.WARNING):
        resumed.load_state_dict(state, approximate=True)
    assert "fresh episodes" in caplog.text
    root = resumed.reset()
    assert bool(root["is_init"].all())
    assert root["hidden"].tolist() == [[0.0, 0.0]] * 3
    assert root["core", "cell"].tolist() == [0.0] * 3
    after = resumed.state_dict()
    assert after["episodes"].tolist() == (state["episodes"] + 1).tolist()
    assert after["returns"].tolist() == after["lengths"].tolist() == [0, 0, 0]
    assert (
        after["normalizer"]["observation"]["count"]
        == state["normalizer"]["observation"]["count"] + 3
    )


def test_a_state_taken_before_the_first_reset_restores_the_seed() -> None:
    state = make_vector(Counter, seed=3).state_dict()
    resumed = make_vector(Counter, seed=4)
    resumed.load_state_dict(state)
    fresh = make_vector(Counter, seed=3)
    assert (resumed.reset() == fresh.reset()).all()


def test_a_state_of_other_environments_is_refused() -> None:
    environment = make_vector(Counter, num_envs=2)
    environment.reset()
    with pytest.raises(UserError, match="2 environments, and there are 3"):
        make_vector(Counter, num_envs=3).load_state_dict(environment.state_dict())
    with pytest.raises(UserError, match="normalisation was off"):
        make_vector(Counter, num_envs=2, normalize_reward=True).load_state_dict(
            environment.state_dict()
        )


def test_a_state_between_episodes_is_not_taken() -> None:
    environment = make_vector(Counter, num_envs=1)
    data = environment.reset()
    while not bool(data.get("done").any()):
        data = environment.step(data.set("action", torch.zeros(1, dtype=torch.int64)))["next"]
    with pytest.raises(RuntimeError, match="need a reset"):
        environment.state_dict()
    with pytest.raises(RuntimeError, match="need a reset"):
        environment.continue_episodes()


def test_the_action_log_forgets_what_no_episode_needs() -> None:
    log = ActionLog(2)
    for step in range(20_000):
        log.append(np.array([step, -step]))
        if step % 10 == 9:
            log.begin([0])
        if step % 100 == 57:
            log.begin([1])
    assert len(log) <= 1200
    first, second = log.episodes()
    assert first.tolist() == []
    assert second.tolist() == list(range(-19_958, -20_000, -1))


def test_a_long_episode_keeps_its_whole_log() -> None:
    log = ActionLog(2)
    for step in range(5000):
        log.append(np.array([step, step]))
        log.begin([1])
    assert log.episodes()[0].tolist() == list(range(5000))


def test_a_restored_log_goes_on_like_the_saved_one() -> None:
    saved, restored = ActionLog(2), ActionLog(2)
    for step in range(5):
        saved.append(np.array([[step, 0.5], [-step, 0.5]]))
        if step == 2:
            saved.begin([1])
    restored.restore(saved.episodes(), np.zeros((2, 2)))
    for log in (saved, restored):
        log.append(np.array([[9.0, 9.0], [8.0, 8.0]]))
        log.begin([])
    assert leaves(restored.episodes()) == leaves(saved.episodes())
    assert [len(episode) for episode in saved.episodes()] == [6, 3]
