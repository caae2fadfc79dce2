"""The lean rollout loop against the Collector it replaces."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.collectors import Collector

from rl_training.config import TrainConfig
from rl_training.data.lean_collector import LeanCollector
from rl_training.envs import make_batched_env


class Counting:
    """A policy with a memory: it writes actions, and its state into ``next``."""

    in_keys = ("observation",)
    out_keys = ("action",)

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)

    def __call__(self, data: TensorDictBase) -> TensorDictBase:
        count = data.get("count", None)
        count = torch.zeros(*data.shape, 1) if count is None else count
        data.set("count", count)
        data.set("action", torch.randint(2, data.shape, generator=self.generator))
        following = {"count": count + 1, "nested": TensorDict({"double": 2 * count}, data.shape)}
        data.set("nested", data.get("nested", TensorDict({"double": 0 * count}, data.shape)))
        data.set("next", TensorDict(following, data.shape))
        return data


def batches(cls: Any, **options: Any) -> list[TensorDictBase]:
    """Collect three batches of 3 CartPoles x 40 steps: several episodes end in each."""
    config = TrainConfig(algo="ppo", env_id="CartPole-v1", num_envs=3, seed=5)
    environment = make_batched_env(config)
    collector = cls(environment, Counting(), frames_per_batch=120, **options)
    iterator = iter(collector)
    return [next(iterator) for _ in range(3)]


@pytest.fixture(scope="module")
def pair() -> tuple[list[TensorDictBase], list[TensorDictBase]]:
    stock = batches(
        Collector,
        total_frames=-1,
        track_traj_ids=False,
        trust_policy=True,
        use_buffers=False,
        auto_register_policy_transforms=False,
    )
    return batches(LeanCollector), stock


def test_it_collects_what_the_stock_collector_does(pair: Any) -> None:
    for lean, stock in zip(*pair, strict=True):
        keys = set(lean.keys(True, True))
        assert keys == set(stock.keys(True, True))
        assert lean.batch_size == stock.batch_size == torch.Size([3, 40])
        for key in keys:
            assert lean[key].dtype == stock[key].dtype
            assert torch.equal(lean[key], stock[key]), key


def test_episodes_ended_in_what_was_compared_and_memory_was_reset(pair: Any) -> None:
    batch: TensorDictBase = torch.cat(pair[0], 1)
    done = batch["next", "done"].squeeze(-1)
    assert int(done.sum()) > 3
    starts = batch["is_init"].squeeze(-1)
    assert batch["count"][starts].eq(0).all()
    assert batch["count"][:, 1:][~starts[:, 1:]].gt(0).all()


def test_batches_do_not_share_memory(pair: Any) -> None:
    first, second, _ = pair[0]
    before = second.clone()
    first["observation"].fill_(7.0)
    first["next", "observation"].fill_(7.0)
    assert (second == before).all()
