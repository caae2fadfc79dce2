from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.collectors import Collector

from rl_training.envs import VectorEnv
from tests.envs.scripted import (
    Counter,
    generator,
    make_vector,
    random_actions,
    script,
)

ROOT_KEYS = {"observation", "is_init", "done", "terminated", "truncated"}
NEXT_KEYS = {
    "observation",
    "reward",
    "done",
    "terminated",
    "truncated",
    "episode_return",
    "episode_length",
}


class Recurrent:
    """Writes a counter of its own steps into next, nested as an LSTM's state may be."""

    def __init__(self, environment: VectorEnv) -> None:
        self.environment = environment
        self.generator = generator()

    def __call__(self, data: TensorDictBase) -> TensorDictBase:
        if data.get("hidden", None) is None:
            data["hidden"] = torch.zeros(*data.shape, 2)
            data["core"] = TensorDict({"cell": torch.zeros(*data.shape)}, data.shape)
        data["action"] = random_actions(self.environment, self.generator)
        data["next"] = TensorDict(
            {"hidden": data["hidden"] + 1, "core": {"cell": data["core", "cell"] + 1}}, data.shape
        )
        return data


def collector(environment: VectorEnv, policy: Any) -> Collector:
    return Collector(
        environment,
        policy,
        frames_per_batch=40 * environment.num_envs,
        total_frames=-1,
        track_traj_ids=False,
        trust_policy=True,
        return_same_td=True,
        use_buffers=False,
    )


def test_recurrent_state_is_carried_and_zeroed_at_an_episodes_start() -> None:
    environment = make_vector(Counter)
    batch = next(iter(collector(environment, Recurrent(environment))))
    for hidden, after in (("hidden", "hidden"), (("core", "cell"), ("core", "cell"))):
        now, then = batch[hidden], batch["next"][after]
        assert torch.equal(then, now + 1)
        restart = batch["is_init"].reshape(3, 40, *[1] * (now.ndim - 2))
        expected = torch.where(restart[:, 1:], torch.zeros_like(then[:, :-1]), then[:, :-1])
        assert torch.equal(now[:, 1:], expected)
    assert bool(batch["is_init"][:, 1:].any())


def test_a_collector_yields_the_batch_and_carries_on_between_batches() -> None:
    environment = make_vector(Counter, num_envs=2, seed=3)
    drawn = generator()

    def policy(data: TensorDictBase) -> TensorDictBase:
        return data.set("action", random_actions(environment, drawn))

    batches = iter(collector(environment, policy))
    batch: Any = torch.cat([next(batches), next(batches)], dim=1)
    assert set(batch.keys()) == ROOT_KEYS | {"action", "next"}
    assert set(batch["next"].keys()) == NEXT_KEYS
    for row in range(2):
        expected = script(3, row, batch["action"][row].tolist())
        assert batch["observation"][row].tolist() == expected["observation"]
        assert batch["next", "episode_length"][row, :, 0].tolist() == expected["length"]


def test_continuing_returns_the_root_once_and_resets_nothing() -> None:
    environment = make_vector(Counter, normalize_observation=True)
    policy = Recurrent(environment)
    root = environment.reset()
    for _ in range(7):
        _, root = environment.step_and_maybe_reset(policy(root))
    before = environment.state_dict()
    environment.continue_episodes()
    again: Any = environment.reset()
    assert (again == root).all()
    assert again["hidden"].shape == (3, 2)
    assert str(environment.state_dict()) == str(before)
    # Once only: the next reset is a real one.
    assert bool(environment.reset()["is_init"].all())
    assert environment.state_dict()["episodes"].tolist() == (before["episodes"] + 1).tolist()


def test_continuing_before_the_first_reset_does_nothing() -> None:
    environment = make_vector(Counter)
    environment.continue_episodes()
    assert bool(environment.reset()["is_init"].all())
