"""What a state remembers: where it is zeroed, carried over, bootstrapped from, and never padded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_training.contrib.recurrent_ppo import RecurrentPPO
from rl_training.data.recurrent_rollout_buffer import RecurrentRolloutBuffer, padded
from rl_training.envs import episode_seed
from rl_training.losses.ppo import ppo_loss
from rl_training.models.lstm import LSTMActorCritic
from tests.recipes.environments import RandomEnds
from tests.recipes.runs import iterate, make

MODELS: dict[str, dict[str, Any]] = {
    "lstm": {},
    "two_layers": {"memory_layers": 2},
    "gru": {"memory": "gru", "memory_layers": 2},
    "shared": {"critic_memory": "shared", "output_sizes": [8]},
    "no_critic_memory": {"critic_memory": "none"},
    "previous": {"previous_action": True, "previous_reward": True},
}
every_model = pytest.mark.parametrize("model", MODELS)


def build(model: str = "lstm", **changes: Any) -> RecurrentPPO:
    algorithm = make("recurrent_ppo", RandomEnds, **{**MODELS[model], **changes})
    assert isinstance(algorithm, RecurrentPPO)
    # Actions and values that depend on what is remembered.
    with torch.no_grad():
        algorithm.model.action_head.layer.weight.mul_(100)  # type: ignore[operator,union-attr]
    return algorithm


def second_batch(algorithm: RecurrentPPO) -> TensorDictBase:
    """Return a batch that begins in the middle of episodes, whose states are not zero."""
    batch = iterate(algorithm, 2, update=False)[0][1]
    starts = batch["is_init"][:, 1:]
    assert starts.sum() > 10 and not batch["is_init"][:, 0].all()
    assert batch["next", "truncated"].sum() > 3 and batch["next", "terminated"].sum() > 3
    return batch


def stepwise(model: LSTMActorCritic, batch: TensorDictBase) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities and values ``[N, T]`` and the states after each step, of a loop over
    the steps that starts from the row's state and zeroes it by hand where an episode begins.
    """
    rows = batch["memory"][:, 0]
    found: list[list[Tensor]] = [[], [], []]
    extras = {key: batch[key] for key in model.carried_sizes}
    for step in range(batch.shape[1]):
        rows = rows * torch.logical_not(batch["is_init"][:, step]).unsqueeze(-1)
        extra = model.extra({key: value[:, step] for key, value in extras.items()})
        features, remembered, own, rows = model.step(batch["observation"][:, step], rows, extra)
        parameters = model.action_head(features)
        taken, _ = model.action_head.evaluate(parameters, batch["action"][:, step])
        value = model._value_of(remembered, own)
        for kept, each in zip(found, (taken, value, rows), strict=True):
            kept.append(each)
    log_probability, value, states = (torch.stack(each, 1) for each in found)
    return log_probability, value, states


@torch.no_grad()
def evaluated(algorithm: RecurrentPPO, sequences: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    model = algorithm.model
    log_probability, _, value = model.evaluate_actions(
        sequences["observation"],
        sequences["action"],
        sequences["memory"],
        sequences["is_init"],
        model.extra(sequences),
    )
    return log_probability, value


@every_model
def test_the_rollout_carried_and_zeroed_the_states_of_a_loop_by_hand(model: str) -> None:
    algorithm = build(model)
    batch = second_batch(algorithm)
    with torch.no_grad():
        _, _, states = stepwise(algorithm.model, batch)
    torch.testing.assert_close(batch["next", "memory"], states, rtol=1e-5, atol=1e-6)
    # The next root is the state, or zero where an episode begins.
    kept = torch.logical_not(batch["is_init"][:, 1:]).unsqueeze(-1)
    assert torch.equal(batch["memory"][:, 1:], batch["next", "memory"][:, :-1] * kept)


def test_rollouts_carry_the_state_over_their_borders() -> None:
    first, second = iterate(build(), 2, update=False)[0]
    going_on = torch.logical_not(second["is_init"][:, 0, 0])
    assert going_on.any()
    last = first["next", "memory"][:, -1]
    assert torch.equal(second["memory"][going_on, 0], last[going_on])
    assert second["memory"][going_on, 0].abs().min(-1).values.min() > 0


@pytest.mark.parametrize("length", [1, 4, 16, 32])
@every_model
def test_ratios_are_one_in_the_first_epoch(model: str, length: int) -> None:
    algorithm = build(model)
    batch = second_batch(algorithm)
    with torch.no_grad():
        expected, expected_value, _ = stepwise(algorithm.model, batch)
    keys = tuple(algorithm.model.carried_sizes)
    sequences = RecurrentRolloutBuffer.of(batch).sequences(length, extra_keys=keys)
    found, value = evaluated(algorithm, sequences)
    torch.testing.assert_close(found.reshape(expected.shape), expected, rtol=0, atol=2e-6)
    torch.testing.assert_close(value.reshape(expected.shape), expected_value, rtol=0, atol=2e-6)
    torch.testing.assert_close(batch["action_log_prob"], expected, rtol=0, atol=2e-6)
    torch.testing.assert_close(batch["state_value"][..., 0], expected_value, rtol=0, atol=2e-6)
    if length > 1:  # the fault that this has to find: starts forgotten
        sequences["is_init"] = torch.zeros_like(sequences["is_init"])
        wrong, _ = evaluated(algorithm, sequences)
        assert (wrong.reshape(expected.shape) - expected).abs().max() > 1e-3


def by_hand(algorithm: RecurrentPPO, batch: TensorDictBase) -> tuple[Tensor, Tensor]:
    """Return advantages and targets ``[N, T]`` of a loop backwards over each row."""
    model, config = algorithm.model, algorithm.config.algorithm
    following = batch["next"]
    with torch.no_grad():
        _, value, states = stepwise(model, batch)
        extra = model.extra({k: following[k].flatten(0, 1) for k in model.carried_sizes})
        successor = model.step_value(
            following["observation"].flatten(0, 1), states.flatten(0, 1), extra
        ).reshape(value.shape)
    advantage = torch.zeros_like(value)
    for row in range(value.shape[0]):
        total = 0.0
        for step in reversed(range(value.shape[1])):
            reward = following["reward"][row, step].item()
            if not following["terminated"][row, step]:
                reward += config.discount * successor[row, step].item()
            delta = reward - value[row, step].item()
            goes_on = not following["done"][row, step]
            total = delta + config.discount * config.gae_lambda * total * goes_on
            advantage[row, step] = total
    return advantage, advantage + value


@every_model
def test_advantages_through_truncations_equal_a_loop_by_hand(model: str) -> None:
    algorithm = build(model, normalize_advantage="off")
    batch = second_batch(algorithm)
    advantage, target = by_hand(algorithm, batch)
    algorithm.advantages(batch)
    torch.testing.assert_close(batch["advantage"][..., 0], advantage, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(batch["value_target"][..., 0], target, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fault", ["before the last observation", "after the reset"])
def test_a_state_from_another_moment_gives_other_advantages(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = build(normalize_advantage="off")
    batch = second_batch(algorithm)
    advantage, _ = by_hand(algorithm, batch)
    # What the last observations are judged by, were it the state one step too early, or zero.
    source = "memory" if fault == "before the last observation" else None
    batch["next", "memory"] = torch.zeros_like(batch["memory"]) if source is None else batch[source]
    algorithm.advantages(batch)
    assert (batch["advantage"][..., 0] - advantage).abs().max() > 1e-3


def losses(algorithm: RecurrentPPO, sequences: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
    total, _ = algorithm._loss(sequences)
    return total.detach(), list(torch.autograd.grad(total, list(algorithm.model.parameters())))


def moved(algorithm: RecurrentPPO) -> None:
    """Move the parameters, so that ratios differ from one."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in algorithm.model.parameters():
            parameter.add_(0.03 * torch.randn_like(parameter))


def test_the_order_of_environments_does_not_matter() -> None:
    algorithm = build(value_clip_epsilon=0.1, entropy_coefficient=0.01)
    batch = second_batch(algorithm)
    sequences = algorithm.advantages(batch)
    moved(algorithm)
    expected, gradients = losses(algorithm, sequences)
    order = torch.randperm(len(sequences["is_init"]), generator=torch.Generator().manual_seed(3))
    found, others = losses(algorithm, {key: value[order] for key, value in sequences.items()})
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(others, gradients)


@pytest.mark.parametrize("clip", [None, 0.1])
def test_padding_touches_neither_loss_nor_gradient_not_even_as_nan(clip: float | None) -> None:
    algorithm = build(value_clip_epsilon=clip, entropy_coefficient=0.01)
    sequences = algorithm.advantages(second_batch(algorithm))
    moved(algorithm)
    expected, gradients = losses(algorithm, sequences)
    count = len(sequences["is_init"])
    filled = padded(sequences, count + 1)
    assert filled["mask"].sum() == sequences["is_init"].numel()
    for value in filled.values():
        if value.is_floating_point():
            value[count] = torch.nan
    found, others = losses(algorithm, filled)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(others, gradients)
    # The end of a sequence may be padding as well.
    half = {k: v[:, :8] if k != "memory" else v for k, v in sequences.items()}
    short, short_gradients = losses(algorithm, half)
    cut = {key: value.clone() for key, value in sequences.items()}
    cut["mask"] = torch.ones_like(cut["is_init"])
    cut["mask"][:, 8:] = False
    for key, value in cut.items():
        if value.is_floating_point() and key != "memory":
            value[:, 8:] = torch.nan
    found, others = losses(algorithm, cut)
    torch.testing.assert_close(found, short)
    torch.testing.assert_close(others, short_gradients)


def test_unmasked_padding_would_be_seen() -> None:
    algorithm = build()
    sequences = algorithm.advantages(second_batch(algorithm))
    moved(algorithm)
    expected, _ = losses(algorithm, sequences)
    filled = padded(sequences, len(sequences["is_init"]) + 1)
    filled["mask"] = torch.ones_like(filled["mask"])
    assert (losses(algorithm, filled)[0] - expected).abs() > 1e-5


def test_the_loss_of_numbers_takes_means_over_the_mask() -> None:
    names = ("logprobs", "old_logprobs", "advantages", "returns", "new_values", "entropy")
    generator = torch.Generator().manual_seed(0)
    numbers = {name: torch.randn(3, 4, generator=generator) for name in names}
    mask = torch.arange(4)[None] < torch.tensor([[4], [2], [0]])
    chosen = {name: value[mask] for name, value in numbers.items()}
    expected = ppo_loss(chosen, ent_coef=0.1)
    for value in numbers.values():
        value[~mask] = torch.nan
    found = ppo_loss({**numbers, "mask": mask}, ent_coef=0.1)
    assert set(found) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=name)


# ---- states computed anew


def test_refreshed_states_are_those_that_the_present_parameters_reach() -> None:
    algorithm = build(sequence_length=8, refresh_state=True)
    batch = second_batch(algorithm)
    sequences = algorithm.advantages(batch)
    moved(algorithm)
    with torch.no_grad():
        _, _, states = stepwise(algorithm.model, batch)
    found = algorithm._first_states(sequences, None).reshape(4, 4, *states.shape[2:])
    torch.testing.assert_close(found[:, 0], batch["memory"][:, 0])
    torch.testing.assert_close(found[:, 1:], states[:, 7:-1:8], rtol=1e-4, atol=1e-5)
    stored = batch["memory"][:, ::8]
    assert (found - stored).abs().max() > 1e-3


def test_burn_in_begins_so_many_steps_before_with_the_stored_state() -> None:
    algorithm = build(sequence_length=8, burn_in=3)
    batch = second_batch(algorithm)
    sequences = dict(algorithm.advantages(batch))
    moved(algorithm)
    earlier = sequences.pop("burn_in_memory")
    found = algorithm._first_states(sequences, earlier).reshape(4, 4, *earlier.shape[1:])
    torch.testing.assert_close(found[:, 0], batch["memory"][:, 0])
    for chunk in range(1, 4):
        begin = 8 * chunk - 3
        with torch.no_grad():
            _, _, states = stepwise(algorithm.model, batch[:, begin : 8 * chunk])
        torch.testing.assert_close(found[:, chunk], states[:, -1], rtol=1e-4, atol=1e-5)


def test_minibatches_hold_each_sequence_once_and_have_equal_sizes() -> None:
    algorithm = build(sequence_length=16, minibatch_size=48)  # 8 sequences, 3 a minibatch
    sequences = algorithm.advantages(second_batch(algorithm))
    seen, masks = [], []
    for chosen, indices in algorithm._minibatches(sequences, 1):
        assert len(indices) == 3
        masks.append(chosen["mask"][indices].all(1))
        seen += indices[masks[-1]].tolist()
    assert sorted(seen) == list(range(8))
    assert torch.cat(masks).sum() == 8
    assert algorithm.learn(128).updates == 1


# ---- acting


class Counting(gymnasium.Env[Any, Any]):
    """Random observations; each reward is the action, each episode has a length of its own."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-9.0, 9.0, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(3, 30))
        return self.np_random.normal(size=3).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        observation = self.np_random.normal(size=3).astype(np.float32)
        return observation, float(action), self._left == 0, False, {}


@pytest.mark.parametrize("model", ["lstm", "previous"])
def test_evaluating_side_by_side_equals_playing_one_after_the_other(model: str) -> None:
    changes = {**MODELS[model], "evaluation.num_envs": 2}
    algorithm = make("recurrent_ppo", Counting, **changes).learn(128)
    with torch.no_grad():
        algorithm.model.action_head.layer.weight.mul_(100)
    expected = []
    for row, number in ((0, 0), (0, 1), (1, 0), (1, 1)):
        policy, env = algorithm.stateful_policy(), Counting()
        observation, _ = env.reset(seed=episode_seed(11, row, number))
        total, reward, done = 0.0, None, False
        while not done:
            action = policy.predict(observation, reward=reward)
            observation, reward, done, _, _ = env.step(action)
            total += reward
        expected.append(total)
    assert algorithm.evaluate(episodes=4, seed=11)["returns"] == expected
    assert len(set(expected)) > 1


def test_a_saved_policy_acts_on_in_the_middle_of_an_episode(tmp_path: Path) -> None:
    algorithm = build()
    algorithm.save(tmp_path / "policy", policy_only=True)
    loaded = RecurrentPPO.load(tmp_path / "policy")
    observations = np.random.default_rng(0).normal(size=(6, 200, 3)).astype(np.float32)
    state: Any = None
    for observation in observations[:-1]:
        _, state = algorithm.predict(observation, state)
    mine, _ = algorithm.predict(observations[-1], state)
    theirs, _ = loaded.predict(observations[-1], state)
    np.testing.assert_array_equal(mine, theirs)
    forgotten, _ = loaded.predict(observations[-1], state, episode_start=True)
    assert (forgotten != mine).any()


@pytest.mark.parametrize("model", ["lstm", "previous"])
def test_training_saved_in_the_middle_of_episodes_takes_the_same_next_actions(
    model: str, tmp_path: Path
) -> None:
    algorithm = make("recurrent_ppo", "CartPoleNoVel-v1", **MODELS[model])
    iterate(algorithm, 1)
    algorithm.save(tmp_path / "saved")
    loaded = RecurrentPPO.load(tmp_path / "saved")
    mine, theirs = (next(iter(each.collector())) for each in (algorithm, loaded))
    assert not mine["is_init"][:, 0].all()
    for key in ("memory", "observation", "action"):
        assert torch.equal(mine[key], theirs[key]), key
