"""The library's gradient steps do what the reference scripts do with TorchRL's losses and torch's
Adam: equal losses, gradients (Adam's first moments hold them), parameters and targets.

Both start from the same parameters and learn from the same transitions with the same noise, in
float64.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn

from rl_training import DQN, SAC, TD3
from rl_training.models.q_networks import QEnsemble
from tests.test_reference_scripts import load_script

BATCH, STEPS = 32, 5
LOSS: dict[str, Any] = {"rtol": 0, "atol": 1e-10}
MOMENT: dict[str, Any] = {"rtol": 0, "atol": 1e-11}
PARAMETER: dict[str, Any] = {"rtol": 0, "atol": 1e-11}


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def settings(script: ModuleType) -> dict[str, Any]:
    return {
        "num_envs": 1,
        "seed": 3,
        "hidden_sizes": list(script.HIDDEN_SIZES),
        "learning_rate": script.LEARNING_RATE,
        "discount": script.DISCOUNT,
        "minibatch_size": BATCH,
        "replay_capacity": 64,
    }


def transitions(size: int, action: Tensor, discount: float) -> tuple[dict[str, Tensor], TensorDict]:
    """Return a minibatch for the library and the same for TorchRL, a third of it terminated."""
    draws = torch.Generator().manual_seed(0)
    terminated = torch.rand(BATCH, generator=draws) < 0.3
    truncated = torch.rand(BATCH, generator=draws) < 0.3
    ours = {
        "observation": torch.randn(BATCH, size, generator=draws),
        "action": action,
        "reward": torch.randn(BATCH, generator=draws),
        "next_observation": torch.randn(BATCH, size, generator=draws),
        "terminated": terminated,
        "discount": torch.full((BATCH,), discount),
    }
    following = {
        "observation": ours["next_observation"],
        "reward": ours["reward"].unsqueeze(-1),
        "terminated": terminated.unsqueeze(-1),
        "done": (terminated | truncated).unsqueeze(-1),
    }
    theirs = {"observation": ours["observation"], "action": action, "next": following}
    return ours, TensorDict(theirs, batch_size=[BATCH])


def box_actions() -> Tensor:
    return torch.rand(BATCH, 1, generator=torch.Generator().manual_seed(1)) * 2 - 1


def linears(module: nn.Module) -> list[nn.Linear]:
    return [each for each in module.modules() if isinstance(each, nn.Linear)]


@torch.no_grad()
def copy_(targets: Iterable[Tensor], sources: Iterable[Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def leaves(parameters: Any) -> list[Tensor]:
    """Return the tensors of a TensorDict of parameters: weight and bias, layer by layer."""
    found = dict(parameters.flatten_keys(".").items())
    layers = sorted({name.rpartition(".")[0] for name in found})
    return [found[f"{layer}.{kind}"] for layer in layers for kind in ("weight", "bias")]


def own(network: nn.Module) -> list[Tensor]:
    """Return the library's parameters in the order and shape of `leaves`."""
    if isinstance(network, QEnsemble):
        pairs = zip(network.weights, network.biases, strict=True)
        return [each for w, b in pairs for each in (w, b.squeeze(1))]
    return [each for layer in linears(network) for each in (layer.weight, layer.bias)]


def own_moments(algorithm: Any, name: str, network: nn.Module) -> list[Tensor]:
    """Return the first moments of one optimiser in the order and shape of `own`."""
    optimizer = algorithm.optimizers[name]
    sizes = [parameter.numel() for parameter in optimizer.parameters]
    parts = optimizer.first_moment.split(sizes)
    moments = {id(p): m.view(p.shape) for p, m in zip(optimizer.parameters, parts, strict=True)}
    if isinstance(network, QEnsemble):
        pairs = zip(network.weights, network.biases, strict=True)
        return [each for w, b in pairs for each in (moments[id(w)], moments[id(b)].squeeze(1))]
    return [moments[id(each)] for each in own(network)]


def assert_close(found: Iterable[Tensor], expected: Iterable[Tensor], **allowed: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.detach(), other.detach(), **allowed)


def moments(optimizer: torch.optim.Adam, parameters: Iterable[Tensor]) -> list[Tensor]:
    return [optimizer.state[each]["exp_avg"] for each in parameters]


@torch.no_grad()
def shake(parameters: Iterable[Tensor]) -> None:
    """Make targets other than what they follow."""
    draws = torch.Generator().manual_seed(5)
    for parameter in parameters:
        parameter.add_(0.1 * torch.randn(parameter.shape, generator=draws))


def assert_learnt(before: list[Tensor], now: list[Tensor]) -> None:
    for old, new in zip(before, now, strict=True):
        assert (old - new).abs().max() > 1e-4, "all has to have learnt something"


def test_dqn() -> None:
    script = load_script("dqn_cartpole")
    ours = DQN(script.ENV_ID, max_gradient_norm=script.MAX_GRADIENT_NORM, **settings(script))
    env = script.make_env(1, seed=0)
    loss_module = script.make_loss(script.make_actor(env))
    env.close()
    optimizer, updater = script.make_optimizer(loss_module), script.make_target_updater(loss_module)
    trained = leaves(loss_module.value_network_params)
    target = leaves(loss_module.target_value_network_params)
    copy_(trained, own(ours.model))
    shake(own(ours.target))
    copy_(target, own(ours.target))
    before = [each.clone() for each in trained]
    action = torch.randint(2, (BATCH,), generator=torch.Generator().manual_seed(1))
    mine, theirs = transitions(4, action, script.DISCOUNT)
    for _ in range(STEPS):
        expected = script.gradient_step(theirs, loss_module, optimizer)
        found = ours._gradient_step(mine)
        torch.testing.assert_close(found["loss/q"], expected["loss"], **LOSS)
        moments_ = own_moments(ours, "q", ours.model)
        assert_close(moments_, moments(optimizer, trained), **MOMENT)
        assert_close(own(ours.model), trained, **PARAMETER)
    assert_learnt(before, trained)
    updater.step()
    updater.step()
    assert_close(target, trained, rtol=0, atol=0)


def test_sac() -> None:
    script = load_script("sac_pendulum")
    ours = SAC(script.ENV_ID, tau=script.TAU, **settings(script))
    env = script.make_env(1, seed=0)
    loss_module = script.make_loss(script.make_actor(env), script.make_critics(env))
    env.close()
    optimizers = script.make_optimizers(loss_module)
    targets = script.SoftUpdate(loss_module, tau=script.TAU)
    parts = {
        "actor": (ours.model.actor, leaves(loss_module.actor_network_params)),
        "critic": (ours.model.critic, leaves(loss_module.qvalue_network_params)),
        "target": (ours.target, leaves(loss_module.target_qvalue_network_params)),
    }
    shake(own(ours.target))
    for network, parameters in parts.values():
        copy_(parameters, own(network))
    before = [each.clone() for _, parameters in parts.values() for each in parameters]
    mine, theirs = transitions(3, box_actions(), script.DISCOUNT)
    for step in range(STEPS):
        torch.manual_seed(step)
        expected = script.update(theirs, loss_module, optimizers, targets)
        torch.manual_seed(step)
        zeros = torch.zeros(2, BATCH, 1)
        next_noise, noise = (torch.normal(each, torch.ones(BATCH, 1)) for each in zeros)
        found = ours._gradient_step({**mine, "noise": noise, "next_noise": next_noise})
        for name, other in {
            "loss/critic": "loss_critic",
            "loss/actor": "loss_actor",
            "loss/temperature": "loss_alpha",
            "train/entropy_coefficient": "alpha",
            "train/entropy": "entropy",
        }.items():
            torch.testing.assert_close(found[name], expected[other], **LOSS, msg=name)
        for name in ("actor", "critic"):
            network, parameters = parts[name]
            theirs_ = moments(getattr(optimizers, name), parameters)
            assert_close(own_moments(ours, name, network), theirs_, **MOMENT)
        for network, parameters in parts.values():
            assert_close(own(network), parameters, **PARAMETER)
        torch.testing.assert_close(ours.model.log_alpha, loss_module.log_alpha, **PARAMETER)
    assert_learnt(before, [each for _, parameters in parts.values() for each in parameters])


def test_td3() -> None:
    script = load_script("td3_pendulum")
    ours = TD3(
        script.ENV_ID,
        tau=script.TAU,
        policy_delay=script.POLICY_DELAY,
        target_policy_noise=script.TARGET_POLICY_NOISE,
        target_noise_clip=script.TARGET_NOISE_CLIP,
        **settings(script),
    )
    env = script.make_env(1, seed=0)
    loss_module = script.make_loss(script.make_actor(env), script.make_critics(env))
    env.close()
    optimizers = script.make_optimizers(loss_module)
    targets = script.SoftUpdate(loss_module, tau=script.TAU)
    parts = {
        "actor": (ours.model.actor, leaves(loss_module.actor_network_params)),
        "critic": (ours.model.critic, leaves(loss_module.qvalue_network_params)),
        "target actor": (ours.target.actor, leaves(loss_module.target_actor_network_params)),
        "target critic": (ours.target.critic, leaves(loss_module.target_qvalue_network_params)),
    }
    shake(own(ours.target.critic))
    shake(own(ours.target.actor))
    for network, parameters in parts.values():
        copy_(parameters, own(network))
    before = [each.clone() for _, parameters in parts.values() for each in parameters]
    mine, theirs = transitions(3, box_actions(), script.DISCOUNT)
    for step in range(1, STEPS + 1):
        delayed = step % script.POLICY_DELAY == 0
        torch.manual_seed(step)
        expected = script.update(theirs, loss_module, optimizers, targets, delayed=delayed)
        torch.manual_seed(step)
        found = ours._take({**mine, "noise": torch.randn_like(mine["action"])})
        ours.gradient_steps += 1
        for name in ("critic", "actor") if delayed else ("critic",):
            one, other = found[f"loss/{name}"], expected[f"loss_{name}"]
            torch.testing.assert_close(one, other, **LOSS, msg=name)
            network, parameters = parts[name]
            theirs_ = moments(getattr(optimizers, name), parameters)
            assert_close(own_moments(ours, name, network), theirs_, **MOMENT)
        for network, parameters in parts.values():
            assert_close(own(network), parameters, **PARAMETER)
    assert_learnt(before, [each for _, parameters in parts.values() for each in parameters])
