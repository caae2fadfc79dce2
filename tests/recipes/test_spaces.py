"""Which algorithm takes which space: every cell of the table, taken or refused by name."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import data_equivalence
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_training import PPO
from rl_training.envs.layout import observation_kind
from rl_training.envs.spaces import action_kind
from rl_training.errors import UserError
from rl_training.registry import (
    ACTION_SPACES,
    ALGORITHMS,
    OBSERVATION_SPACES,
    algorithm_class,
    sees,
)
from rl_training.runtime.state import digest
from tests.recipes.runs import CELL, ON_POLICY, make
from tests.recipes.spaces import ACTIONS, OBSERVATIONS, Anything, total

ACTION_CELLS = [(name, kind) for name in ALGORITHMS for kind in ACTIONS]
TAKEN = [(name, kind) for name, kind in ACTION_CELLS if kind in ACTION_SPACES[name]]
REFUSED = [cell for cell in ACTION_CELLS if cell not in TAKEN]
SHORT: dict[str, Any] = {"num_envs": 2, "hidden_sizes": [16]}
# Every kind of observation with one kind of action, or where that decides with both.
OBSERVATION_CELLS = [
    (name, kind, action)
    for name in ALGORITHMS
    for action in (("Discrete", "Box") if name == "sac" else ACTION_SPACES[name][:1])
    for kind in OBSERVATIONS
]
SEEN = [cell for cell in OBSERVATION_CELLS if sees(*cell)]
UNSEEN = [cell for cell in OBSERVATION_CELLS if cell not in SEEN]
# One on-policy and one with a replay buffer. Others read an image's bytes in a row, in a third of
# the time: encoders are made alike for all, and `test_images` and `test_action_masks` have theirs.
BY_CONVOLUTIONS = ("ppo", "dqn")


def make_source(observation: str = "Box", action: str = "Discrete") -> Any:
    # Copies: rows that share a space object would share its generator.
    return lambda: Anything(
        copy.deepcopy(OBSERVATIONS[observation]), copy.deepcopy(ACTIONS[action])
    )


def check_cell(name: str, source: Any, path: Path, **options: Any) -> Any:
    """Train, evaluate, save, load, predict alike and go on alike."""
    algorithm = make(name, source, **CELL[name], **options).learn(32)
    algorithm.save(path / "saved")
    loaded = algorithm_class(name).load(path / "saved")
    loaded._source = source  # what a run's id says, said by hand
    space = source().observation_space
    space.seed(0)
    action_space = source().action_space
    for _ in range(4):
        observation = space.sample()
        ours, theirs = (each.predict(observation)[0] for each in (algorithm, loaded))
        assert data_equivalence(ours, theirs)
        assert action_space.contains(ours)
        assert action_space.contains(algorithm.predict(observation, deterministic=False)[0])
        loaded.predict(observation, deterministic=False)
    assert loaded.evaluate(episodes=2, seed=5) == algorithm.evaluate(episodes=2, seed=5)
    assert digest(loaded.learn(32).state_dict()) == digest(algorithm.learn(32).state_dict())
    return algorithm


def test_the_classes_read_the_table() -> None:
    assert set(ACTION_SPACES) == set(OBSERVATION_SPACES) == set(ALGORITHMS)
    assert {kind for each in ACTION_SPACES.values() for kind in each} == set(ACTIONS)
    assert {kind for each in OBSERVATION_SPACES.values() for kind in each} == set(OBSERVATIONS)
    assert {kind: action_kind(space) for kind, space in ACTIONS.items()} == {
        kind: kind for kind in ACTIONS
    }
    assert {kind: observation_kind(space) for kind, space in OBSERVATIONS.items()} == {
        kind: kind for kind in OBSERVATIONS
    }
    for name in ALGORITHMS:
        assert algorithm_class(name).action_spaces == ACTION_SPACES[name]


@pytest.mark.parametrize(("name", "kind"), TAKEN)
def test_an_algorithm_learns_evaluates_resumes_and_predicts(
    name: str, kind: str, tmp_path: Path
) -> None:
    algorithm = check_cell(name, make_source(action=kind), tmp_path)
    batch = next(iter(algorithm.collector()))
    assert batch["action"].shape[2:] == algorithm.environment.action_map.shape
    algorithm.close()


@pytest.mark.parametrize(("name", "kind", "action"), SEEN)
def test_observations_of_every_kind_are_learnt_from(
    name: str, kind: str, action: str, tmp_path: Path
) -> None:
    source = make_source(kind, action)
    options: dict[str, Any] = {"feature_size": 8}
    if "image" in kind and name not in BY_CONVOLUTIONS:
        options["encoder"] = "mlp"
    algorithm = check_cell(name, source, tmp_path, **options)
    assert algorithm.raw_observation_space == OBSERVATIONS[kind]
    batch = next(iter(algorithm.collector()))
    for observation in (batch["observation"], batch["next", "observation"]):
        assert observation.dtype == (torch.uint8 if "image" in kind else torch.float32)
        assert observation.shape[2:] == algorithm.observation_space.shape
    algorithm.close()


@pytest.mark.parametrize(("name", "kind", "action"), UNSEEN)
def test_what_it_cannot_see_is_refused_by_name(name: str, kind: str, action: str) -> None:
    with pytest.raises(UserError, match=rf"{name} takes .*no images yet"):
        make(name, make_source(kind, action))


@pytest.mark.parametrize("kind", ["Discrete", "Dict", "image among parts"])
def test_flattened_observations_are_normalised_like_others(kind: str, tmp_path: Path) -> None:
    check_cell("ppo", make_source(kind), tmp_path, normalize_observation=True).close()


def test_a_memory_keeps_the_parts_of_single_observations_apart() -> None:
    algorithm = make("recurrent_ppo", make_source("Dict"), **SHORT)
    policy = algorithm.stateful_policy()
    space = copy.deepcopy(OBSERVATIONS["Dict"])
    assert all(algorithm.action_space.contains(policy.predict(space.sample())) for _ in range(3))
    algorithm.close()


@pytest.mark.parametrize(("name", "kind"), REFUSED)
def test_what_it_does_not_take_is_refused_by_name(name: str, kind: str) -> None:
    with pytest.raises(UserError, match=rf"{name} needs .* actions, and .* is an? {kind}[.:]"):
        make(name, make_source(action=kind))


@pytest.mark.parametrize("name", ON_POLICY)
@pytest.mark.parametrize("option", ["gsde", "squash"])
@pytest.mark.parametrize("kind", ["MultiDiscrete", "MultiBinary"])
def test_options_of_continuous_actions_are_refused(name: str, option: str, kind: str) -> None:
    with pytest.raises(UserError, match=r"continuous actions|Box action space"):
        make(name, make_source(action=kind), **{option: True})


def test_options_of_actions_with_parts() -> None:
    with pytest.raises(UserError, match=r"gsde .* need continuous actions"):
        make("ppo", make_source(action="Dict"), gsde=True)
    with pytest.raises(UserError, match="squash need continuous actions"):
        make("ppo", make_source(action="Tuple"), squash=True)
    algorithm = make("recurrent_ppo", make_source(action="Dict"), squash=True, previous_action=True)
    batch = next(iter(algorithm.collector()))
    # gear 4, lights 2 + 2 and 2 + 3, then four numbers.
    assert batch["next", "previous_action"].shape[-1] == 17
    assert (batch["next", "previous_action"][..., :13].sum(-1) == 5).all()
    assert algorithm.action_space.contains(algorithm.stateful_policy().predict(np.zeros(3)))
    algorithm.close()
    policy = TensorDictModule(nn.Linear(3, 6), in_keys=["observation"], out_keys=["logits"])
    with pytest.raises(UserError, match="networks of your own take no Dict or Tuple actions"):
        PPO(make_source(action="Dict"), networks=(policy, policy), num_envs=2, num_steps=64)


def test_sac_and_td3_refuse_infinite_bounds_by_name() -> None:
    for name in ("sac", "td3"):
        with pytest.raises(UserError, match=rf"an unbounded Box: {name} needs finite bounds"):
            make(name, make_source(action="unbounded Box"))


@pytest.mark.slow
def test_a_compiled_update_with_parts_is_the_eager_one() -> None:
    models = []
    for compiled in (False, True):
        source = make_source("image among parts", "Dict")
        # Convolutions would round differently, and Adam make much of it.
        options = {**SHORT, "compile": compiled, "encoder": "mlp", "num_epochs": 1}
        algorithm = make("ppo", source, **options).learn(128)
        models.append(algorithm.model.state_dict())
        algorithm.close()
    for key, value in models[0].items():
        torch.testing.assert_close(models[1][key], value, msg=key)


def test_previous_actions_are_read_one_hot(tmp_path: Path) -> None:
    source = make_source(action="MultiDiscrete")
    algorithm = check_cell("recurrent_ppo", source, tmp_path, previous_action=True)
    batch = next(iter(algorithm.collector()))
    assert batch["next", "previous_action"].shape[-1] == 6
    assert (batch["next", "previous_action"].sum(-1) == 3).all()
    algorithm.close()


@pytest.mark.parametrize("kind", ["MultiDiscrete", "MultiBinary", "Dict"])
def test_worker_processes_take_the_same_actions(kind: str) -> None:
    digests = []
    for vectorization in ("sync", "async"):
        source = functools.partial(Anything, OBSERVATIONS["Box"], ACTIONS[kind])
        if vectorization == "sync":
            source = make_source(action=kind)
        algorithm = make("ppo", source, vectorization=vectorization, **SHORT).learn(128)
        digests.append(digest(algorithm.model.state_dict()))
        algorithm.close()
    assert digests[0] == digests[1]


@pytest.mark.parametrize("kind", ["MultiDiscrete", "MultiBinary"])
def test_networks_of_ones_own_write_the_logits_of_all_actions(kind: str) -> None:
    policy = TensorDictModule(nn.Linear(3, 6), in_keys=["observation"], out_keys=["logits"])
    value = TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["state_value"])
    algorithm = PPO(make_source(action=kind), networks=(policy, value), num_envs=2, num_steps=64)
    algorithm.learn(128)
    assert ACTIONS[kind].contains(algorithm.predict(np.zeros(3))[0])
    written = algorithm.policy(TensorDict({"observation": torch.zeros(5, 3)}, [5]))
    log_probability, _ = algorithm.model.action_head.evaluate(
        algorithm.model.distribution(torch.zeros(5, 3)), written["action"]
    )
    torch.testing.assert_close(written["action_log_prob"], log_probability)
    algorithm.close()


@pytest.mark.parametrize("kind", ["MultiDiscrete", "MultiBinary", "Tuple"])
def test_the_best_of_several_actions_is_learnt(kind: str) -> None:
    algorithm = make("ppo", make_source(action=kind), learning_rate=0.01, discount=0.5)
    algorithm.learn(128 * 8)
    best = {
        "MultiDiscrete": np.array([[6, 1, 0]]),
        "MultiBinary": np.ones(3),
        "Tuple": (1, np.array([[1, 1]])),
    }
    assert total(algorithm.predict(np.zeros(3))[0]) == total(best[kind])
    algorithm.close()
