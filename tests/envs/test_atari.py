"""The Atari pipeline, step by step, against a plain version of each rule."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

import cv2

from rl_training.config import TrainConfig
from rl_training.config.groups import AtariConfig, EnvConfig
from rl_training.envs import make_batched_env, make_env
from rl_training.envs.atari import AtariPipeline, make_atari
from rl_training.envs.gymnasium_ids import make_by_id
from rl_training.envs.replay import ResumeError
from rl_training.errors import UserError

BREAKOUT = "BreakoutNoFrameskip-v4"
Frame = NDArray[np.uint8]


def pipeline(env_id: str = BREAKOUT, *, training: bool = True, **settings: Any) -> AtariPipeline:
    config = AtariConfig(enabled=True, **settings)
    return make_atari(env_id, {}, config, training=training)


def play(env: Any, steps: int, seed: int = 0) -> list[tuple[Any, ...]]:
    """Take random steps, resetting when an episode ends; return every observation and outcome."""
    actions = np.random.default_rng(seed).integers(env.action_space.n, size=steps)
    seen: list[tuple[Any, ...]] = []
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(action)
        seen.append((observation.tobytes(), reward, terminated, truncated))
        if terminated or truncated:
            seen.append((env.reset()[0].tobytes(),))
    return seen


class Emulator:
    """The rules written down once more, on the emulator's plain interface."""

    def __init__(self, env_id: str = BREAKOUT) -> None:
        made: Any = make_by_id(env_id, {"frameskip": 1, "repeat_action_probability": 0.0})
        self.ale = made.unwrapped.ale
        self.actions = list(made.unwrapped._action_set)
        self.ale.reset_game()

    def screen(self) -> Frame:
        return np.array(self.ale.getScreenGrayscale(), np.uint8)

    def hold(self, action: int) -> tuple[Frame, float]:
        screens, reward = [], 0.0
        for _ in range(4):
            reward += self.ale.act(self.actions[action])
            screens.append(self.screen())
        return small(np.maximum(screens[-2], screens[-1])), reward


def small(screen: Frame) -> Frame:
    return np.asarray(cv2.resize(screen, (84, 84), interpolation=cv2.INTER_AREA), np.uint8)


def test_a_game_begins_with_frames_without_action_and_fire_and_a_stack_of_its_first_frame() -> None:
    env, seed = pipeline(noop_max=7), 11
    observation, _ = env.reset(seed=seed)
    plain = Emulator()
    for _ in range(int(np.random.default_rng(seed).integers(1, 8))):
        plain.ale.act(plain.actions[0])
    plain.hold(1)
    expected, _ = plain.hold(2)
    assert observation.dtype == np.uint8 and observation.shape == (4, 84, 84)
    assert all((frame == expected).all() for frame in observation)


def test_the_number_of_frames_without_action_covers_its_range() -> None:
    env = pipeline(noop_max=3, fire_reset=False)
    frames = set()
    for seed in range(30):
        env.reset(seed=seed)
        frames.add(env._ale.getEpisodeFrameNumber())
    assert frames == {1, 2, 3}


def test_a_step_holds_the_action_for_four_frames_and_merges_the_last_two() -> None:
    env, plain = pipeline(noop_max=0, fire_reset=False), Emulator()
    stack = [small(plain.screen())] * 4
    assert (env.reset(seed=0)[0] == np.stack(stack)).all()
    rewards = 0.0
    for action in np.random.default_rng(1).integers(4, size=60):
        observation, reward, terminated, _, _ = env.step(action)
        frame, plain_reward = plain.hold(int(action))
        stack = [*stack[1:], frame]
        assert (observation == np.stack(stack)).all()
        assert reward == np.sign(plain_reward)
        rewards += plain_reward
        if terminated:
            break
    assert env.score == rewards


def test_merging_matters() -> None:
    env, plain = pipeline(noop_max=0, fire_reset=False), Emulator()
    env.reset(seed=0)
    differs = False
    for action in [1, *[0] * 40]:
        observation = env.step(action)[0]
        plain.hold(action)
        differs |= bool((observation[-1] != small(plain.screen())).any())
    assert differs


def until_a_life_is_lost(env: AtariPipeline) -> tuple[Any, ...]:
    for _ in range(2000):
        result = env.step(0)
        if result[2]:
            return result
    raise AssertionError("no life was lost")


def test_a_life_ends_an_episode_and_the_game_goes_on() -> None:
    env = pipeline()
    env.reset(seed=3)
    lives = []
    for _ in range(5):
        frame = env._ale.getEpisodeFrameNumber()
        _, _, terminated, truncated, information = until_a_life_is_lost(env)
        assert terminated and not truncated
        lives.append(information["lives"])
        assert env._ale.getEpisodeFrameNumber() > frame
        before = env._ale.getEpisodeFrameNumber()
        observation, _ = env.reset(seed=3)
        if information["lives"]:
            # One step without action, then FIRE and the third action: 12 frames of the same game.
            assert env._ale.getEpisodeFrameNumber() == before + 12
            assert (observation == observation[0]).all()
    assert lives == [4, 3, 2, 1, 0]
    assert env._ale.lives() == 5 and env._ale.getEpisodeFrameNumber() < 60, "a new game"


def test_a_reset_in_the_middle_of_a_life_begins_a_new_game() -> None:
    env = pipeline()
    env.reset(seed=3)
    until_a_life_is_lost(env)
    env.reset()
    env.step(0)
    env.reset(seed=4)
    assert env._ale.lives() == 5


def test_evaluation_plays_whole_games_with_their_own_rewards() -> None:
    env = pipeline("BreakoutNoFrameskip-v4", training=False)
    env.reset(seed=5)
    total, done, stacks = 0.0, False, 0
    actions = np.random.default_rng(0)
    while not done:
        lives = env._ale.lives()
        observation, reward, done, truncated, information = env.step(int(actions.integers(4)))
        total += reward
        if information["lives"] < lives and not done:
            stacks += 1
            assert (observation == observation[0]).all(), "a life begins as it does in training"
    assert env._ale.lives() == 0 and not truncated and stacks == 4
    assert total == env.score


def test_rewards_keep_only_their_sign_in_training_alone() -> None:
    rewards = {}
    for training in (True, False):
        env = pipeline("MsPacmanNoFrameskip-v4", training=training)
        env.reset(seed=1)
        rewards[training] = [env.step(action)[1] for action in [0, 7, 5, 3, 1, 8, 6, 4, 2] * 34]
    assert set(rewards[True]) <= {-1.0, 0.0, 1.0} and 10.0 in rewards[False]
    assert rewards[True] == [float(np.sign(reward)) for reward in rewards[False]]


def test_sticky_actions_repeat_by_the_id_s_probability_and_the_episode_s_seed() -> None:
    assert pipeline("ALE/Breakout-v5")._sticky == 0.25
    assert pipeline("ALE/Breakout-v5", sticky_actions=0.0)._sticky == 0.0
    env = pipeline("ALE/Breakout-v5", episodic_life=False)
    played = []
    for seed in (1, 1, 2):
        env.reset(seed=seed)
        played.append(play(env, 100))
    assert played[0] == played[1] != played[2]
    repeated = 0
    env.reset(seed=9)
    for _ in range(500):
        before = env._held
        env._act(env._actions[2] if before is env._actions[3] else env._actions[3])
        repeated += env._held is before
    assert 90 < repeated < 165  # of 500 at 0.25: mean 125, four deviations are 39


def test_a_time_limit_truncates() -> None:
    config = TrainConfig(
        algo="ppo",
        env_id=BREAKOUT,
        env_kwargs={"max_episode_steps": 5},
        env=EnvConfig(atari=AtariConfig(enabled=True)),
    )
    env = make_env(config, 0)
    env.reset()
    assert [env.step(0)[3] for _ in range(5)] == [False] * 4 + [True]


def test_colour_frames_are_stacked_channel_by_channel() -> None:
    env = pipeline(grayscale=False, frame_stack=2, screen_size=64)
    observation, _ = env.reset(seed=0)
    assert observation.shape == (6, 64, 64)
    assert (observation[:3] == observation[3:]).all()
    assert (observation[0] != observation[1]).any()


@pytest.mark.parametrize("env_id", [BREAKOUT, "ALE/Breakout-v5"])
@pytest.mark.parametrize("at_a_lost_life", [False, True])
def test_a_snapshot_goes_on_bit_for_bit(env_id: str, at_a_lost_life: bool) -> None:
    first = pipeline(env_id)
    first.reset(seed=7)
    if at_a_lost_life:
        until_a_life_is_lost(first)
    else:
        play(first, 90)
    state = first.snapshot()
    expected = ([first.reset()[0].tobytes()] if at_a_lost_life else []) + play(first, 120, seed=2)
    for used in (False, True):
        second = pipeline(env_id)
        if used:
            second.reset(seed=1)
            play(second, 50)
        second.restore(state)
        got = ([second.reset()[0].tobytes()] if at_a_lost_life else []) + play(second, 120, seed=2)
        assert got == expected


def test_a_snapshot_of_another_game_is_refused() -> None:
    state = pipeline("PongNoFrameskip-v4").snapshot()
    state["memory"] = state["memory"] ^ 1
    with pytest.raises(ResumeError, match="does not arrive at its saved memory"):
        pipeline("PongNoFrameskip-v4").restore(state)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_batched_environments_resume_from_snapshots(vectorization: Any) -> None:
    config = TrainConfig(
        algo="ppo",
        env_id=BREAKOUT,
        num_envs=2,
        env=EnvConfig(vectorization=vectorization, atari=AtariConfig(enabled=True)),
    )
    first, second = make_batched_env(config), make_batched_env(config)
    try:
        root = first.reset()
        root = _advance(first, root, 120)[1]
        state = first.state_dict()
        assert not any(len(actions) for actions in state["actions"]), "nothing is to be replayed"
        expected, _ = _advance(first, root, 60)
        second.load_state_dict(state)
        got, _ = _advance(second, second.reset(), 60)
        assert got == expected
    finally:
        first.close()
        second.close()


def _advance(env: Any, root: Any, steps: int) -> tuple[list[Any], Any]:
    import torch

    seen = []
    for step in range(steps):
        root.set("action", torch.tensor([step % 4, (step // 2) % 4]))
        taken, root = env.step_and_maybe_reset(root)
        following = taken["next"]
        seen.append((following["observation"].numpy().tobytes(), following["done"].tolist()))
    return seen, root


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_reported_returns_are_those_of_whole_games(vectorization: Any) -> None:
    import torch

    config = TrainConfig(
        algo="ppo",
        env_id=BREAKOUT,
        num_envs=1,
        env=EnvConfig(vectorization=vectorization, atari=AtariConfig(enabled=True)),
    )
    env, draws, total, lives, steps = make_batched_env(config), np.random.default_rng(3), 0.0, 0, 0
    root = env.reset()
    try:
        while True:
            root.set("action", torch.tensor([int(draws.integers(4))]))
            taken, root = env.step_and_maybe_reset(root)
            following = taken["next"]
            steps += 1
            total += following["reward"].item()  # Breakout's first rows give 1 a brick
            assert following["episode_return"].item() == total
            assert following["episode_length"].item() == steps
            lives += following["done"].item()
            if following["game_over"].item():
                break
        assert lives == 5
    finally:
        env.close()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UserError, match="CartPole-v1 is none"):
        pipeline("CartPole-v1")
    with pytest.raises(UserError, match=r"env\.atari\.frame_skip"):
        make_atari(BREAKOUT, {"frameskip": 2}, AtariConfig(), training=True)
    with pytest.raises(UserError, match="leave out"):
        make_atari("ALE/Breakout-v5", {"continuous": True}, AtariConfig(), training=True)
    for name, value in (("mode", 99), ("difficulty", 99), ("max_num_frames_per_episode", "x")):
        with pytest.raises(UserError, match=rf"does not take one of .* \['{name}'\]: ") as told:
            make_atari(BREAKOUT, {name: value}, AtariConfig(), training=True)
        assert "\n" not in str(told.value)


def test_a_missing_package_is_named_by_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("cv2", "ale_py"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(UserError, match=r'pip install "rl_training\[atari\]"'):
                pipeline()
