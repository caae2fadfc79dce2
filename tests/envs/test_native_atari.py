"""The pipeline next to ale-py's native one: equal where it should be, and each known difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

from rl_training import PPO
from rl_training.config import TrainConfig, replace_config
from rl_training.envs import make_batched_env
from rl_training.envs.atari import make_atari
from rl_training.envs.native_atari import NativeAtari
from rl_training.envs.replay import ResumeError
from rl_training.errors import UserError

BREAKOUT = "BreakoutNoFrameskip-v4"
PLAIN = {"enabled": True, "noop_max": 0, "fire_reset": False}


def settings(**changes: Any) -> Any:
    base = TrainConfig(algo="ppo", env_id=BREAKOUT)
    return replace_config(base, **{"env.atari": {**PLAIN, **changes}}).env.atari


def native(env_id: str = BREAKOUT, **changes: Any) -> NativeAtari:
    return NativeAtari(env_id, {}, settings(**{"noop_max": 1, **changes}), 1)


@pytest.mark.parametrize("env_id", [BREAKOUT, "PongNoFrameskip-v4", "MsPacmanNoFrameskip-v4"])
def test_the_same_actions_give_the_same_frames_and_rewards(env_id: str) -> None:
    """Without FIRE and frames of no action both begin alike, and play a whole game so."""
    ours: Any = make_atari(env_id, {}, settings(episodic_life=False), training=True)
    theirs = native(env_id, episodic_life=False)
    first, other_first = ours.reset(seed=1)[0], theirs.reset([0], [1])[0]
    assert (first[-1] == other_first[-1]).all()
    assert (first == first[-1]).all() and not other_first[:-1].any(), "known: a stack of zeros"
    for step, action in enumerate(np.random.default_rng(0).integers(ours.action_space.n, size=700)):
        observation, reward, terminated, truncated, _ = ours.step(action)
        other = theirs.step(np.array([action]))
        outcome = (other.reward[0], other.terminated[0], other.truncated[0])
        assert outcome == (reward, terminated, truncated), step
        assert other.games is not None and other.games.score[0] == ours.score
        if terminated:
            break  # known: a game that ends within a step leaves an older frame in the merged one
        same = slice(max(0, 2 - step), None)  # the first three stacks hold frames before the first
        assert (observation[same] == other.observation[0][same]).all(), step
    theirs.close()


def play_to_the_end_of_a_life(env: Any) -> tuple[Any, Any]:
    for _ in range(200):
        result = env.step(1)
        if result[2]:
            return result, env.reset()[0]
    raise AssertionError


def test_known_after_a_life_the_native_game_goes_on_without_a_new_stack() -> None:
    ours = make_atari(BREAKOUT, {}, settings(), training=True)
    theirs = native()
    ours.reset(seed=1)
    theirs.reset([0], [1])
    last, begins = play_to_the_end_of_a_life(ours)
    for _ in range(200):
        other = theirs.step(np.array([1]))
        if other.terminated[0]:
            break
    assert other.games is not None and not other.games.over[0]
    assert (last[0] == other.observation[0]).all()
    assert (theirs.reset([0], [2])[0] == last[0]).all(), "no step, no reset"
    assert (begins == begins[0]).all() and (begins[-1] != last[0][-1]).any()
    theirs.close()


def test_known_a_native_game_presses_fire_for_one_frame() -> None:
    theirs = native(fire_reset=True, noop_max=2)
    frames = []
    for _ in range(2):
        theirs.reset([0], [5])
        frames.append(theirs._vector.step(np.array([0]))[4]["episode_frame_number"][0] - 4)
    assert set(frames) == {1}  # 0 or 1 without action, less one, and FIRE
    ours = make_atari(BREAKOUT, {}, settings(fire_reset=True, noop_max=2), training=True)
    ours.reset(seed=5)
    assert ours._ale.getEpisodeFrameNumber() in (1 + 8, 2 + 8)
    theirs.close()


def algorithm(**changes: Any) -> PPO:
    return PPO(
        BREAKOUT,
        num_envs=2,
        num_steps=16,
        minibatch_size=16,
        num_epochs=1,
        feature_size=8,
        shared_trunk=True,
        vectorization="native",
        atari={"enabled": True},
        **changes,
    )


def test_training_runs_and_resumes_only_approximately(tmp_path: Path) -> None:
    agent = algorithm().learn(160)
    assert isinstance(agent.environment.vector, NativeAtari)
    agent.save(tmp_path / "saved")
    with pytest.raises(ResumeError, match=r"--resume approximate"):
        PPO.load(tmp_path / "saved").learn(32)
    other = algorithm()
    other.load_state_dict(agent.state_dict(), approximate=True)
    assert other.learn(32).global_step == 192
    assert other.evaluate(episodes=1)["episodes"] == 1


def test_the_batch_is_the_same_contract() -> None:
    config = replace_config(
        TrainConfig(algo="ppo", env_id=BREAKOUT, num_envs=3),
        vectorization="native",
        **{"env.atari": {"enabled": True}},
    )
    env = make_batched_env(config)
    root = env.reset()
    done = 0
    for step in range(150):
        root.set("action", torch.tensor([step % 4, 1, 0]))
        taken, root = env.step_and_maybe_reset(root)
        following = taken["next"]
        assert following["observation"].shape == (3, 4, 84, 84)
        assert (root["is_init"] == following["done"]).all()
        done += int(following["done"].sum())
    assert done > 3
    env.close()


def test_what_native_does_not_take_is_refused() -> None:
    with pytest.raises(UserError, match=r"needs env\.atari\.enabled"):
        replace_config(TrainConfig(algo="ppo", env_id=BREAKOUT), vectorization="native")
    with pytest.raises(UserError, match=r"does not take env_kwargs \['mode'\]"):
        NativeAtari(BREAKOUT, {"mode": 1}, settings(), 1)
