"""The library computes what the reference scripts do: abstractions do not change mathematics.

Both start from the same parameters and learn from the same rollout in the same order. They are not
equal bit for bit: the scripts use TorchRL's losses and GAE and torch's Adam, the library its own
shorter arithmetic, so that every number is rounded a little differently.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_training.contrib.recurrent_ppo import RecurrentPPO
from rl_training.optim import GradientStep
from rl_training.recipes.ppg import PPG
from rl_training.recipes.ppo import PPO
from tests.test_reference_scripts import load_script

ADVANTAGE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}
"""The library adds advantages up in float64, TorchRL in float32: some roundings of 6e-8 of values
up to 60. An advantage that is a small difference of such values keeps the absolute error."""
FIRST_LOSS: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-6}
"""With equal parameters: a few roundings of 6e-8. The policy's loss and the divergence are means of
numbers near 1 that cancel to near 0, and keep the absolute error."""
LATER_LOSS: dict[str, Any] = {"rtol": 3e-5, "atol": 1e-6}
"""What the differences of the parameters (below) make of it."""
DIVERGENCE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-7}
"""Sums of p (log p - log q), each rounded by 6e-8, that are 4e-4 at most."""
PARAMETERS: dict[str, Any] = {"rtol": 1e-5, "atol": 2e-6}
"""After 20 to 96 steps of Adam, which move each parameter by up to 0.1. Adam's bias correction,
1 - 0.999^t, is a float64 in torch and a float32 tensor in the library, exact to 3e-5 at first: the
movements agree to about 1e-5, a hundredth of what another coefficient or order would change."""

LAYERS = ("layers.0", "layers.1")


class Twin(NamedTuple):
    """A script's networks and losses, beside a library's algorithm with the same parameters."""

    script: ModuleType
    algorithm: Any
    actor: Any
    critic: Any
    loss_module: Any
    optimizer: torch.optim.Adam

    def update(self, batch: TensorDictBase) -> list[dict[str, Tensor]]:
        """Let the script learn from a batch; return the losses of every minibatch."""
        losses: list[dict[str, Tensor]] = []
        hook = self.loss_module.register_forward_hook(
            lambda _module, _inputs, output: losses.append(detached(output))
        )
        self.script.update(batch, self.loss_module, self.optimizer, shuffler(self.algorithm))
        hook.remove()
        return losses


def common_settings(script: ModuleType) -> dict[str, Any]:
    return {
        "num_envs": script.NUM_ENVS,
        "seed": 3,
        "learning_rate": script.LEARNING_RATE,
        "clip_epsilon": script.CLIP_EPSILON,
        "discount": script.DISCOUNT,
        "gae_lambda": script.GAE_LAMBDA,
        "value_coefficient": script.VALUE_COEFFICIENT,
        "entropy_coefficient": script.ENTROPY_COEFFICIENT,
        "max_gradient_norm": script.MAX_GRADIENT_NORM,
        "adam_epsilon": script.ADAM_EPSILON,
        "hidden_sizes": list(getattr(script, "HIDDEN_SIZES", ())),
    }


def make_twin(script: ModuleType, algorithm: Any) -> Twin:
    """Return the script's objects, with the algorithm's parameters copied into them."""
    env = script.make_env(2, seed=0)
    actor, critic = script.make_actor(env), script.make_critic(env)
    env.close()
    loss_module = script.make_loss(actor, critic)
    ppg = isinstance(algorithm, PPG)
    optimizer = script.make_optimizer(*((actor, critic) if ppg else (loss_module,)))
    copy_(parameters(actor, critic), own_parameters(algorithm))
    return Twin(script, algorithm, actor, critic, loss_module, optimizer)


def parameters(*modules: nn.Module) -> list[nn.Parameter]:
    return [each for module in modules for each in module.parameters()]


def own_parameters(algorithm: PPO) -> dict[str, Tensor]:
    """Return the library's parameters by name, in the order in which the scripts make theirs."""
    named = dict(algorithm.model.named_parameters())
    if isinstance(algorithm, RecurrentPPO):
        return {name: named[name] for name in recurrent_names(named)}
    layers = [f"encoder.{layer}" for layer in LAYERS] + ["action_head.layer"]
    names = [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
    names += ["action_head.log_std"] if "action_head.log_std" in named else []
    layers = [f"value_encoder.{layer}" for layer in LAYERS] + ["value_head"]
    names += [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
    return {name: named[name] for name in names}


def recurrent_names(named: Mapping[str, Tensor]) -> list[str]:
    """Return memory, hidden layer and head, of the policy and then of the value function."""
    names = []
    for cell, layers in (
        (0, ("output.layers.0", "action_head.layer")),
        (1, ("value_output.layers.0", "value_head")),
    ):
        names += [name for name in named if name.startswith(f"memory.cells.{cell}.")]
        names += [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
    return names


@torch.no_grad()
def copy_(targets: Sequence[Tensor], sources: Mapping[str, Tensor]) -> None:
    for target, source in zip(targets, sources.values(), strict=True):
        target.copy_(source.reshape(target.shape))


def assert_same_parameters(
    found: dict[str, Tensor], expected: Iterable[Tensor], before: dict[str, Tensor]
) -> None:
    for (name, one), other in zip(found.items(), expected, strict=True):
        assert (one - before[name]).abs().max() > 1e-3, f"{name} has to have learnt something"
        torch.testing.assert_close(one, other.reshape(one.shape), **PARAMETERS, msg=name)


def shuffler(algorithm: PPO) -> torch.Generator:
    """Return a generator that shuffles as the algorithm's is going to."""
    return torch.Generator().set_state(algorithm.generators["minibatch"].get_state())


def recorded(step: GradientStep) -> list[dict[str, Tensor]]:
    """Return a list to which the step adds the losses of each minibatch from now on."""
    losses: list[dict[str, Tensor]] = []
    original = step._loss

    def record(minibatch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        loss, terms = original(minibatch)
        losses.append({**detached(terms), "loss": loss.detach()})
        return loss, terms

    step._loss = record
    return losses


def detached(losses: Any) -> dict[str, Tensor]:
    return {key: value.detach().clone() for key, value in losses.items()}


def snapshot(algorithm: PPO) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in own_parameters(algorithm).items()}


def assert_same_losses(
    found: list[dict[str, Tensor]], expected: list[dict[str, Tensor]], names: Iterable[str]
) -> None:
    assert len(found) == len(expected) > 1
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        tolerance = FIRST_LOSS if index == 0 else LATER_LOSS
        for name in names:
            message = f"{name} of minibatch {index}"
            value = other[name].reshape(-1).mean()  # TorchRL keeps some per sample
            allowed = DIVERGENCE if name == "kl" else tolerance
            torch.testing.assert_close(one[name], value, **allowed, msg=message)


def learn_both(twin: Twin, batch: TensorDictBase) -> TensorDictBase:
    """Let both learn from a batch, compare all there is, and return the script's batch."""
    if isinstance(twin.algorithm, RecurrentPPO):
        theirs = as_the_script_has_it(batch)
    else:
        keys = ("observation", "action", "action_log_prob", "next")
        theirs = batch.select(*keys, inplace=False).clone()
    twin.script.compute_advantages(theirs, twin.critic)
    expected = twin.update(theirs)
    found = recorded(twin.algorithm._step)
    before = snapshot(twin.algorithm)
    twin.algorithm.update(batch)
    for key in ("state_value", "advantage", "value_target"):
        torch.testing.assert_close(batch[key], theirs[key], **ADVANTAGE, msg=key)
    names = ("loss_objective", "loss_critic", "loss_entropy", "entropy", "clip_fraction")
    assert_same_losses(found, expected, names)
    assert_same_parameters(
        own_parameters(twin.algorithm), parameters(twin.actor, twin.critic), before
    )
    return theirs


def ends(batch: TensorDictBase) -> tuple[int, int]:
    """Return how many episodes of a batch were terminated and how many were cut off."""
    return int(batch["next", "terminated"].sum()), int(batch["next", "truncated"].sum())


@pytest.mark.parametrize("progress", [0.0, 0.25])
def test_ppo_on_cartpole(progress: float) -> None:
    script = load_script("ppo_cartpole")
    algorithm = PPO(
        script.ENV_ID,
        **common_settings(script),
        env_kwargs={"max_episode_steps": 15},  # so that episodes are cut off too
        num_steps=script.NUM_STEPS,
        num_epochs=script.NUM_EPOCHS,
        minibatch_size=script.MINIBATCH_SIZE,
        learning_rate_schedule="linear",
        clip_schedule="linear",
        total_timesteps=1024,
    )
    twin = make_twin(script, algorithm)
    batch = next(iter(algorithm.collector()))
    assert min(ends(batch)) > 2
    algorithm.global_step = int(progress * 1024)
    script.set_schedules(progress, twin.loss_module, twin.optimizer)
    learn_both(twin, batch)


def test_ppo_on_pendulum() -> None:
    script = load_script("ppo_pendulum")
    algorithm = PPO(
        script.ENV_ID,
        **common_settings(script),
        env_kwargs={"max_episode_steps": 30},
        num_steps=64,  # 4 minibatches an epoch, 40 steps in all
        num_epochs=script.NUM_EPOCHS,
        minibatch_size=script.MINIBATCH_SIZE,
    )
    twin = make_twin(script, algorithm)
    batch = next(iter(algorithm.collector()))
    assert ends(batch) == (0, 8)
    assert batch["action"].abs().max() > 2, "actions are to be stored as they were sampled"
    learn_both(twin, batch)


def test_ppg_on_cartpole_with_its_auxiliary_phase() -> None:
    script = load_script("ppg_cartpole")
    # The auxiliary phase begins where the divergence and its gradient are 0 but for rounding, of
    # 1e-8. Adam with the script's epsilon, 1e-8, makes steps of a third of the learning rate of it.
    script.ADAM_EPSILON = 1e-4  # type: ignore[attr-defined]
    algorithm = PPG(
        script.ENV_ID,
        **common_settings(script),
        env_kwargs={"max_episode_steps": 15},
        num_steps=32,
        minibatch_size=script.NUM_ENVS * 32 // script.NUM_POLICY_MINIBATCHES,
        policy_iterations=99,  # the auxiliary phase is called by hand
        policy_epochs=script.NUM_POLICY_EPOCHS,
        value_epochs=script.NUM_POLICY_EPOCHS,
        auxiliary_epochs=script.NUM_AUXILIARY_EPOCHS,
        auxiliary_minibatches=script.NUM_AUXILIARY_MINIBATCHES,
        auxiliary_learning_rate=script.LEARNING_RATE,
        clone_coefficient=script.BETA_CLONE,
    )
    twin = make_twin(script, algorithm)
    phase = []
    for batch in itertools.islice(algorithm.collector(), 2):
        assert min(ends(batch)) > 2
        phase.append(learn_both(twin, batch).clone())
        # What comes next begins from equal parameters again.
        copy_(parameters(twin.actor, twin.critic), own_parameters(algorithm))

    auxiliary_head = script.make_auxiliary_head()
    model = algorithm.model
    heads = dict(model.auxiliary_head.named_parameters(prefix="auxiliary_head"))
    copy_(parameters(auxiliary_head), heads)
    optimizer = script.make_optimizer(twin.actor, auxiliary_head, twin.critic)
    expected = script.auxiliary_update(
        phase, twin.actor, auxiliary_head, twin.critic, optimizer, shuffler(algorithm)
    )
    found = recorded(algorithm._auxiliary_step)
    before = {**snapshot(algorithm), **{name: p.detach().clone() for name, p in heads.items()}}
    algorithm.auxiliary_update()

    assert_same_losses(found, expected, ("kl", "value_loss", "true_value_loss"))
    assert_same_parameters(
        {**own_parameters(algorithm), **heads},
        parameters(twin.actor, twin.critic, auxiliary_head),
        before,
    )


def as_the_script_has_it(batch: TensorDictBase) -> TensorDictBase:
    """Return a batch with the state cut into the script's four keys."""
    keys = ("observation", "action", "action_log_prob", "is_init", "next")
    theirs = batch.select(*keys, inplace=False).clone()
    names = ("policy_h", "policy_c", "value_h", "value_c")
    for number, name in enumerate(names):
        theirs[name] = batch["memory"][:, :, number : number + 1]
        theirs["next", name] = batch["next", "memory"][:, :, number : number + 1]
    return theirs


def test_recurrent_ppo_on_cartpole_without_velocities() -> None:
    script = load_script("recurrent_ppo_cartpole")
    algorithm = RecurrentPPO(
        "CartPoleNoVel-v1",
        **common_settings(script),
        env_kwargs={"max_episode_steps": 15},
        memory_size=script.MEMORY_SIZE,
        output_sizes=[script.OUTPUT_SIZE],
        num_steps=script.NUM_STEPS,
        num_epochs=script.NUM_EPOCHS,
        minibatch_size=4 * script.NUM_STEPS,  # two minibatches an epoch
    )
    script.MINIBATCH_ENVS = 4  # type: ignore[attr-defined]
    twin = make_twin(script, algorithm)
    batches = iter(algorithm.collector())
    next(batches)
    batch = next(batches)
    assert min(ends(batch)) > 2
    assert batch["memory"][:, 0].abs().max() > 0, "the rollout has to begin inside episodes"
    learn_both(twin, batch)
