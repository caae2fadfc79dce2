"""The lean loss gives every term and every gradient of TorchRL's loss that it stands in for."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.objectives import ClipPPOLoss

from rl_training.losses.ppo import LeanClipPPOLoss
from rl_training.models.actor_critic import ActorCritic, Architecture
from tests.losses.batches import gradients, make_batch, make_model

assert_near = functools.partial(torch.testing.assert_close, rtol=1e-7, atol=1e-9)
"""Not closer: TorchRL bounds the advantages' deviation from below where the lean loss adds 1e-8."""

TERMS = ("loss_objective", "loss_critic", "loss_entropy")
CLIP_EPSILON, ENTROPY_COEFFICIENT, VALUE_COEFFICIENT = 0.25, 0.03125, 0.75
"""TorchRL keeps them in float32 buffers, in which these are exact."""

COLUMNS = ("advantage", "value_target", "state_value")


def make_loss(
    model: ActorCritic, *, value_clip: float | None = None, normalize: bool = True
) -> LeanClipPPOLoss:
    return LeanClipPPOLoss(
        model,
        clip_epsilon=CLIP_EPSILON,
        entropy_coefficient=ENTROPY_COEFFICIENT,
        value_coefficient=VALUE_COEFFICIENT,
        value_clip_epsilon=value_clip,
        normalize_advantage=normalize,
    ).double()


def for_torchrl(batch: dict[str, Tensor]) -> TensorDict:
    """Return a batch in TorchRL's shapes: values and advantages ``[M, 1]``."""
    shaped = {key: t.unsqueeze(-1) if key in COLUMNS else t for key, t in batch.items()}
    return TensorDict(shaped, [len(batch["advantage"])])


def outside_torchrl(
    model: ActorCritic, *, value_clip: float | None, normalize: bool
) -> ClipPPOLoss:
    """Return TorchRL's own loss on the model's modules, built here and not by the lean one."""
    lean = make_loss(model)
    return ClipPPOLoss(
        lean.actor_network,
        lean.critic_network,
        clip_epsilon=CLIP_EPSILON,
        entropy_coeff=ENTROPY_COEFFICIENT,
        critic_coeff=VALUE_COEFFICIENT,
        clip_value=value_clip,
        loss_critic_type="l2",
        normalize_advantage=normalize,
        functional=False,
    ).double()


@pytest.mark.parametrize(
    ("kind", "architecture", "value_clip", "normalize"),
    list(
        itertools.product(
            ("categorical", "gaussian", "gsde"), ("dual", "shared"), (None, 0.25), (True, False)
        )
    ),
)
def test_terms_and_gradients_equal_torchrl(
    kind: str, architecture: Architecture, value_clip: float | None, normalize: bool
) -> None:
    model = make_model(kind, architecture=architecture)
    batch = make_batch(model, kind)
    lean = make_loss(model, value_clip=value_clip, normalize=normalize)
    own = lean.terms(batch)
    parent = ClipPPOLoss.forward(lean, for_torchrl(batch))
    other = outside_torchrl(model, value_clip=value_clip, normalize=normalize)(for_torchrl(batch))
    assert 0 < own["clip_fraction"] < 1
    for term, expected in itertools.product(TERMS, (parent, other)):
        assert_near(own[term], expected[term].reshape(()))
        assert_near(
            gradients(own[term], model),
            gradients(expected[term].reshape(()), model),
        )
    torch.testing.assert_close(own["entropy"], parent["entropy"])
    torch.testing.assert_close(own["clip_fraction"].double(), parent["clip_fraction"])


def test_forward_returns_the_terms_as_a_tensordict() -> None:
    model = make_model("categorical")
    batch = make_batch(model, "categorical")
    loss = make_loss(model)
    result, terms = loss(TensorDict(batch, [64])), loss.terms(batch)
    assert set(result.keys()) == {*TERMS, "entropy", "approx_kl", "clip_fraction"} == set(terms)
    assert all(torch.equal(result[key], terms[key]) for key in terms)


def test_metrics_are_detached_and_a_new_policy_has_no_divergence() -> None:
    model = make_model("gaussian")
    batch = make_batch(model, "gaussian")
    loss = make_loss(model)
    terms = loss.terms(batch)
    assert not any(terms[key].requires_grad for key in ("entropy", "approx_kl", "clip_fraction"))
    log_ratio = (
        model.evaluate_actions(batch["observation"], batch["action"])[0] - batch["action_log_prob"]
    )
    expected = (log_ratio.exp() - 1 - log_ratio).mean()
    torch.testing.assert_close(terms["approx_kl"], expected.detach())
    with torch.no_grad():
        batch["action_log_prob"] = model.evaluate_actions(batch["observation"], batch["action"])[0]
    assert loss.terms(batch)["approx_kl"] == 0.0
    assert loss.terms(batch)["clip_fraction"] == 0.0


def test_the_phases_own_terms_are_those_of_the_whole() -> None:
    model = make_model("categorical")
    batch = make_batch(model, "categorical")
    loss = make_loss(model, value_clip=0.25)
    whole = loss.terms(batch)
    parts = {**loss.policy_terms(batch), **loss.value_terms(batch)}
    assert set(parts) == set(whole)
    assert all(torch.equal(parts[key], whole[key]) for key in whole)


def test_the_clipping_interval_is_a_buffer_that_a_schedule_fills() -> None:
    model = make_model("categorical")
    batch = make_batch(model, "categorical")
    loss = make_loss(model)
    before = loss.terms(batch)
    loss.clip_epsilon.fill_(0.01)
    after = loss.terms(batch)
    assert after["clip_fraction"] > before["clip_fraction"]
    assert after["loss_objective"] != before["loss_objective"]
    expected = ClipPPOLoss.forward(loss, for_torchrl(batch))["loss_objective"]
    torch.testing.assert_close(after["loss_objective"], expected)


@pytest.mark.parametrize("kind", ["categorical", "gaussian", "gsde"])
def test_the_whole_batch_may_come_in_any_order(kind: str) -> None:
    model = make_model(kind, architecture="shared")
    batch = make_batch(model, kind, size=60)
    # Environments of 12 steps each change places.
    order = torch.arange(60).reshape(5, 12)[torch.tensor([3, 0, 4, 1, 2])].flatten()
    permuted = {key: tensor[order] for key, tensor in batch.items()}
    loss = make_loss(model, value_clip=0.25)
    one, other = loss.terms(batch), loss.terms(permuted)
    for term in TERMS:
        torch.testing.assert_close(one[term], other[term], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(
            gradients(one[term], model), gradients(other[term], model), rtol=1e-10, atol=1e-12
        )
