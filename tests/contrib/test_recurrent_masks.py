"""Masks of legal actions in policies with memory: of every step, and none of what is padded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical

from rl_training.data.recurrent_rollout_buffer import padded
from tests.recipes.masked_environments import Masked, counts_of
from tests.recipes.runs import iterate, make

KINDS = ("Discrete", "MultiDiscrete")


def build(name: str, kind: str, **options: Any) -> Any:
    maker = lambda: Masked("info", kind)  # noqa: E731  each environment a new one
    return make(name, maker, action_masks="info", num_envs=2, hidden_sizes=[16], **options)


def parts(values: Tensor, kind: str) -> tuple[Tensor, ...]:
    return torch.split(values, counts_of(kind), -1)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_evaluated_by_the_legal_actions_of_every_step(kind: str) -> None:
    algorithm = build("recurrent_ppo", kind, sequence_length=None)
    (batch,), _ = iterate(algorithm, 1, update=False)
    model = algorithm.model
    mask = model.mask_columns.of(batch["observation"]).bool()
    features, *_ = model.sequence(
        batch["observation"], batch["memory"][:, 0], batch["is_init"].squeeze(-1)
    )
    raw = model.action_head.layer(features[..., : -mask.shape[-1]])
    raw = raw.masked_fill(~mask, -torch.inf)
    actions = batch["action"].reshape(2, 64 // 2, -1).unbind(-1)
    expected = sum(
        Categorical(logits=logits, validate_args=False).log_prob(action)  # type: ignore[no-untyped-call]
        for logits, action in zip(parts(raw, kind), actions, strict=True)
    )
    torch.testing.assert_close(batch["action_log_prob"], expected)
    algorithm.close()


def losses(algorithm: Any, minibatch: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
    terms = algorithm.loss_module.terms(minibatch)
    loss = terms["loss_objective"] + terms["loss_critic"] + terms["loss_entropy"]
    return loss.detach(), list(torch.autograd.grad(loss, list(algorithm.model.parameters())))


@pytest.mark.parametrize("kind", KINDS)
def test_padding_has_no_mask_and_touches_nothing(kind: str) -> None:
    algorithm = build("recurrent_ppo", kind, entropy_coefficient=0.01)
    (batch,), _ = iterate(algorithm, 1, update=False)
    sequences = algorithm.advantages(batch)
    expected, gradients = losses(algorithm, sequences)
    count = len(sequences["is_init"])
    filled = padded(sequences, count + 1)
    for value in filled.values():
        if value.is_floating_point():
            value[count] = torch.nan
    found, others = losses(algorithm, filled)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(others, gradients)
    algorithm.close()


@pytest.mark.parametrize("kind", KINDS)
def test_the_auxiliary_divergence_is_over_the_legal_actions(kind: str) -> None:
    algorithm = build("recurrent_ppg", kind)
    _, metrics = iterate(algorithm, 2)
    assert metrics[1]["aux/kl_first"] == 0
    assert 0 < metrics[1]["aux/kl_last"] < 1
    loss = algorithm.auxiliary_loss
    (batch,), _ = iterate(algorithm, 1, update=False)
    given = {
        "observation": batch["observation"],
        "is_init": batch["is_init"].squeeze(-1),
        "memory": batch["memory"][:, 0],
        "value_target": batch["state_value"].squeeze(-1),
    }
    new = loss.distribution(given)
    old = tuple(parameter + torch.randn_like(parameter) for parameter in new)
    given.update(zip(loss.old_parameter_keys, old, strict=True))
    mask = algorithm.model.mask_columns.of(batch["observation"]).bool()
    expected = torch.zeros(batch.shape)
    for before, after, legal in zip(
        *(parts(each, kind) for each in (old[0], new[0], mask)), strict=True
    ):
        logs = [each.masked_fill(~legal, -torch.inf).log_softmax(-1) for each in (before, after)]
        difference = torch.where(legal, logs[0] - logs[1], 0.0)
        expected += (logs[0].exp() * difference).sum(-1)
    torch.testing.assert_close(loss.terms(given)["kl"], expected.mean())
    algorithm.close()
