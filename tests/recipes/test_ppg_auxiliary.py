"""PPG's auxiliary phase: what it computes, on what, and what it leaves alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.errors import UserError
from rl_training.recipes.ppg import PPG
from tests.recipes.environments import Identity
from tests.recipes.runs import ENVIRONMENTS, changed, iterate, make_ppg, parameters
from tests.reference_ppg import auxiliary_loss, categorical_kl, normal_kl

ARCHITECTURES = ("dual", "detach", "shared")
LATER = {"policy_iterations": 99}
"""Leaves the auxiliary phase to be run by hand."""


@contextmanager
def watched(algorithm: PPG) -> Iterator[list[tuple[dict[str, Tensor], Tensor]]]:
    """Record copies of what each auxiliary gradient step is given."""
    step: Any = algorithm._auxiliary_step
    seen: list[tuple[dict[str, Tensor], Tensor]] = []

    def record(data: dict[str, Tensor], indices: Tensor) -> Tensor:
        seen.append(({key: value.clone() for key, value in data.items()}, indices.clone()))
        result: Tensor = step(data, indices)
        return result

    record.metric_names = ()  # type: ignore[attr-defined]
    algorithm._auxiliary_step = record  # type: ignore[assignment]
    original = algorithm._auxiliary_metrics
    algorithm._auxiliary_metrics = lambda *_: {}  # type: ignore[method-assign]
    yield seen
    algorithm._auxiliary_step, algorithm._auxiliary_metrics = step, original  # type: ignore[method-assign]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", [*ENVIRONMENTS, "gsde"])
def test_the_first_divergence_of_every_phase_is_exactly_zero_and_later_ones_are_not(
    kind: str, architecture: str
) -> None:
    env = ENVIRONMENTS["box" if kind == "gsde" else kind]
    # Pieces of 256 / 7 samples differ in length, as a kernel's blocks do.
    algorithm = make_ppg(
        env, architecture=architecture, gsde=kind == "gsde", auxiliary_minibatches=7
    )
    _, metrics = iterate(algorithm, 4)
    for phase in (metrics[1], metrics[3]):
        assert phase["aux/kl_first"].item() == 0.0
        assert 0 < phase["aux/kl_last"].item() < 1
        assert 0 < phase["aux/kl"].item() < 1
        assert phase["aux/value_loss"].isfinite()
        assert phase["aux/true_value_loss"].isfinite()


def test_accumulated_gradients_are_those_of_whole_minibatches() -> None:
    """Of 256 samples in 7 minibatches of 3 parts, neither divides evenly."""
    found = []
    for parts in (1, 3):
        algorithm = make_ppg(
            auxiliary_minibatches=7, auxiliary_accumulation=parts, adam_epsilon=1e-3
        )
        _, metrics = iterate(algorithm, 2)
        assert metrics[1]["aux/kl_first"].item() == 0.0
        found.append((parameters(algorithm), metrics[1]["aux/value_loss"]))
    (whole, loss), (split, other_loss) = found
    torch.testing.assert_close(other_loss, loss, rtol=1e-4, atol=0)
    for name, value in whole.items():
        torch.testing.assert_close(split[name], value, rtol=1e-3, atol=2e-4, msg=name)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_every_parameter_is_trained_except_the_standard_deviation(
    kind: str, architecture: str
) -> None:
    algorithm = make_ppg(ENVIRONMENTS[kind], architecture=architecture, **LATER)
    iterate(algorithm, 2)
    before = parameters(algorithm)
    algorithm.auxiliary_update()
    after = parameters(algorithm)
    still = "action_head.log_std"
    assert changed(before, after) | {still} == set(before) | {still}
    if kind == "box":
        # Adam moves a parameter with a steady gradient by the learning rate at each of 16 steps.
        moved = (after[still] - before[still]).abs().max().item()
        assert moved < 0.1 * 16 * algorithm.config.algorithm.auxiliary_learning_rate


@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_the_clone_coefficient_holds_the_policy(kind: str) -> None:
    changes: dict[str, Any] = {
        "auxiliary_learning_rate": 3e-3,
        "auxiliary_epochs": 6,
        "orthogonal_init": False,
        **LATER,
    }
    divergence = {}
    for beta in (0.0, 1e6):
        algorithm = make_ppg(ENVIRONMENTS[kind], clone_coefficient=beta, **changes)
        batches, _ = iterate(algorithm, 2)
        old = copy.deepcopy(algorithm.model)
        algorithm.auxiliary_update()
        observation = torch.cat([batch["observation"].flatten(0, 1) for batch in batches])
        with torch.no_grad():
            head, new = algorithm.model.action_head, algorithm.model.distribution(observation)
            divergence[beta] = head.kl_divergence(old.distribution(observation), new).mean()
    assert 0 < 10 * divergence[1e6] < divergence[0.0]


def reference_gradient(
    algorithm: PPG, observation: Tensor, target: Tensor, *, beta: float
) -> dict[str, Tensor]:
    """Return the auxiliary loss's gradient at the present parameters, all parts computed here."""
    model = copy.deepcopy(algorithm.model)
    features = model.encoder(observation)
    own = features if model.value_encoder is None else model.value_encoder(observation)
    new = model.action_head(features)
    old = [parameter.detach() for parameter in new]
    if len(new) == 1:
        kl = categorical_kl(old[0], new[0])
    else:
        kl = normal_kl(old[0], old[1].exp(), new[0], new[1].exp())
    loss = auxiliary_loss(
        kl,
        model.auxiliary_head(features).squeeze(-1),
        model.value_head(own).squeeze(-1),
        target,
        beta_clone=beta,
    )
    loss.backward()  # type: ignore[no-untyped-call]
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_the_first_gradient_holds_nothing_of_the_policy_phase(kind: str) -> None:
    algorithm = make_ppg(
        ENVIRONMENTS[kind],
        auxiliary_epochs=1,
        auxiliary_minibatches=1,
        clone_coefficient=2.0,
        **LATER,
    )
    batches, _ = iterate(algorithm, 2)
    observation = torch.cat([batch["observation"].flatten(0, 1) for batch in batches])
    target = torch.cat([batch["value_target"].flatten() for batch in batches])
    # A gradient left behind must not matter either.
    for parameter in algorithm.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    expected = reference_gradient(algorithm, observation, target, beta=2.0)
    algorithm.auxiliary_update()
    adam = algorithm.optimizers["auxiliary"]
    # After one step of Adam the first moment is a tenth of the gradient.
    sizes = [parameter.numel() for parameter in adam.parameters]
    found = torch.split(adam.first_moment, sizes)
    by_id = {id(p): 10 * g for p, g in zip(adam.parameters, found, strict=True)}
    assert set(expected) == {name for name, _ in algorithm.model.named_parameters()}
    for name, parameter in algorithm.model.named_parameters():
        torch.testing.assert_close(
            by_id[id(parameter)].view_as(parameter), expected[name], rtol=1e-4, atol=1e-5
        )


def test_value_targets_and_old_policy_stay_the_same_bits_through_the_phase() -> None:
    algorithm = make_ppg(**LATER)
    batches, _ = iterate(algorithm, 3)
    target = torch.cat([batch["value_target"].flatten() for batch in batches])
    observation = torch.cat([batch["observation"].flatten(0, 1) for batch in batches])
    with torch.no_grad():
        logits = algorithm.model.distribution(observation)[0]
    with watched(algorithm) as seen:
        algorithm.auxiliary_update()
    assert len(seen) == 16
    for data, _ in seen:
        assert torch.equal(data["value_target"], target)
        assert torch.equal(data["observation"], observation)
        assert torch.equal(data["old_logits"], seen[0][0]["old_logits"])
    torch.testing.assert_close(seen[0][0]["old_logits"], logits)


def test_every_epoch_shuffles_every_sample_once() -> None:
    algorithm = make_ppg(auxiliary_minibatches=7, auxiliary_epochs=3, **LATER)
    iterate(algorithm, 2)
    with watched(algorithm) as seen:
        algorithm.auxiliary_update()
    epochs = [torch.cat([indices for _, indices in seen[e * 7 : e * 7 + 7]]) for e in range(3)]
    assert all(torch.equal(epoch.sort().values, torch.arange(256)) for epoch in epochs)
    assert not torch.equal(epochs[0], epochs[1])
    assert {len(indices) for _, indices in seen} == {36, 37}


class Pixels(Identity):
    """Observations of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (2, 2), np.uint8)

    def _observe(self) -> Any:
        return (super()._observe() * 200).astype(np.uint8).reshape(2, 2)


def test_stored_observations_keep_their_dtype_and_their_bits() -> None:
    algorithm = make_ppg(ENVIRONMENTS["box"], **LATER)
    (batch,), _ = iterate(algorithm, 1)
    stored = algorithm._phase.joined()["observation"]
    assert stored.dtype == torch.float32
    assert torch.equal(stored, batch["observation"].flatten(0, 1))
    assert (stored != stored.round()).any()
    other = make_ppg(Pixels, **LATER)
    iterate(other, 1)
    assert other._phase.joined()["observation"].dtype == torch.uint8


def test_detached_the_value_loss_leaves_the_encoder_alone_in_the_policy_phase() -> None:
    algorithm = make_ppg(architecture="detach", policy_epochs=1, value_epochs=4, **LATER)
    (batch,), _ = iterate(algorithm, 1, update=False)
    samples = algorithm.advantages(batch)
    before = parameters(algorithm)
    algorithm._value_step(samples, torch.arange(32))
    assert changed(before, parameters(algorithm)) == {"value_head.weight", "value_head.bias"}


def test_the_optimiser_of_the_phase_is_its_own_and_lives_on() -> None:
    algorithm = make_ppg(auxiliary_learning_rate=7e-4)
    iterate(algorithm, 4)
    auxiliary, policy = algorithm.optimizers["auxiliary"], algorithm.optimizers["policy"]
    assert auxiliary.learning_rate.item() == pytest.approx(7e-4)
    assert auxiliary.steps.item() == 2 * 2 * 8  # two phases of two passes over eight minibatches
    assert policy.steps.item() == 4 * 3 * 4
    assert auxiliary.epsilon == policy.epsilon == 1e-8
    assert auxiliary.flat.numel() - policy.flat.numel() == 64 + 1


def test_an_auxiliary_phase_without_data_is_refused() -> None:
    with pytest.raises(UserError, match="no data"):
        make_ppg().auxiliary_update()
