from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.collectors import Collector
from torchrl.envs.utils import check_env_specs

from rl_training.envs import VectorEnv, episode_seed, make_vector_env
from rl_training.errors import UserError
from tests.envs.scripted import (
    Continuous,
    Counter,
    Fails,
    Samples,
    collect,
    make_config,
    make_vector,
    random_actions,
)

ROOT_KEYS = {"observation", "is_init", "done", "terminated", "truncated"}
NEXT_KEYS = {"observation", "reward", "done", "terminated", "truncated", "episode_return", "episode_length"}


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def script(seed: int, row: int, actions: Any) -> dict[str, list[Any]]:
    """What one row must give, from the rules in the Counter's docstring and nothing else."""
    columns: dict[str, list[Any]] = {
        key: [] for key in ("observation", "is_init", "next", "reward", "terminated", "truncated", "return", "length")
    }
    episode = -1
    length = time = 0
    for action in actions:
        if time == length:
            episode += 1
            start = int(np.random.default_rng(episode_seed(seed, row, episode)).integers(0, 1000))
            time, length, total, summed = 0, 2 + start % 4, 0.0, 0
        columns["observation"].append([start + time, summed])
        columns["is_init"].append(time == 0)
        time, summed = time + 1, summed + action
        reward = time + action / 8
        total += reward
        columns["next"].append([start + time, summed])
        columns["reward"].append(reward)
        columns["terminated"].append(time == length and start % 2 == 0)
        columns["truncated"].append(time == length and start % 2 == 1)
        columns["return"].append(total)
        columns["length"].append(time)
    return columns


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


class Recurrent:
    """Writes a counter of its own steps into next, nested as an LSTM's state may be."""

    def __init__(self, environment: VectorEnv) -> None:
        self.environment = environment
        self.generator = generator()

    def __call__(self, data: TensorDictBase) -> TensorDictBase:
        if "hidden" not in data.keys():
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
    batch = torch.cat([next(batches), next(batches)], dim=1)
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
    again = environment.reset()
    assert (again == root).all()
    assert "hidden" in again.keys()
    assert str(environment.state_dict()) == str(before)
    assert bool(environment.reset()["is_init"].all())


def test_continuing_before_the_first_reset_does_nothing() -> None:
    environment = make_vector(Counter)
    environment.continue_episodes()
    assert bool(environment.reset()["is_init"].all())


def test_observations_are_normalised_with_what_the_policy_acts_on() -> None:
    environment = make_vector(Counter, num_envs=2, seed=3, normalize_observation=True)
    plain = make_vector(Counter, num_envs=2, seed=3)
    batch, raw = collect(environment, 40, generator()), collect(plain, 40, generator())
    seen = [raw["observation"][:, 0].double().numpy()]
    for step in range(40):
        mean, deviation = statistics(seen)
        expected = (raw["observation"][:, step].double().numpy() - mean) / deviation
        np.testing.assert_allclose(batch["observation"][:, step], expected.clip(-10, 10), rtol=2e-5, atol=1e-5)
        # The next root first: terminal observations are never learnt from, and are seen as the next root is.
        if step < 39:
            seen.append(raw["observation"][:, step + 1].double().numpy())
            mean, deviation = statistics(seen)
            expected = (raw["next", "observation"][:, step].double().numpy() - mean) / deviation
            np.testing.assert_allclose(
                batch["next", "observation"][:, step], expected.clip(-10, 10), rtol=2e-5, atol=1e-5
            )


def statistics(seen: list[Any]) -> tuple[Any, Any]:
    data = np.concatenate(seen)
    weight = len(data) + 1e-4
    mean = data.sum(axis=0) / weight
    return mean, np.sqrt((1e-4 + (data**2).sum(axis=0)) / weight - mean**2 + 1e-8)


def test_normalised_rewards_leave_the_reported_return_raw() -> None:
    batch = collect(make_vector(Counter, normalize_reward=True), 40, generator())["next"]
    raw = collect(make_vector(Counter), 40, generator())["next"]
    assert torch.equal(batch["episode_return"], raw["episode_return"])
    assert not torch.equal(batch["reward"], raw["reward"])
    assert bool((batch["reward"] > 0).all())


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_normalisation_is_that_of_stable_baselines3(env_id: str) -> None:
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    config = make_config(env_id, num_envs=2, normalize_observation=True, normalize_reward=True)
    environment = make_vector(config=config)
    peer = vec_env.VecNormalize(FixedSeeds(vec_env, config), gamma=0.9, clip_reward=10.0)
    root, observation = environment.reset(), peer.reset()
    drawn = generator()
    for _ in range(450):
        np.testing.assert_allclose(root["observation"], observation, rtol=1e-5, atol=1e-6)
        action = random_actions(environment, drawn)
        transition, root = environment.step_and_maybe_reset(root.set("action", action))
        observation, reward, done, infos = peer.step(action.numpy())
        np.testing.assert_allclose(transition["next", "reward"][:, 0], reward, rtol=1e-5)
        for row in np.flatnonzero(done):
            terminal = infos[row]["terminal_observation"]
            np.testing.assert_allclose(transition["next", "observation"][row], terminal, rtol=1e-5, atol=1e-6)
    assert done is not None


def FixedSeeds(vec_env: Any, config: Any) -> Any:  # noqa: N802
    """SB3's vector environment over the library's own environments, whose episodes seed themselves."""
    makers = make_vector_env(config, record_episode_statistics=False).env_fns
    return vec_env.DummyVecEnv([*makers])


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.filterwarnings("ignore")
def test_a_failing_environment_is_named_and_everything_closed(vectorization: str) -> None:
    environment = make_vector(Fails, num_envs=4, seed=3, vectorization=vectorization)
    row = next(
        row
        for row in range(4)
        if int(np.random.default_rng(episode_seed(3, row, 0)).integers(0, 1000)) % 2
    )
    with pytest.raises(RuntimeError, match=rf"Fails failed in environment {row}, step 2 of episode 0") as caught:
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
