"""Environments that need memory: how far one comes without it, and with it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from rl_training.config import TrainConfig
from rl_training.envs import HiddenVelocity, RepeatPrevious, TMaze, make_env
from rl_training.errors import UserError

Policy = Callable[[Any], Any]


def play(env: Any, make_policy: Callable[[], Policy], episodes: int) -> float:
    """Return the mean return; every episode has a new policy, which sees all of it."""
    total = 0.0
    for seed in range(episodes):
        observation, _ = env.reset(seed=seed)
        policy, done = make_policy(), False
        while not done:
            observation, reward, terminated, truncated, _ = env.step(policy(observation))
            total, done = total + reward, terminated or truncated
    return total / episodes


def play_without_memory(env: Any, policy: Policy, episodes: int) -> float:
    return play(env, lambda: policy, episodes)


def make(env_id: str, **kwargs: Any) -> Any:
    return make_env(TrainConfig(algo="ppo", env_id=env_id, env_kwargs=kwargs), 0)


# ---- RepeatPrevious


class Rememberer:
    """Names the suit of ``k`` steps ago."""

    def __init__(self, k: int = 4) -> None:
        self.k, self.seen = k, list[int]()

    def __call__(self, observation: Any) -> int:
        self.seen.append(int(observation.argmax()))
        return self.seen[max(len(self.seen) - 1 - self.k, 0)]


@pytest.mark.parametrize("k", [1, 4])
def test_who_remembers_repeats_every_card(k: int) -> None:
    env = make("RepeatPrevious-v0", k=k)
    assert play(env, lambda: Rememberer(k), 5) == pytest.approx(1.0)
    assert env.unwrapped.observation_space.shape == (4,)
    env.reset(seed=0)
    assert [env.step(0)[2] for _ in range(52)] == [False] * 51 + [True]


def test_who_sees_only_the_present_card_comes_to_minus_0_49() -> None:
    rng = np.random.default_rng(0)
    decks = rng.permuted(np.tile(np.repeat(np.arange(4), 13), (4000, 1)), axis=1)
    shown, asked = decks[:, 4:], decks[:, :-4]
    # Every policy there is: an answer for each suit.
    scores = [
        2 * (np.array(answers)[shown] == asked).mean() - 1
        for answers in itertools.product(range(4), repeat=4)
    ]
    assert len(scores) == 256
    assert max(scores) == pytest.approx(2 * 13 / 51 - 1, abs=0.01)
    env = make("RepeatPrevious-v0")
    other = play_without_memory(env, lambda shown: (int(shown.argmax()) + 1) % 4, 200)
    assert other == pytest.approx(-0.49, abs=0.02)


# ---- TMaze


def test_the_sign_is_seen_once_and_decides_at_the_junction() -> None:
    for sign_seed in range(6):
        env = TMaze(length=3)
        first, _ = env.reset(seed=sign_seed)
        assert first[0] in (-1.0, 1.0) and first[1] == 0
        seen = [env.step(0)[0].tolist() for _ in range(3)]
        assert seen == [[0.0, 0.0], [0.0, 0.0], [0.0, 1.0]]
        right = int(first[0] > 0)
        _, reward, terminated, _, _ = env.step(right)
        assert (reward, terminated) == (1.0, True)
        env.reset(seed=sign_seed)
        for _ in range(3):
            env.step(1)
        assert env.step(1 - right)[1:3] == (0.0, True)


def test_without_memory_the_junction_is_a_coin_and_with_it_none() -> None:
    env = make("TMaze-v0")

    class Follower:
        def __init__(self) -> None:
            self.sign = 0.0

        def __call__(self, observation: Any) -> int:
            self.sign = self.sign or float(observation[0])
            return int(self.sign > 0)

    assert play(env, Follower, 50) == 1.0
    # At the junction all observations are alike: nobody without memory can do but one of these.
    for action in (0, 1):
        policy = {0: lambda _: 0, 1: lambda _: 1}[action]
        assert play_without_memory(env, policy, 400) == pytest.approx(0.5, abs=0.06)


# ---- hidden velocities


@pytest.mark.parametrize(
    ("env_id", "whole_id", "hidden"),
    [
        ("CartPoleNoVel-v1", "CartPole-v1", [1, 3]),
        ("PendulumNoVel-v1", "Pendulum-v1", [2]),
        ("MountainCarContinuousNoVel-v0", "MountainCarContinuous-v0", [1]),
        ("LunarLanderNoVel-v3", "LunarLander-v3", [2, 3, 5]),
    ],
)
def test_only_velocities_are_hidden(env_id: str, whole_id: str, hidden: list[int]) -> None:
    if "Lunar" in env_id:
        pytest.importorskip("Box2D", reason="needs the extra 'box2d'")
    env, whole = make(env_id), gymnasium.make(whole_id)
    assert env.spec.max_episode_steps == whole.spec.max_episode_steps  # type: ignore[union-attr]
    assert env.observation_space == whole.observation_space
    assert env.action_space == whole.action_space
    mine, theirs = (each.reset(seed=3)[0] for each in (env, whole))
    for _ in range(5):
        assert (mine[hidden] == 0).all()
        others = np.delete(np.arange(len(mine)), hidden)
        np.testing.assert_array_equal(mine[others], theirs[others])
        action = env.action_space.sample()
        (mine, one, *_), (theirs, other, *_) = env.step(action), whole.step(action)
        assert one == other
    assert (theirs[hidden] != 0).any()


class Differences:
    """CartPole's velocities as differences of what was seen before; balanced by a fixed rule."""

    def __init__(self) -> None:
        self.before: Any = None

    def __call__(self, observation: Any) -> int:
        position, angle = observation[0], observation[2]
        before = (position, angle) if self.before is None else self.before
        self.before = (position, angle)
        speed, turn = (position - before[0]) / 0.02, (angle - before[1]) / 0.02
        return int(angle + 0.3 * turn + 0.05 * position + 0.1 * speed > 0)


def test_cartpole_without_velocities_is_balanced_by_their_differences_alone() -> None:
    env = make("CartPoleNoVel-v1")
    assert play(env, Differences, 5) == 500.0
    rng = np.random.default_rng(0)
    scores = []
    for weights in [np.array([0.0, 1.0]), *rng.normal(size=(40, 2))]:

        def lean(seen: Any, weights: Any = weights) -> int:
            return int(seen[[0, 2]] @ weights > 0)

        scores.append(play_without_memory(env, lean, 10))
    assert 35 < scores[0] < 60
    assert max(scores) < 60


def test_pendulum_without_velocities_is_swung_up_by_their_differences_alone() -> None:
    env = make("PendulumNoVel-v1")

    class SwingUp:
        def __init__(self) -> None:
            self.before: Any = None

        def __call__(self, observation: Any) -> Any:
            angle = np.arctan2(observation[1], observation[0])
            turned = 0.0 if self.before is None else angle - self.before
            self.before = angle
            speed = ((turned + np.pi) % (2 * np.pi) - np.pi) / 0.05
            if abs(angle) < 0.5:
                torque = -10.0 * angle - 2.0 * speed
            else:  # towards the energy of standing upright
                energy = speed**2 / 6 + 5 * (np.cos(angle) - 1)
                torque = -2.0 * np.sign(energy) * np.sign(speed or 1.0)
            return np.array([np.clip(torque, -2, 2)], np.float32)

    assert play(env, SwingUp, 20) > -350
    # The best of three searches over networks that read the angle came to -1046.
    rng = np.random.default_rng(0)
    scores = []
    for weights in rng.normal(size=(12, 3)) * 3:

        def act(seen: Any, weights: Any = weights) -> Any:
            force = np.clip(weights[:2] @ seen[:2] + weights[2], -2, 2)
            return np.array([force], np.float32)

        scores.append(play_without_memory(env, act, 8))
    assert max(scores) < -700


def test_the_car_needs_to_know_which_way_it_moves() -> None:
    env = make("MountainCarContinuousNoVel-v0")

    class Swing:
        def __init__(self) -> None:
            self.before: float | None = None

        def __call__(self, observation: Any) -> Any:
            moved = 0.0 if self.before is None else observation[0] - self.before
            self.before = float(observation[0])
            return np.array([1.0 if moved >= 0 else -1.0], np.float32)

    assert play(env, Swing, 5) > 85
    rng = np.random.default_rng(0)
    scores = []
    for forces in [np.zeros(9), np.ones(9), *rng.uniform(-1, 1, (6, 9))]:

        def act(seen: Any, forces: Any = forces) -> Any:
            place = int((seen[0] + 1.2) / 0.2)
            return np.array([forces[place]], np.float32)

        scores.append(play_without_memory(env, act, 1))
    # Forces that depend on the place alone give back what they took: the goal is out of reach.
    assert max(scores) == 0.0


def test_impossible_arguments_are_refused() -> None:
    for env_id, arguments in (
        ("RepeatPrevious-v0", {"k": 0}),
        ("RepeatPrevious-v0", {"k": 52}),
        ("TMaze-v0", {"length": 0}),
    ):
        with pytest.raises(UserError, match="does not take one of the env_kwargs"):
            make(env_id, **arguments)


def test_they_are_made_by_hand_too() -> None:
    assert RepeatPrevious(k=2, decks=2).reset(seed=1)[0].sum() == 1.0
    hidden = HiddenVelocity(gymnasium.make("CartPole-v1"), [1, 3])
    assert hidden.reset(seed=1)[0][1] == 0.0
    assert gymnasium.make("rl_training.envs:TMaze-v0", length=2).reset(seed=0)[0].shape == (2,)
