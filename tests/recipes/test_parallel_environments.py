"""PettingZoo's parallel environments: every agent is a row, and all share one policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training import PPO
from rl_training.config import config_from_dict
from rl_training.envs import episode_seed
from rl_training.errors import EnvironmentFailedError, UserError
from rl_training.registry import algorithm_class
from rl_training.runtime.state import digest
from rl_training.workflows import evaluate_checkpoint, resume_checkpoint, train
from tests.recipes.parallel_environments import AGENTS, Crowd
from tests.recipes.runs import make

ID = "tests.recipes.parallel_environments:parallel_env"
SHORT: dict[str, Any] = {"num_envs": 6, "hidden_sizes": [16]}
STEPS = 32 * 6


def build(name: str = "ppo", env: Any = Crowd, **options: Any) -> Any:
    options = {**SHORT, "minibatch_size": 32, **options}
    if name.startswith("recurrent"):
        options.setdefault("sequence_length", 16)
    return make(name, env, **options)


def test_every_agent_is_a_row_of_the_batch() -> None:
    algorithm = build(info_keys=["hit"])
    batch = next(iter(algorithm.collector()))
    assert batch.shape == (6, 32)
    right = batch["observation"].argmax(-1)
    hits = (batch["action"] == right).float()
    torch.testing.assert_close(batch["next", "info", "hit"].squeeze(-1), hits)
    for rows in (slice(0, 3), slice(3, 6)):
        own = hits[rows]
        expected = own + 0.1 * (own.sum(0) - own)
        torch.testing.assert_close(batch["next", "reward"][rows].squeeze(-1), expected)
        for key in ("terminated", "truncated"):
            flags = batch["next", key][rows]
            assert torch.equal(flags[0], flags[1]) and torch.equal(flags[0], flags[2])
    assert not torch.equal(batch["observation"][0], batch["observation"][1])
    assert not torch.equal(batch["next", "done"][0], batch["next", "done"][3])
    done = batch["next", "done"][:, :-1].squeeze(-1)
    # The successor of an end is the true one; elsewhere it is the next step's observation.
    same = (batch["next", "observation"][:, :-1] == batch["observation"][:, 1:]).all(-1)
    assert same[~done].all()
    algorithm.close()


@pytest.mark.parametrize("name", ["ppo", "ppg", "recurrent_ppo", "dqn"])
def test_training_resumes_exactly(name: str, tmp_path: Path) -> None:
    algorithm = build(name).learn(STEPS)
    algorithm.save(tmp_path / "saved")
    loaded = algorithm_class(name).load(tmp_path / "saved")
    loaded._source = Crowd  # what a run's id says, said by hand
    assert loaded.evaluate(episodes=4, seed=5) == algorithm.evaluate(episodes=4, seed=5)
    assert digest(loaded.learn(STEPS).state_dict()) == digest(algorithm.learn(STEPS).state_dict())
    action, _ = algorithm.predict(np.eye(4))
    assert action.shape == (4,)
    algorithm.close()
    loaded.close()


def test_agents_learn_from_what_all_of_them_see() -> None:
    algorithm = build(learning_rate=0.01, discount=0.5).learn(STEPS * 12)
    np.testing.assert_array_equal(algorithm.predict(np.eye(4))[0], np.arange(4))
    algorithm.close()


def test_a_run_by_its_id(tmp_path: Path) -> None:
    config = config_from_dict(
        {
            "algo": "ppo",
            "env_id": ID,
            "num_envs": 6,
            "total_timesteps": 4 * STEPS,
            "algorithm": {"num_steps": 32, "minibatch_size": 32},
            "model": {"hidden_sizes": [8]},
            "env": {"reset_options": {"length": 5}},
            "output_dir": str(tmp_path),
            "checkpoint": {"interval": STEPS, "keep_last": 10},
            "evaluation": {"episodes": 4, "num_envs": 2},
            "tracking": {"tensorboard": False},
        },
        source="test",
    )
    whole = train(config)
    assert whole.evaluation is not None
    # Two environments are asked for, and one has three agents: four episodes of these.
    assert whole.evaluation["episodes"] == 4
    assert set(whole.evaluation["lengths"]) == {5}
    earlier = sorted((whole.run_dir / "checkpoints").glob("step_*"))[1]
    assert resume_checkpoint(earlier).digest == whole.digest
    assert evaluate_checkpoint(whole.run_dir, episodes=3)["episodes"] == 3


def test_masks_are_those_of_the_agents() -> None:
    algorithm = build(env=lambda: Crowd(masked=True), action_masks="observation")
    algorithm.learn(STEPS).close()
    with pytest.raises(UserError, match=r"env\.action_masks: with PettingZoo's"):
        build(action_masks="info")


def test_an_environment_given_as_it_is_has_a_row_per_agent() -> None:
    algorithm = PPO(Crowd(), num_steps=32)
    assert algorithm.environment.num_envs == 3
    algorithm.learn(96)
    with pytest.raises(UserError, match="how to make another"):
        algorithm.evaluate(episodes=1)
    assert algorithm.evaluate(episodes=2, env=Crowd)["episodes"] == 2
    algorithm.close()


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        (Crowd, {"num_envs": 4}, "multiple of the 3 agents of this environment, not 4"),
        (Crowd, {"vectorization": "async"}, r"env\.vectorization: with PettingZoo's"),
        (lambda: Crowd(odd="blue"), {}, "crowd_v0: agents share one policy.*'blue'"),
        (
            lambda: Crowd(dies="green"),
            {},
            r"crowd_v0 in environment 0, step \d+ of .*: agent 'green' ended its episode before",
        ),
        (
            lambda: Crowd(absent="red"),
            {},
            r"crowd_v0 in environment 0, step 0 of .* began with .* not all of",
        ),
        ("tests.nowhere:parallel_env", {}, "no module 'tests.nowhere'"),
        ("tests.recipes.runs:parallel_env", {}, "has no parallel_env"),
        (ID, {"env_kwargs": {"agents": 3}}, "does not take one of the env_kwargs"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(env: Any, options: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(env=env, **options).learn(STEPS)


class Forgets(Crowd):
    """Leaves an agent out of one of a step's answers, whose episode goes on."""

    def __init__(self, answer: int) -> None:
        super().__init__()
        self.answer = answer

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        answers = super().step(actions)
        answers[self.answer].pop("green")
        return answers


@pytest.mark.parametrize(
    ("answer", "what"),
    list(enumerate(["observations", "rewards", "terminations", "truncations"])),
)
def test_an_agent_that_is_left_out_is_named(answer: int, what: str) -> None:
    with pytest.raises(
        UserError,
        match=f"crowd_v0 in environment 0, step .*: its {what} leave out the agent 'green'",
    ):
        build(env=lambda: Forgets(answer)).learn(STEPS)


def test_agents_in_another_order_are_the_same_agents() -> None:
    class Turned(Crowd):
        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            answer = super().reset(seed, options)
            self.agents.reverse()
            return answer

    digests = [digest(build(env=env).learn(STEPS).model.state_dict()) for env in (Crowd, Turned)]
    assert digests[0] == digests[1]


def test_no_agents_at_all_are_refused() -> None:
    class Empty(Crowd):
        def __init__(self) -> None:
            super().__init__()
            self.possible_agents = []

    with pytest.raises(UserError, match="crowd_v0 has no agents"):
        build(env=Empty)


def test_a_failure_names_the_first_row_of_its_environment() -> None:
    algorithm = build(env=lambda: Crowd(raises=episode_seed(1, 3, 1)))
    envs = algorithm.environment.vector.envs
    message = "in environment 3, step 1 of episode 1 .*OSError: no crowd"
    with pytest.raises(EnvironmentFailedError, match=message):
        algorithm.learn(STEPS)
    assert all(env.closed for env in envs)


def test_videos_are_refused_by_name() -> None:
    from rl_training.envs.video import VideoRequest

    algorithm = PPO(ID, num_envs=3, num_steps=32)
    with pytest.raises(UserError, match="no videos"):
        algorithm.evaluation_environment(num_envs=1, seed=0, video=VideoRequest(Path(), 1))
    algorithm.close()


def test_a_particle_environment_of_pettingzoo(tmp_path: Path) -> None:
    pytest.importorskip("mpe2")
    algorithm = PPO(
        "mpe2.simple_spread_v3:parallel_env",
        env_kwargs={"max_cycles": 10},
        num_envs=6,
        num_steps=32,
        seed=2,
    ).learn(STEPS)
    assert set(algorithm.evaluate(episodes=3)["lengths"]) == {10}
    algorithm.save(tmp_path / "saved")
    loaded = PPO.load(tmp_path / "saved")
    assert digest(loaded.learn(STEPS).state_dict()) == digest(algorithm.learn(STEPS).state_dict())
    algorithm.close()
    loaded.close()


def test_the_agents_are_named_in_order() -> None:
    algorithm = build(num_envs=3)
    assert algorithm.environment.vector.agents == AGENTS
    algorithm.close()


def test_an_evaluation_counts_games() -> None:
    algorithm = build()
    record = algorithm.evaluate(episodes=5, seed=5)
    assert (record["episodes"], record["agents"], len(record["returns"])) == (5, 3, 5)
    # By hand: one environment, five games, and the mean over its agents of each.
    environment = algorithm.evaluation_environment(num_envs=1, seed=5)
    root = environment.reset()
    returns: list[float] = []
    lengths: list[int] = []
    while len(returns) < 5:
        algorithm.act(root, deterministic=True, generator=None)
        taken, root = environment.step_and_maybe_reset(root)
        if taken["next", "done"].all():
            returns.append(taken["next", "episode_return"].double().mean().item())
            lengths.append(taken["next", "episode_length"][0].item())
    algorithm.config.evaluation.num_envs = 1
    alone = algorithm.evaluate(episodes=5, seed=5)
    assert alone["lengths"] == lengths
    np.testing.assert_allclose(alone["returns"], returns, rtol=1e-6)
    environment.close()
    algorithm.close()


def test_the_agents_of_a_game_without_an_end_are_cut_together() -> None:
    class Endless(Crowd):
        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            return super().reset(seed, {"length": 10**9})

    algorithm = build(env=Endless)
    algorithm.config.evaluation.max_episode_steps = 4
    algorithm.config.evaluation.num_envs = 6
    record = algorithm.evaluate(episodes=8)
    assert (record["lengths"], record["episodes_cut"]) == ([4] * 8, 8)
    algorithm.close()
