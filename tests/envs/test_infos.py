"""Named keys of ``info`` in the batch, and options of every reset."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torchrl.envs.utils import check_env_specs

from rl_training import PPO
from rl_training.config import config_from_dict, replace_config
from rl_training.envs import as_vector, episode_seed, make_vector_env
from rl_training.envs.infos import parse_info_keys
from rl_training.errors import UserError
from rl_training.runtime.state import digest
from tests.recipes.runs import BRIEF, SMALL, make

SHORT: dict[str, Any] = {**SMALL["ppo"], "num_envs": 2, "hidden_sizes": [8]}
KEYS = ["steps", "success", "place[2]"]


class Telling(gymnasium.Env[Any, Any]):
    """Tells its steps as an int or a float, its place, and at an episode's end of success. Episodes
    are of 2 to 6 steps, or of what the reset's options say; that of the seed ``only`` tells what
    is ``wrong``.
    """

    def __init__(self, only: int | None = None, **wrong: Any) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.only, self.wrong = only, wrong

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.is_wrong = seed == self.only
        options = options or {}
        # An environment may take out what it is given: the next reset has it again.
        self.length = int(options.pop("length", self.np_random.integers(2, 7)))
        self.steps = 0
        return self._observe(), {"length": self.length}

    def _observe(self) -> Any:
        self.place = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.place

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        over = self.steps >= self.length
        observation = self._observe()
        told: dict[str, Any] = {
            "steps": self.steps if self.steps % 2 else self.steps + 0.5,
            "place": self.place.astype(np.float64),
            "text": f"step {self.steps}",
        }
        if over:
            told["success"] = bool(action)
        return (
            observation,
            float(action),
            over,
            False,
            {**told, **(self.wrong if self.is_wrong else {})},
        )


def batch_of(env: Any = Telling, **options: Any) -> Any:
    algorithm = PPO(env, info_keys=KEYS, **{**SHORT, **options})
    try:
        return next(iter(algorithm.collector()))
    finally:
        algorithm.close()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_named_keys_arrive_with_the_step_that_told_them(vectorization: str) -> None:
    batch = batch_of(vectorization=vectorization)
    info, done = batch["next", "info"], batch["next", "done"]
    length = batch["next", "episode_length"].float()
    assert torch.equal(info["steps"], torch.where(length % 2 == 1, length, length + 0.5))
    # Of the true last step, never of the reset that follows it.
    assert torch.equal(info["place"], batch["next", "observation"])
    assert info["place"].shape == (2, 32, 2)
    assert torch.equal(info["success"].isnan(), ~done)
    assert torch.equal(info["success"][done], batch["action"][done.squeeze(-1)].float())
    assert "info" not in batch.keys()  # noqa: SIM118  a TensorDict is no dict


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_vector_environment_of_ones_own_tells_them_too(kind: str) -> None:
    made: Any = gymnasium.vector.SyncVectorEnv
    if kind == "async":
        made = functools.partial(gymnasium.vector.AsyncVectorEnv, context="fork")
    vector: Any = made([Telling] * 2, autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED)
    batch = batch_of(vector)
    info, done = batch["next", "info"], batch["next", "done"]
    assert torch.equal(info["place"], batch["next", "observation"])
    assert torch.equal(info["success"].isnan(), ~done)


def test_torchrl_accepts_the_specs() -> None:
    algorithm = PPO(Telling, info_keys=KEYS, **SHORT)
    check_env_specs(algorithm.environment)
    algorithm.close()


@pytest.mark.parametrize("name", ["ppo", "ppg", "recurrent_ppo", "dqn"])
def test_training_goes_on_as_without_them(name: str, tmp_path: Path) -> None:
    digests = []
    for keys in ([], KEYS):
        algorithm = make(name, Telling, info_keys=keys, **BRIEF[name]).learn(64)
        digests.append(digest(algorithm.model.state_dict()))
        algorithm.save(tmp_path / str(len(keys)))
        algorithm.close()
    assert digests[0] == digests[1]
    loaded = type(algorithm).load(tmp_path / "3")
    loaded._source = Telling
    loaded.learn(32)
    assert loaded.evaluate(episodes=2)["episodes"] == 2
    loaded.close()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"place": np.zeros(3)}, r"info\['place'\] has the shape \(3,\).* say 'place\[3\]'"),
        ({"steps": "two"}, r"info\['steps'\] is str, no number"),
    ],
)
def test_what_does_not_fit_is_named_with_its_environment(
    wrong: dict[str, Any], message: str, vectorization: str
) -> None:
    wrong = {"only": episode_seed(1, 1, 0), **wrong}
    with pytest.raises(RuntimeError, match=rf"environment 1, step 1 .*{message}"):
        batch_of(lambda: Telling(**wrong), vectorization=vectorization)


def test_a_key_that_nobody_tells_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        algorithm = PPO(Telling, info_keys=["sucess", "steps"], **SHORT)
        batch = next(iter(algorithm.collector()))
        algorithm.close()
    assert batch["next", "info", "sucess"].isnan().all()
    assert caplog.text.count("no step of the first episode told 'sucess'") == 1


def test_names_that_are_none_are_refused() -> None:
    assert parse_info_keys(["a", "b.c[2, 4]"]) == {"a": (), "b.c": (2, 4)}
    for names, message in ((["a[x]"], "form"), (["a", "a[2]"], "twice"), ([""], "form")):
        with pytest.raises(UserError, match=message):
            PPO(Telling, info_keys=names, **SHORT)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_every_reset_has_the_options(vectorization: str, tmp_path: Path) -> None:
    algorithm = PPO(
        Telling, reset_options={"length": 9}, vectorization=vectorization, **SHORT
    ).learn(128)
    batch = next(iter(algorithm.collector()))
    done = batch["next", "done"]
    assert set(batch["next", "episode_length"][done].tolist()) == {9}
    assert set(algorithm.evaluate(episodes=5)["lengths"]) == {9}
    algorithm.save(tmp_path / "saved")
    loaded = PPO.load(tmp_path / "saved")
    loaded._source = Telling
    assert digest(loaded.learn(128).state_dict()) == digest(algorithm.learn(128).state_dict())
    algorithm.close()
    loaded.close()


def test_a_vector_environment_of_ones_own_has_the_options_too() -> None:
    vector = gymnasium.vector.SyncVectorEnv([Telling] * 2)  # which is tried out first
    options = {"length": 9}
    algorithm = PPO(vector, reset_options=options, **SHORT)
    batch = next(iter(algorithm.collector()))
    assert set(batch["next", "episode_length"][batch["next", "done"]].tolist()) == {9}
    assert options == {"length": 9}
    algorithm.close()


def test_options_of_the_library_are_refused() -> None:
    with pytest.raises(UserError, match="reset_mask"):
        PPO(Telling, reset_options={"reset_mask": 1}, **SHORT)


def test_only_the_library_s_own_workers_leave_infos_out() -> None:
    env = {"vectorization": "async", "info_keys": ["steps"]}
    config = config_from_dict(
        {"algo": "ppo", "env_id": "Taxi-v4", "num_envs": 2, "env": env}, source="test"
    )
    public: Any = make_vector_env(config, record_episode_statistics=False)
    own: Any = as_vector(Telling, config)
    all_of_taxi = {"prob", "_prob", "action_mask", "_action_mask"}
    for vector, told in ((public, all_of_taxi), (own, {"steps", "_steps"})):
        vector.reset(seed=[0, 0])
        *_, info = vector.step(np.zeros(2, np.int64))
        assert set(info) == told
        vector.close()
    own = as_vector(Telling, replace_config(config, vectorization="sync"))
    own.reset(seed=[0, 0])
    assert {"steps", "place", "text"} <= set(own.step(np.zeros(2, np.int64))[-1])
    own.close()
