from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.utils import check_env_specs

from rl_training.envs import episode_seed
from rl_training.errors import UserError
from tests.envs.scripted import (
    Continuous,
    Counter,
    Fails,
    Samples,
    collect,
    generator,
    make_config,
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


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_every_value_of_the_batch_follows_the_script(vectorization: str) -> None:
    environment = make_vector(Counter, num_envs=4, seed=3, vectorization=vectorization)
    batch = collect(environment, 60, generator())
    environment.close()
    assert set(batch.keys()) == ROOT_KEYS | {"action", "next"}
    assert set(batch["next"].keys()) == NEXT_KEYS
    following = batch["next"]
    for row in range(4):
        expected = script(3, row, batch["action"][row].tolist())
        assert batch["observation"][row].tolist() == expected["observation"]
        assert batch["is_init"][row, :, 0].tolist() == expected["is_init"]
        assert following["observation"][row].tolist() == expected["next"]
        assert following["reward"][row, :, 0].tolist() == expected["reward"]
        assert following["terminated"][row, :, 0].tolist() == expected["terminated"]
        assert following["truncated"][row, :, 0].tolist() == expected["truncated"]
        assert following["episode_return"][row, :, 0].tolist() == expected["return"]
        assert following["episode_length"][row, :, 0].tolist() == expected["length"]
    assert torch.equal(following["done"], following["terminated"] | following["truncated"])
    assert bool(following["terminated"].any())
    assert bool(following["truncated"].any())
    assert not any(bool(batch[key].any()) for key in ("done", "terminated", "truncated"))


def test_shapes_and_dtypes_are_those_of_the_contract() -> None:
    batch = collect(make_vector(Counter), 5, generator())["next"]
    dtypes = {key: value.dtype for key, value in batch.items()}
    assert dtypes == {
        "observation": torch.float32,
        "reward": torch.float32,
        "episode_return": torch.float32,
        "episode_length": torch.int64,
        **dict.fromkeys(("done", "terminated", "truncated"), torch.bool),
    }
    assert all(value.shape == (3, 5, 1) for key, value in batch.items() if key != "observation")


@pytest.mark.parametrize("env", [Counter, Samples])
@pytest.mark.parametrize("normalize", [False, True])
def test_worker_processes_give_what_one_process_gives(env: Any, normalize: bool) -> None:
    batches = []
    for vectorization in ("sync", "async"):
        environment = make_vector(
            env,
            vectorization=vectorization,
            normalize_observation=normalize,
            normalize_reward=normalize,
        )
        batches.append(collect(environment, 50, generator()))
        environment.close()
    assert (batches[0] == batches[1]).all()


def starts(seed: int) -> set[float]:
    environment = make_vector(Counter, num_envs=4, seed=seed)
    batch = collect(environment, 200, generator())
    environment.close()
    return set(batch["observation"][batch["is_init"].squeeze(-1)][:, 0].tolist())


def test_seeds_of_a_run_are_distinct_and_not_shared_with_the_next_run() -> None:
    def seeds(seed: int) -> set[int]:
        return {episode_seed(seed, row, episode) for row in range(8) for episode in range(50)}

    assert len(seeds(1)) == 400
    assert not seeds(1) & seeds(2)
    assert all(0 <= seed < 2**31 for seed in seeds(1))
    assert starts(1) != starts(2)
    assert starts(1) == starts(1)


def test_the_same_environment_repeats_itself_after_set_seed() -> None:
    environment = make_vector(Counter, seed=5)
    first = collect(environment, 30, generator())
    environment.set_seed(5)
    assert (collect(environment, 30, generator()) == first).all()
    assert not (collect(environment, 30, generator()) == first).all()


def test_returned_tensors_keep_their_values() -> None:
    environment = make_vector(Counter)
    root = environment.reset()
    kept = []
    for _ in range(30):
        root["action"] = random_actions(environment, generator())
        transition, root = environment.step_and_maybe_reset(root)
        kept.append((transition, transition.clone()))
    assert all((transition == copy).all() for transition, copy in kept)


def test_float64_environments_show_float32_and_get_their_own_dtype() -> None:
    environment = make_vector(Continuous)
    root = environment.reset()
    assert root["observation"].dtype == torch.float32
    assert environment.raw_observation.dtype == np.float64
    root["action"] = torch.tensor([[5.0, 0.0], [-5.0, 9.0], [1.5, 1.0]])
    transition, _ = environment.step_and_maybe_reset(root)
    assert transition["next", "observation"].tolist() == [[2.0, 0.5], [-1.0, 4.0], [1.5, 1.0]]
    # The batch keeps what was sampled, not what was clipped; nor can the environment spoil it.
    assert transition["action"].tolist() == [[5.0, 0.0], [-5.0, 9.0], [1.5, 1.0]]


def test_discrete_actions_reach_the_environment_with_its_start() -> None:
    environment = make_vector(lambda: Counter(start=7), num_envs=1)
    root = environment.reset()
    root["action"] = torch.tensor([2])
    transition, _ = environment.step_and_maybe_reset(root)
    assert transition["next", "observation"][0, 1] == 9
    assert transition["action"].tolist() == [2]


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("stop", [False, True])
def test_torchrl_finds_the_specs_true(env_id: str, normalize: bool, stop: bool) -> None:
    environment = make_vector(config=make_config(env_id, normalize_observation=normalize))
    check_env_specs(environment, break_when_any_done=stop)


def test_torchrls_own_rollout_gives_the_batch_too() -> None:
    environment = make_vector(Counter, num_envs=2, seed=3)
    batch = environment.rollout(40, break_when_any_done=False)
    for row in range(2):
        expected = script(3, row, batch["action"][row].tolist())
        assert batch["observation"][row].tolist() == expected["observation"]
        assert batch["is_init"][row, :, 0].tolist() == expected["is_init"]
    short = make_vector(Counter, num_envs=2, seed=3).rollout(40)
    assert short["is_init"][:, :, 0].tolist() == [[True] + [False] * (short.shape[1] - 1)] * 2
    assert bool(short["next", "done"][:, -1].any())


def test_a_partial_reset_spares_the_other_rows() -> None:
    environment = make_vector(Counter, num_envs=2, seed=3)
    root = environment.reset()
    root["action"] = torch.tensor([1, 1])
    following = environment.step(root)["next"]
    following["_reset"] = torch.tensor([[True], [False]])
    renewed = environment.reset(following)
    assert renewed["observation"][1].tolist() == following["observation"][1].tolist()
    assert renewed["observation"][0, 0] == script(3, 0, [0] * 9)["observation"][starts_at(3, 0)][0]
    assert renewed["is_init"].tolist() == [[True], [False]]


def starts_at(seed: int, row: int) -> int:
    """The step at which the row's second episode begins."""
    return script(seed, row, [0] * 9)["is_init"].index(True, 1)


def test_a_step_over_an_episodes_end_is_refused() -> None:
    environment = make_vector(Counter, num_envs=1)
    with pytest.raises(RuntimeError, match=r"reset\(\) first"):
        environment.step(TensorDict({"action": torch.zeros(1, dtype=torch.int64)}, [1]))
    data = environment.reset()
    with pytest.raises(RuntimeError, match=r"environments \[0\] need a reset\(\) first"):
        for _ in range(10):
            data = environment.step(data.set("action", torch.zeros(1, dtype=torch.int64)))["next"]


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.filterwarnings("ignore")
def test_a_failing_environment_is_named_and_everything_closed(vectorization: str) -> None:
    environment = make_vector(Fails, num_envs=4, seed=3, vectorization=vectorization)
    row = next(
        row
        for row in range(4)
        if int(np.random.default_rng(episode_seed(3, row, 0)).integers(0, 1000)) % 2
    )
    with pytest.raises(
        RuntimeError, match=rf"Fails failed in environment {row}, step 2 of episode 0"
    ) as caught:
        collect(environment, 5, generator())
    assert str(episode_seed(3, row, 0)) in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert environment.vector.closed


def test_a_negative_seed_is_the_users_mistake() -> None:
    with pytest.raises(UserError, match="negative"):
        make_vector(Counter, seed=-1)


def test_closing_twice_is_harmless() -> None:
    environment = make_vector(Counter)
    environment.close()
    environment.close()
    assert environment.is_closed
