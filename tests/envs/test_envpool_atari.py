"""Atari in EnvPool next to the library's pipeline: equal where it should be, and each known
difference.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

from rl_training import DQN, PPO
from rl_training.cli import main
from rl_training.config import TrainConfig, replace_config
from rl_training.envs import make_batched_env, make_vector_env
from rl_training.envs.atari import make_atari
from rl_training.envs.envpool_atari import EnvpoolAtari
from rl_training.envs.gymnasium_ids import spec_of
from rl_training.envs.native_atari import NativeAtari
from rl_training.envs.replay import ResumeError
from rl_training.errors import UserError
from tests.processes import Process, run_source

BREAKOUT, PONG = "BreakoutNoFrameskip-v4", "PongNoFrameskip-v4"


@pytest.fixture
def envpool() -> Any:
    return pytest.importorskip("envpool")


def configuration(vectorization: str = "envpool", **changes: Any) -> TrainConfig:
    """Without sticky actions, and with the one number of frames without action that draws none."""
    settings = {"enabled": True, "noop_max": 1, **changes.pop("atari", {})}
    base = TrainConfig(algo="ppo", env_id=changes.pop("env_id", BREAKOUT), num_envs=3, seed=5)
    changes = {"vectorization": vectorization, "env.atari": settings, **changes}
    return replace_config(base, **changes)


def both(env_id: str, kwargs: dict[str, Any] | None = None, **changes: Any) -> tuple[Any, Any]:
    settings = configuration(atari=changes).env.atari
    ours = make_atari(env_id, kwargs or {}, settings, training=True)
    return ours, EnvpoolAtari(env_id, kwargs or {}, settings, 1, num_threads=1)


def require_equal_play(ours: Any, theirs: EnvpoolAtari, steps: int) -> dict[str, int]:
    """Play the same actions in both, through lives and games, and count what happened."""
    seen = dict.fromkeys(("lives", "games", "truncated", "repeated"), 0)
    before, begun = ours.reset(seed=1)[0], theirs.reset([0], [1])[0]
    assert (before == begun).all()
    for action in np.random.default_rng(0).integers(ours.action_space.n, size=steps):
        observation, reward, terminated, truncated, told = ours.step(action)
        other = theirs.step(np.array([action]))
        assert other.games is not None
        assert (reward, [terminated], [truncated]) == (
            other.reward[0],
            other.terminated,
            other.truncated,
        )
        games = [each[0] for each in other.games]
        assert games == [told["score"], told["game_length"], told["game_over"]]
        same = (observation == other.observation[0]).all()
        if not same:
            assert terminated and told["game_over"], "known: only in the last step of a game"
            channels = len(observation) // ours.settings.frame_stack
            assert (other.observation[0][-channels:] == before[-channels:]).all()
            assert (other.observation[0][:-channels] == observation[:-channels]).all()
        before = observation
        if terminated or truncated:
            seen["lives"] += not told["game_over"]
            seen["games"] += told["game_over"]
            seen["truncated"] += truncated
            seen["repeated"] += not same
            before, begun = ours.reset()[0], theirs.reset([0], [7])[0]
            assert (before == begun).all()
    theirs.close()
    return seen


@pytest.mark.parametrize(
    ("env_id", "steps"),
    [
        (BREAKOUT, 700),
        (PONG, 1000),
        ("MsPacmanNoFrameskip-v4", 800),
        ("SeaquestNoFrameskip-v4", 700),
    ],
)
def test_the_same_actions_give_the_same_frames_rewards_and_ends(
    envpool: Any, env_id: str, steps: int
) -> None:
    """FIRE after each life, stacks and all, over several games."""
    seen = require_equal_play(*both(env_id), steps)
    assert seen["games"] > 0 and (seen["lives"] > 0 or env_id == PONG)
    if env_id == BREAKOUT:
        assert seen["lives"] > 8 and seen["repeated"] > 0


@pytest.mark.parametrize(
    ("kwargs", "changes"),
    [
        ({}, {"grayscale": False, "frame_stack": 2, "screen_size": 64}),
        ({}, {"frame_skip": 2, "frame_stack": 1, "fire_reset": False}),
        ({"full_action_space": True}, {"episodic_life": False, "clip_reward": False}),
        ({"mode": 4, "difficulty": 1}, {"frame_skip": 5}),
        ({"max_episode_steps": 30}, {}),
    ],
)
def test_settings_and_arguments_mean_the_same(
    envpool: Any, kwargs: dict[str, Any], changes: dict[str, Any]
) -> None:
    ours, theirs = both("ALE/Breakout-v5", kwargs, sticky_actions=0.0, **changes)
    assert theirs.single_observation_space == ours.observation_space
    assert theirs.single_action_space == ours.action_space
    seen = require_equal_play(ours, theirs, 300)
    if "max_episode_steps" in kwargs:
        assert seen["truncated"] > 5
    else:
        assert seen["lives"] + seen["games"] > 0


def test_known_the_limit_of_frames_counts_whole_steps(envpool: Any) -> None:
    """One frame without action and eight of FIRE, then 4 a step: 9 + 4 * 48 = 201."""
    ours, theirs = both(BREAKOUT, {"max_num_frames_per_episode": 201})
    ours.reset(seed=1)
    theirs.reset([0], [1])
    ends = []
    for step in range(1, 50):
        _, _, terminated, truncated, _ = ours.step(0)
        other = theirs.step(np.array([0]))
        ends += [("ours", step, terminated)] if truncated else []
        ends += [("theirs", step, other.terminated[0])] if other.truncated[0] else []
        if ends and ends[-1][0] == "ours":
            ours.reset()
    assert ends == [("ours", 48, False), ("theirs", 49, False)]
    assert other.games is not None and other.games.over[0]
    assert theirs.reset([0], [1]) is not None and theirs.step(np.array([0])).games[1] == 1


def test_ale_py_s_own_environment_plays_the_same(envpool: Any) -> None:
    """Without FIRE, which it presses in another way, and after the same one frame."""
    settings = configuration(atari={"fire_reset": False, "episodic_life": False}).env.atari
    theirs = EnvpoolAtari(BREAKOUT, {}, settings, 1, num_threads=1)
    drawn = configuration(
        atari={"fire_reset": False, "episodic_life": False, "noop_max": 2}
    ).env.atari
    for seed in range(20):  # of 0 or 1 frames
        native = NativeAtari(BREAKOUT, {}, drawn, 1)
        _, told = native._vector.reset(seed=np.array([seed]))
        if told["episode_frame_number"][0] == 1:
            break
        native.close()
    theirs.reset([0], [1])
    for step, action in enumerate(np.random.default_rng(0).integers(4, size=400)):
        one, other = (rows.step(np.array([action])) for rows in (theirs, native))
        assert (one.reward, one.terminated, one.truncated) == (
            other.reward,
            other.terminated,
            other.truncated,
        )
        if one.terminated[0]:
            break  # known: of a game's last step both merge other frames
        same = slice(max(0, 2 - step), None)  # known: native's first stack is of zeros
        assert (one.observation[0][same] == other.observation[0][same]).all()
    assert step > 50
    native.close()


def rollout(config: TrainConfig, steps: int) -> list[Any]:
    env = make_batched_env(config)
    root, taken = env.reset(), []
    actions = torch.Generator().manual_seed(0)
    for _ in range(steps):
        root.set("action", torch.randint(4, (3,), generator=actions))
        step, root = env.step_and_maybe_reset(root)
        taken.append((step, root.copy()))
    env.close()
    return taken


def test_the_batch_is_that_of_sync(envpool: Any) -> None:
    """Every key of every step, but a game's very last frame: no ghost step is in it."""
    changes: dict[str, Any] = {"env_kwargs": {"max_episode_steps": 90}, "normalize_reward": True}
    ends = dict.fromkeys(("terminated", "truncated", "game_over"), 0)
    pairs = zip(
        rollout(configuration("envpool", **changes), 200),
        rollout(configuration("sync", **changes), 200),
        strict=True,
    )
    for (one, root), (other, other_root) in pairs:
        last = (one["next", "terminated"] & one["next", "game_over"])[:, 0]
        one["next", "observation"][last] = other["next", "observation"][last]
        assert (one == other).all() and (root == other_root).all()
        assert (root["is_init"] == one["next", "done"]).all()
        for key in ends:
            ends[key] += int(one["next", key].sum())
    assert min(ends.values()) > 3


def test_every_row_has_a_stream_of_its_own(envpool: Any) -> None:
    """Frames without action: 1 to ``noop_max``, as the pipeline draws them."""
    settings = configuration(atari={"noop_max": 3}).env.atari
    rows = EnvpoolAtari("SpaceInvadersNoFrameskip-v4", {}, settings, 10)
    rows.reset(list(range(10)), [11, *range(9)])
    _, told = rows._pool.reset(np.arange(10, dtype=np.int32))
    ours = make_atari("SpaceInvadersNoFrameskip-v4", {}, settings, training=True)
    ours._ale.reset_game()
    possible = set()
    for _ in range(3):
        ours._ale.act(0)
        possible.add(ours._ale.getRAM().tobytes())
    assert {each.tobytes() for each in told["ram"]} == possible and len(possible) == 3
    rows.close()


def streams(seed: int) -> list[str]:
    """Return the digest of what each of three rows shows, sticky actions and all."""
    config = configuration(env_id="ALE/Breakout-v5", atari={"noop_max": 30})
    env = make_batched_env(replace_config(config, seed=seed))
    root = env.reset()
    digests = [hashlib.sha256() for _ in range(3)]
    for step in range(50):
        root["action"] = torch.full((3,), step % 4)
        taken, root = env.step_and_maybe_reset(root)
        for digest, observation in zip(digests, taken["next", "observation"], strict=True):
            digest.update(observation.numpy().tobytes())
    env.close()
    return [digest.hexdigest() for digest in digests]


def test_equal_seeds_play_equally_in_two_processes(envpool: Any) -> None:
    code = f"from {__name__} import streams; print(*streams(3))"
    first = streams(3)
    with Process(run_source, code) as process:
        assert process.communicate()[0].split() == first
    assert len({*first, *streams(4)}) == 6, "rows and seeds differ"


SMALL: dict[str, Any] = {
    "num_envs": 2,
    "feature_size": 8,
    "vectorization": "envpool",
    "atari": {"enabled": True, "screen_size": 36},
}


def ppo(**changes: Any) -> PPO:
    sizes = {"num_steps": 16, "minibatch_size": 16, "num_epochs": 1, "shared_trunk": True}
    return PPO(BREAKOUT, **{**SMALL, **sizes, **changes})


def test_training_runs_and_resumes_only_approximately(envpool: Any, tmp_path: Path) -> None:
    agent = ppo().learn(160)
    assert isinstance(agent.environment.vector, EnvpoolAtari)
    agent.save(tmp_path / "saved")
    with pytest.raises(ResumeError, match=r"--resume approximate"):
        PPO.load(tmp_path / "saved").learn(32)
    other = ppo()
    other.load_state_dict(agent.state_dict(), approximate=True)
    assert other.learn(32).global_step == 192


def test_evaluation_plays_whole_games_for_raw_rewards(envpool: Any) -> None:
    """On the library's own pipeline, so that its games are those of every other backend."""
    agent = PPO("MsPacmanNoFrameskip-v4", **SMALL, num_steps=16, minibatch_size=16, num_epochs=1)
    record = agent.evaluate(episodes=1)
    assert record["episodes"] == 1 and record["return_mean"] > 100 and record["length_mean"] > 200


def test_replay_stores_single_frames(envpool: Any) -> None:
    agent = DQN(
        BREAKOUT,
        **SMALL,
        warm_up=64,
        train_every=16,
        minibatch_size=16,
        replay_capacity=400,
    ).learn(320)
    assert agent.replay.storage["observation"].shape[2:] == (1, 36, 36)


@pytest.mark.parametrize(
    ("preset", "overlay"),
    [("atari/ppo_breakout", "tiny"), ("atari/dqn_breakout", "tiny_replay")],
)
def test_the_command_line_trains_evaluates_and_resumes_approximately(
    envpool: Any, preset: str, overlay: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--config", preset, "--config", overlay, "--env.vectorization", "envpool"]
    words += ["--model.feature-size", "8", "--env.atari.screen-size", "36"]
    # A whole game is played in `test_evaluation_plays_whole_games_for_raw_rewards`.
    words += ["--evaluation.episodes", "1", "--evaluation.max-episode-steps", "40"]
    assert main(["train", *words, "--output-dir", str(tmp_path)]) == 0
    [run] = [each for each in tmp_path.iterdir() if each.is_dir()]
    assert main(["eval", str(run), "--episodes", "1", "--json"]) == 0
    more = ["resume", str(run), "--total-timesteps", "320"]
    assert main(more) != 0
    assert "--resume approximate" in capsys.readouterr().err
    assert main([*more, "--resume", "approximate"]) == 0


def test_every_game_of_ale_py_is_one_of_envpool(envpool: Any) -> None:
    spec_of(PONG)
    games = {
        each.kwargs["game"] for name, each in gymnasium.registry.items() if name.startswith("ALE/")
    }
    tasks = {"".join(word.capitalize() for word in game.split("_")) + "-v5" for game in games}
    assert len(tasks) > 100 and tasks <= set(envpool.list_all_envs())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"atari": {"noop_max": 0}}, r"noop_max is 0, .* set it to 1 or more, or use env\.vector"),
        ({"atari": {"frame_skip": 1}}, r"frame_skip is 1, .* set it to 2 or more, or use"),
        ({"env_kwargs": {"obs_type": "ram"}}, r"does not take env_kwargs \['obs_type'\]: leave"),
        ({"env_kwargs": {"frameskip": 2}}, r"with env\.atari, frameskip is env\.atari\.frame_skip"),
        ({"env_kwargs": {"mode": 99}}, r"env_kwargs \['mode'\]: Invalid game mode requested"),
        ({"env_id": "ALE/Pooyan-v5"}, r"its screen has 220 lines, of which .* upper 210: use env"),
        ({"env_id": "CartPole-v1"}, r"env\.atari is for Atari games, and CartPole-v1 is none"),
        ({"env_id": "PongNoFrameskip-v3"}, r"unknown environment 'PongNoFrameskip-v3'"),
    ],
)
def test_what_envpool_cannot_do_is_refused(
    envpool: Any, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        make_vector_env(configuration(**changes))
    assert "\n" not in str(caught.value)


def test_it_is_refused_without_the_pipeline() -> None:
    for env_id in (BREAKOUT, "procgen/StarpilotEasy-v0", "CartPole-v1"):
        with pytest.raises(UserError, match=r"needs env\.atari\.enabled; EnvPool's Procgen is"):
            replace_config(TrainConfig(algo="ppo", env_id=env_id), vectorization="envpool")


def test_keys_of_info_and_wrappers_are_refused(envpool: Any) -> None:
    with pytest.raises(UserError, match="vectorization envpool"):
        make_batched_env(configuration(info_keys=["lives"]))
    with pytest.raises(UserError, match=r"env\.wrappers must be empty"):
        configuration(wrappers=["gymnasium.wrappers:ClipReward"])


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(UserError, match=r'envpool needs .*pip install "rl_training\[envpool\]"'):
        make_vector_env(configuration())
