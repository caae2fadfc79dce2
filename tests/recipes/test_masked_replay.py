"""Masks in DQN: which actions are explored, and which successors' values count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from rl_training.losses.dqn import (
    categorical_loss,
    dqn_loss,
    greedy_target,
    project_distribution,
)
from rl_training.models.masked import random_legal
from rl_training.runtime.state import digest
from tests.recipes.masked_environments import Masked
from tests.recipes.runs import make

SHORT: dict[str, Any] = {"num_envs": 2, "hidden_sizes": [16]}
KINDS: dict[str, dict[str, Any]] = {
    "n_steps": {"n_steps": 3},
    "rainbow": {"rainbow": True, "num_atoms": 11},
    "double": {"double": True, "compile": False},
    "disk": {"replay_storage": "disk"},
}


def build(**options: Any) -> Any:
    return make("dqn", lambda: Masked("info"), action_masks="info", **{**SHORT, **options})


def test_random_legal_actions_are_uniform_over_the_legal_ones() -> None:
    mask = torch.tensor([[0.0, 1, 0, 1, 1, 0], [1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1]])
    draws = torch.arange(300) / 300
    chosen = torch.stack([random_legal(mask, draw.expand(3)) for draw in draws])
    assert chosen[:, 0].bincount(minlength=6).tolist() == [0, 100, 0, 100, 100, 0]
    assert set(chosen[:, 1].tolist()) == {0}
    assert set(chosen[:, 2].tolist()) == {5}
    # The largest number below 1, times the count, may round up to it.
    almost = torch.full((3,), 1.0 - 2.0**-24)
    assert random_legal(mask, almost).tolist() == [4, 0, 5]


def test_the_target_takes_the_best_legal_successor() -> None:
    next_q = torch.tensor([[1.0, 5.0, 3.0], [9.0, 5.0, 3.0], [2.0, 7.0, 4.0], [2.0, 7.0, 4.0]])
    selecting = torch.tensor([[0.0, 9.0, 1.0], [9.0, 1.0, 2.0], [0.0, 0.0, 1.0], [3.0, 2.0, 1.0]])
    legal = torch.tensor([[1.0, 0, 1], [0, 1, 1], [0, 0, 0], [0, 0, 0]])
    terminated = torch.tensor([False, False, True, False])
    numbers = torch.ones(4), torch.full((4,), 0.5), terminated, next_q
    # The last row: an episode cut with no mask, after which any action may be the best.
    assert greedy_target(*numbers, None, legal).tolist() == [2.5, 3.5, 1.0, 4.5]
    assert greedy_target(*numbers, selecting, legal).tolist() == [2.5, 2.5, 1.0, 2.0]
    loss = dqn_loss(
        {
            "q_values": next_q,
            "actions": torch.zeros(4, dtype=torch.int64),
            "next_q_values": next_q,
            "next_action_masks": legal,
            "rewards": torch.ones(4),
            "terminated": terminated,
        },
        gamma=0.5,
    )
    assert loss["td_errors"].tolist() == [-1.5, 5.5, 1.0, -2.5]


@pytest.mark.parametrize("distributional", [False, True])
@pytest.mark.parametrize("double", [False, True])
def test_the_errors_are_those_of_the_best_legal_successors(
    distributional: bool, double: bool
) -> None:
    algorithm = build(distributional=distributional, double=double, num_atoms=11).learn(256)
    batch = algorithm.replay.sample(64, torch.Generator().manual_seed(0))
    following, rows = batch["next_observation"], torch.arange(64)
    legal = algorithm.legal(following) > 0
    assert 0 < legal.float().mean() < 0.9
    chooser = algorithm.model if double else algorithm.target
    values = algorithm.q_values(chooser, following, None)
    # After an episode's last step nothing is legal here, and anything counts.
    best = values.masked_fill(~legal & legal.any(-1, keepdim=True), -torch.inf).argmax(-1)
    assert not torch.equal(best, values.argmax(-1))
    none: Any = (None, None, None)
    facts = batch["reward"], batch["discount"], batch["terminated"]
    if distributional:
        found = algorithm._categorical_loss(batch, none, None)[2]
        chances = algorithm.target(following, None).softmax(-1)[rows, best]
        target = project_distribution(chances, *facts, algorithm.support)
        logits = algorithm.model(batch["observation"], None)[rows, batch["action"]]
        torch.testing.assert_close(found, categorical_loss(logits, target))
    else:
        _, q, found = algorithm._value_loss(batch, none, None)
        value = algorithm.target(following, None)[rows, best]
        target = batch["reward"] + batch["discount"] * value * ~batch["terminated"]
        torch.testing.assert_close(found, q - target)
    algorithm.close()


@pytest.mark.parametrize("kind", KINDS)
def test_masks_are_replayed_and_resumed(kind: str, tmp_path: Path) -> None:
    algorithm = build(**KINDS[kind]).learn(256)
    batch = algorithm.replay.sample(64, torch.Generator().manual_seed(0), beta=1.0)
    mask = algorithm.legal(batch["observation"])
    assert mask.gather(-1, batch["action"].unsqueeze(-1)).all(), "actions were legal where taken"
    going_on = torch.logical_not(batch["terminated"])
    ended = algorithm.legal(batch["next_observation"]).any(-1)
    assert ended[going_on].any()
    algorithm.save(tmp_path / "saved")
    loaded = type(algorithm).load(tmp_path / "saved")
    loaded._source = algorithm._source
    assert digest(loaded.learn(128).state_dict()) == digest(algorithm.learn(128).state_dict())
    algorithm.close()
    loaded.close()


def stacked() -> Any:
    """Return the environment of the latest three places, with the mask of the latest."""
    return gymnasium.wrappers.FrameStackObservation(Masked("info"), stack_size=3)


def test_stacked_observations_have_the_mask_of_the_latest() -> None:
    algorithm = make("dqn", stacked, action_masks="info", **SHORT).learn(256)
    assert algorithm.observation_space.shape == (5 + 3 * 2,)
    batch = algorithm.replay.sample(64, torch.Generator().manual_seed(0))
    mask = algorithm.legal(batch["observation"])
    assert mask.gather(-1, batch["action"].unsqueeze(-1)).all()
    algorithm.close()


def test_the_warm_up_takes_every_legal_action_and_no_other() -> None:
    algorithm = build(warm_up=10_000)
    batch = next(iter(algorithm.collector()))
    mask = algorithm.legal(batch["observation"])
    assert mask.gather(-1, batch["action"].unsqueeze(-1)).all()
    assert np.bincount(batch["action"].flatten(), minlength=5).min() > 10
    algorithm.close()
