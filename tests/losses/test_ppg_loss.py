"""The auxiliary loss and its gradients against an independent reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from rl_training.losses.ppg import PPGAuxiliaryLoss, ppg_auxiliary_loss
from rl_training.models.actor_critic import Architecture, MLPPPGModel
from tests.losses.batches import gradients, make_batch, make_model
from tests.reference_ppg import auxiliary_loss, categorical_kl, normal_kl

BETA = 3.0


def make_case(kind: str, architecture: Architecture) -> tuple[Any, dict[str, Tensor]]:
    """Return a model and a minibatch that holds another policy's distribution."""
    model = make_model(kind, architecture=architecture, cls=MLPPPGModel)
    batch = make_batch(model, kind)
    old = make_model(kind, architecture=architecture, cls=MLPPPGModel, seed=1)
    loss = PPGAuxiliaryLoss(model, clone_coefficient=BETA, true_value_coefficient=1.0)
    with torch.no_grad():
        parameters = old.distribution(batch["observation"])
    batch.update(zip(loss.old_parameter_keys, parameters, strict=True))
    return model, batch


def reference_kl(kind: str, model: MLPPPGModel, batch: dict[str, Tensor]) -> Tensor:
    new = model.distribution(batch["observation"])
    if kind == "categorical":
        return categorical_kl(batch["old_logits"], new[0])
    return normal_kl(batch["old_loc"], batch["old_scale"].exp(), new[0], new[1].exp())


@pytest.mark.parametrize("architecture", ["dual", "detach", "shared"])
@pytest.mark.parametrize("kind", ["categorical", "gaussian", "gsde"])
def test_loss_and_gradients_equal_the_reference(kind: str, architecture: Architecture) -> None:
    model, batch = make_case(kind, architecture)
    loss = PPGAuxiliaryLoss(model, clone_coefficient=BETA, true_value_coefficient=1.0)
    terms = loss.terms(batch)
    kl = reference_kl(kind, model, batch)
    _, auxiliary_value, value = model.auxiliary(batch["observation"])
    expected = auxiliary_loss(kl, auxiliary_value, value, batch["value_target"], beta_clone=BETA)
    torch.testing.assert_close(terms["loss_auxiliary"], expected)
    torch.testing.assert_close(terms["kl"], kl.mean().detach())
    torch.testing.assert_close(
        gradients(terms["loss_auxiliary"], model), gradients(expected, model), rtol=1e-9, atol=1e-11
    )
    assert kl.mean() > 0.01


@pytest.mark.parametrize("architecture", ["dual", "detach", "shared"])
def test_values_are_those_of_their_heads(architecture: Architecture) -> None:
    model, batch = make_case("categorical", architecture)
    parameters, auxiliary_value, value = model.auxiliary(batch["observation"])
    features = model.encoder(batch["observation"])
    own = model.encoder if model.value_encoder is None else model.value_encoder
    torch.testing.assert_close(auxiliary_value, model.auxiliary_head(features).squeeze(-1))
    torch.testing.assert_close(value, model.value_head(own(batch["observation"])).squeeze(-1))
    torch.testing.assert_close(parameters[0], model.action_head.layer(features))


def test_detached_only_the_auxiliary_value_trains_the_encoder() -> None:
    model, batch = make_case("categorical", "detach")
    _, auxiliary_value, value = model.auxiliary(batch["observation"])
    assert gradients(auxiliary_value.sum(), model)["encoder.layer.weight"].abs().max() > 0
    assert gradients(value.sum(), model)["encoder.layer.weight"].abs().max() == 0
    assert gradients(value.sum(), model)["value_head.weight"].abs().max() > 0


def test_every_part_worked_by_hand() -> None:
    parts = ppg_auxiliary_loss(
        {
            "returns": torch.tensor([1.0, 3.0]),
            "aux_values": torch.tensor([0.0, 3.0]),  # 0.5 * (1 + 0) / 2
            "new_values": torch.tensor([3.0, 5.0]),  # 0.5 * (4 + 4) / 2
            "kl": torch.tensor([0.1, 0.3]),
        },
        beta_clone=10.0,
        vf_true_coef=0.5,
    )
    expected = {"aux_value_loss": 0.25, "true_value_loss": 2.0, "kl": 0.2, "loss": 0.25 + 2.0 + 1.0}
    assert {key: part.item() for key, part in parts.items()} == pytest.approx(expected)


def test_the_parts_are_reported_detached_under_their_names() -> None:
    model, batch = make_case("gaussian", "dual")
    loss = PPGAuxiliaryLoss(model, clone_coefficient=BETA, true_value_coefficient=0.5)
    result = loss(TensorDict(batch, [64]))
    assert result["loss_auxiliary"].requires_grad
    assert not any(result[key].requires_grad for key in ("kl", "value_loss", "true_value_loss"))
    total = result["value_loss"] + BETA * result["kl"] + 0.5 * result["true_value_loss"]
    torch.testing.assert_close(result["loss_auxiliary"].detach(), total)
    _, auxiliary_value, value = model.auxiliary(batch["observation"])
    for key, prediction in (("value_loss", auxiliary_value), ("true_value_loss", value)):
        expected = 0.5 * (prediction - batch["value_target"]).square().mean()
        torch.testing.assert_close(result[key], expected.detach())


def test_the_divergence_is_of_the_old_policy_from_the_new_one_and_not_the_reverse() -> None:
    model, batch = make_case("gaussian", "dual")
    loss = PPGAuxiliaryLoss(model, clone_coefficient=BETA, true_value_coefficient=1.0)
    new = model.distribution(batch["observation"])
    reverse = normal_kl(new[0], new[1].exp(), batch["old_loc"], batch["old_scale"].exp()).mean()
    assert (loss.terms(batch)["kl"] - reverse).abs() > 0.01
