"""Procgen next to raw EnvPool: the same observations, rewards and flags, and nothing in between."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from rl_training import PPG, PPO
from rl_training.config import TrainConfig, replace_config
from rl_training.envs import make_batched_env, make_env, make_vector_env
from rl_training.envs.fresh import fresh_source
from rl_training.envs.native_procgen import NativeProcgen
from rl_training.envs.procgen import Levels, register_games, result_of
from rl_training.errors import UserError
from rl_training.evaluation import evaluate
from rl_training.runtime.state import digest

STARPILOT = "procgen/StarpilotEasy-v0"


@pytest.fixture
def envpool() -> Any:
    module = pytest.importorskip("envpool")
    pytest.importorskip("envpool.procgen", exc_type=ImportError)
    try:
        _ = sys.modules["envpool.procgen"].ProcgenGymnasiumEnvPool
    except ImportError:
        pytest.skip("Qt 5 is missing")
    return module


def game(env_id: str, seed: int = 0, **kwargs: Any) -> Any:
    return make_env(TrainConfig(algo="ppo", env_id=env_id, env_kwargs=kwargs), seed).unwrapped


def on_level(env_id: str, level: int) -> Any:
    return game(env_id, num_levels=1, start_level=int(level))


@pytest.mark.parametrize("task", ["StarpilotEasy-v0", "BigfishHard-v0", "LeaperEasy-v0"])
def test_an_episode_is_what_raw_envpool_plays(envpool: Any, task: str) -> None:
    """Three episodes. EnvPool begins the next at the step after an end, whose action it drops."""
    theirs = envpool.make_gymnasium(task, num_envs=1, num_threads=1, seed=11)
    actions = np.random.default_rng(0).integers(15, size=3000)
    first, told = theirs.reset()
    ended, before = 0, first[0]
    ours = on_level(f"procgen/{task}", told["level_seed"][0])
    assert (ours.reset()[0] == first[0]).all()
    for action in actions:
        observation, reward, terminated, truncated, _ = ours.step(action)
        other = theirs.step(np.array([action]))
        assert (observation == other[0][0]).all(), "the last observation of an episode included"
        assert (reward, terminated, truncated) == (other[1][0], other[2][0], other[3][0])
        if terminated:
            ended += 1
            if ended == 3:
                return
            begun = theirs.step(np.array([action]))
            assert begun[1][0] == 0 and not begun[2][0]
            to_before, to_next = (
                np.abs(observation.astype(int) - frame).mean() for frame in (before, begun[0][0])
            )
            assert to_before < to_next, "the last observation is of the level that ended"
            ours = on_level(f"procgen/{task}", begun[4]["level_seed"][0])
            observation, _ = ours.reset()
            assert (observation == begun[0][0]).all()
        before = observation
    raise AssertionError("too few episodes")


def test_the_game_s_own_limit_is_a_truncation_with_the_true_last_observation(envpool: Any) -> None:
    maze = on_level("procgen/MazeEasy-v0", 5)
    first, _ = maze.reset()
    for step in range(1, 501):
        observation, reward, terminated, truncated, _ = maze.step(4)
        assert (reward, terminated, truncated) == (0.0, False, step == 500)
    assert (observation == first).all(), "nothing has moved"


def answer(*, terminated: bool, truncated: bool, complete: int) -> Any:
    told = {"level_seed": np.array([3]), "prev_level_complete": np.array([complete])}
    flags = np.array([terminated]), np.array([truncated])
    return np.zeros((1, 3, 64, 64), np.uint8), np.array([1.5], np.float32), *flags, told


def test_a_level_completed_in_the_last_step_is_a_termination() -> None:
    def flags(**answered: Any) -> tuple[bool, bool]:
        return result_of(answer(**answered))[2:4]

    assert flags(terminated=False, truncated=True, complete=1) == (True, False)
    assert flags(terminated=False, truncated=True, complete=0) == (False, True)
    assert flags(terminated=True, truncated=False, complete=0) == (True, False)
    assert flags(terminated=False, truncated=False, complete=0) == (False, False)


def configuration(vectorization: str = "native", **changes: Any) -> TrainConfig:
    base = TrainConfig(algo="ppo", env_id=STARPILOT, num_envs=3, seed=5)
    return replace_config(base, vectorization=vectorization, **changes)


def rollout(config: TrainConfig, steps: int) -> list[Any]:
    env = make_batched_env(config)
    root, taken = env.reset(), []
    actions = torch.Generator().manual_seed(0)
    for _ in range(steps):
        root.set("action", torch.randint(15, (3,), generator=actions))
        step, root = env.step_and_maybe_reset(root)
        taken.append((step, root))
    env.close()
    return taken


def test_native_plays_the_very_episodes_of_sync(envpool: Any) -> None:
    told = ["level_seed", "level_complete"]
    limit: Any = {"env_kwargs": {"max_episode_steps": 60}, "info_keys": told}
    pairs = zip(
        rollout(configuration("native", **limit), 130),
        rollout(configuration("sync", **limit), 130),
        strict=True,
    )
    ends = {"terminated": 0, "truncated": 0}
    for (one, root), (other, other_root) in pairs:
        assert (one == other).all() and (root == other_root).all()
        ended = one["next", "done"][:, 0]
        for key in ends:
            ends[key] += int(one["next", key].sum())
        changed = (one["next", "observation"] != root["observation"]).flatten(1).any(1)
        assert (changed == ended).all(), "a new episode's first observation is in the root alone"
        assert (one["next", "episode_length"][:, 0] <= 60).all()
        assert (root["is_init"][:, 0] == ended).all()
    assert min(ends.values()) > 0
    assert one["next", "info", "level_seed"].shape == (3, 1)
    assert one["next", "info", "level_seed"].unique().numel() == 3


def test_an_episode_is_a_function_of_its_seed(envpool: Any) -> None:
    """Raw EnvPool goes on with what was left of the episode before, in this game."""

    def episode(env: Any, seed: int) -> list[Any]:
        frames = [env.reset(seed=seed)[0]]
        for action in np.random.default_rng(seed).integers(15, size=300):
            observation, _, terminated, _, _ = env.step(action)
            frames.append(observation)
            if terminated:
                break
        return frames

    fresh, used = game("procgen/DodgeballEasy-v0"), game("procgen/DodgeballEasy-v0")
    for seed in range(4):
        episode(used, seed)
    played = 0
    for seed in (9, 8, 7):
        pairs = list(zip(episode(fresh, seed), episode(used, seed), strict=True))
        assert all((one == other).all() for one, other in pairs)
        played += len(pairs)
    assert played > 100


def test_episodes_do_not_pile_up_threads(envpool: Any) -> None:
    psutil = pytest.importorskip("psutil")
    rows = NativeProcgen(STARPILOT, {}, 2)
    rows.reset([0, 1], [1, 2])
    before = psutil.Process().num_threads()
    for seed in range(20):
        rows.reset([0, 1], [seed, seed + 1])
    assert psutil.Process().num_threads() <= before
    rows.close()
    assert psutil.Process().num_threads() < before


SMALL: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 16,
    "minibatch_size": 16,
    "feature_size": 16,
    "env_kwargs": {"max_episode_steps": 50},
}


@pytest.mark.parametrize("vectorization", ["native", "sync"])
def test_a_saved_run_goes_on_bit_for_bit(envpool: Any, vectorization: str, tmp_path: Path) -> None:
    """Row 0 in its second episode, in the middle of a phase."""

    def agent() -> PPG:
        return PPG(
            STARPILOT,
            vectorization=vectorization,
            policy_iterations=3,
            auxiliary_minibatches=4,
            normalize_reward=True,
            **SMALL,
        )

    straight = agent().learn(160).learn(96)
    stopped = agent().learn(160)
    assert stopped.environment.state_dict()["episodes"].max() > 0
    stopped.save(tmp_path / "saved")
    resumed = PPG.load(tmp_path / "saved").learn(96)
    assert digest(resumed.state_dict()) == digest(straight.state_dict())


def test_evaluation_may_have_levels_of_its_own(envpool: Any, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        **SMALL,
        "env_kwargs": {"num_levels": 2, "start_level": 7},
        "evaluation.env_kwargs": {"num_levels": 0},
    }
    agent = PPO(STARPILOT, num_epochs=1, **changes)
    assert [each.unwrapped._levels._bounds for each in agent.environment.vector.envs] == [
        (7, 9)
    ] * 2
    environment = agent.evaluation_environment(num_envs=2, seed=1)
    for each in environment.vector.envs:
        assert each.unwrapped._levels._bounds == (0, 2**31 - 1)
    from rl_training.envs.video import VideoRequest

    pytest.importorskip("imageio_ffmpeg")
    record = evaluate(agent, episodes=2, video=VideoRequest(tmp_path, 1), deterministic=False)
    assert record["episodes"] == 2
    [video] = tmp_path.glob("*.mp4")
    assert video.stat().st_size > 1000
    observation, _ = agent.environment.vector.envs[0].reset(seed=1)
    assert agent.predict(observation)[0].shape == ()


def test_levels_of_evaluation_are_refused_for_an_environment_given_in_python() -> None:
    config = replace_config(
        TrainConfig(algo="ppo", env_id="CartPole-v1"), **{"evaluation.env_kwargs": {"a": 1}}
    )
    with pytest.raises(UserError, match="only for an environment that is given by its id"):
        fresh_source(config, lambda: gymnasium.make("CartPole-v1"))


def test_a_picture_is_the_observation_enlarged(envpool: Any) -> None:
    env = make_env(TrainConfig(algo="ppo", env_id=STARPILOT), 0, render_mode="rgb_array")
    observation, told = env.reset(seed=3)
    picture: Any = env.render()
    assert picture.shape == (512, 512, 3) and picture.dtype == np.uint8
    assert (picture[::8, ::8] == observation.transpose(1, 2, 0)).all()
    assert env.reset(seed=3)[1] == told and "level_seed" in told


def test_levels_are_drawn_from_those_asked_for(envpool: Any) -> None:
    env = game(STARPILOT, num_levels=3, start_level=40)
    drawn = {env.reset(seed=seed)[1]["level_seed"] for seed in range(20)}
    assert drawn == {40, 41, 42}


def test_every_game_of_envpool_is_registered(envpool: Any) -> None:
    register_games()
    from envpool.procgen import registration

    theirs = {
        f"procgen/{name.capitalize()}{registration.distribution[mode]}-v0"
        for name, _, modes in registration.procgen_game_config
        for mode in modes
    }
    assert theirs == {name for name in gymnasium.registry if name.startswith("procgen/")}


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_level": 3}, "Procgen has no 'num_level'. Did you mean 'num_levels'"),
        ({"num_levels": -1}, "num_levels must be a whole number from 0, not -1"),
        ({"num_levels": True}, "num_levels must be a whole number from 0, not True"),
        ({"num_levels": 2, "start_level": 2**31 - 2}, "must be at most 2,147,483,647"),
        ({"use_backgrounds": 1}, "use_backgrounds must be true or false, not 1"),
        ({"max_episode_steps": 0}, "max_episode_steps must be a whole number"),
        ({"distribution_mode": "easy"}, "Procgen has no 'distribution_mode'"),
        ({"task": "BigfishEasy-v0"}, "Procgen has no 'task'"),
    ],
)
@pytest.mark.parametrize("vectorization", ["sync", "native"])
def test_impossible_arguments_are_refused(
    kwargs: dict[str, Any], message: str, vectorization: str
) -> None:
    with pytest.raises(UserError, match=message):
        make_vector_env(configuration(vectorization, env_kwargs=kwargs))


def test_an_unknown_game_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match="Did you mean 'procgen/StarpilotEasy-v0'"):
        game("procgen/StarpilotEas-v0")
    with pytest.raises(UserError, match=r"env\.atari is for Atari games"):
        make_vector_env(replace_config(configuration(), **{"env.atari": {"enabled": True}}))


def test_native_is_refused_for_other_environments() -> None:
    with pytest.raises(UserError, match="native is for Atari, where it needs"):
        replace_config(TrainConfig(algo="ppo", env_id="CartPole-v1"), vectorization="native")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(UserError) as caught:
        game(STARPILOT)
    assert 'pip install "rl_training[envpool]"' in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_qt_library_is_named_with_its_debian_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> Any:
        raise ImportError("EnvPool Procgen requires the system Qt 5 runtime on Linux.")

    procgen: Any = types.ModuleType("envpool.procgen")
    procgen.__getattr__ = missing
    monkeypatch.setitem(sys.modules, "envpool", types.ModuleType("envpool"))
    monkeypatch.setitem(sys.modules, "envpool.procgen", procgen)
    with pytest.raises(UserError) as caught:
        Levels("StarpilotEasy-v0")
    assert "apt install libqt5core5a libqt5gui5" in str(caught.value)
    assert "\n" not in str(caught.value)
