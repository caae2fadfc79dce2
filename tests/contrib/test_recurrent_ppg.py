"""Recurrent PPG: the phases of PPG on the sequences of recurrent PPO."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rl_training import UserError
from rl_training.contrib.recurrent_ppg import RecurrentPPG
from rl_training.runtime.state import digest
from tests.contrib.test_recurrent_semantics import stepwise
from tests.recipes.environments import RandomEnds
from tests.recipes.runs import changed, iterate, make, parameters


def build(**changes: Any) -> RecurrentPPG:
    algorithm = make("recurrent_ppg", RandomEnds, **changes)
    assert isinstance(algorithm, RecurrentPPG)
    return algorithm


def test_without_auxiliary_phase_it_is_recurrent_ppo_bit_for_bit() -> None:
    common: dict[str, Any] = {
        "adam_epsilon": 1e-5,
        "max_gradient_norm": 0.5,
        "entropy_coefficient": 0.01,
        "normalize_advantage": "minibatch",
    }
    ppg = build(auxiliary_epochs=0, **common)
    ppo = make("recurrent_ppo", RandomEnds, **common)
    iterate(ppg, 3)
    iterate(ppo, 3)
    mine = ppg.model.state_dict()
    theirs = {key: value for key, value in mine.items() if not key.startswith("auxiliary")}
    assert digest(theirs) == digest(ppo.model.state_dict())


def test_the_phase_keeps_sequences_with_the_states_they_were_collected_from() -> None:
    algorithm = build(policy_iterations=3, auxiliary_minibatches=4)
    batches, _ = iterate(algorithm, 2)
    phase = algorithm._phase.joined()
    part = {key: value[8:] for key, value in phase.items()}
    assert torch.equal(
        part["memory"].reshape(4, 2, *part["memory"].shape[1:])[:, 0], batches[1]["memory"][:, 0]
    )
    assert part["is_init"][:, 1:].any()


def test_the_first_divergence_is_zero_and_the_auxiliary_head_learns() -> None:
    algorithm = build(policy_iterations=1, auxiliary_minibatches=2, auxiliary_epochs=3)
    _, [metrics] = iterate(algorithm, 1)
    assert metrics["aux/kl_first"] == 0.0
    assert metrics["aux/kl_last"] > 0.0
    algorithm = build(policy_iterations=9)
    iterate(algorithm, 1)
    before = parameters(algorithm)
    algorithm.auxiliary_update()
    names = changed(before, parameters(algorithm))
    for part in ("auxiliary_head", "memory.cells.0", "memory.cells.1", "value_head", "encoder"):
        assert any(name.startswith(part) for name in names), part


def test_auxiliary_values_follow_the_memory_through_resets() -> None:
    algorithm = build(policy_iterations=9)
    batch = iterate(algorithm, 2)[0][1]
    with torch.no_grad():
        _, expected, _ = stepwise(algorithm.model, batch)
        _, auxiliary, value = algorithm.model.auxiliary(
            batch["observation"], batch["memory"][:, 0], batch["is_init"].squeeze(-1)
        )
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
    assert auxiliary.shape == value.shape
    assert not torch.allclose(auxiliary, value)


def test_detached_the_value_loss_leaves_the_memory_alone_in_the_policy_phase() -> None:
    algorithm = build(
        critic_memory="shared", architecture="detach", policy_iterations=9, value_epochs=1
    )
    iterate(algorithm, 1, update=False)
    value = algorithm.model.value(torch.randn(2, 5, 3))
    memory = list(algorithm.model.memory.parameters())
    assert all(each is None for each in torch.autograd.grad(value.sum(), memory, allow_unused=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"critic_memory": "shared"}, "critic_memory must be 'shared' with architecture"),
        ({"architecture": "shared"}, "critic_memory must be 'shared' with architecture"),
        ({"auxiliary_minibatches": 17}, "at most the 16 sequences of a phase"),
        ({"sequence_length": 5}, "sequence_length must divide num_steps"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(**changes)
