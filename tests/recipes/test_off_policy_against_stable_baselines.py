"""DQN's, SAC's and TD3's updates equal Stable-Baselines3's own training steps, in float64: targets,
losses, every gradient (Adam's first moment holds it) and every parameter after several steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rl_training.models.q_networks import QEnsemble
from rl_training.registry import algorithm_class
from tests.recipes.environments import RandomEnds

BATCH, STEPS, DISCOUNT = 32, 4, 0.9
peers = pytest.importorskip("stable_baselines3", reason="needs the extra 'peers'")


@pytest.fixture(autouse=True)
def double_precision(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from stable_baselines3.common import policies

    # It would convert observations to float32.
    monkeypatch.setattr(policies, "preprocess_obs", lambda observation, *_, **__: observation)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Continuous(RandomEnds):
    def __init__(self) -> None:
        super().__init__(discrete=False)


def theirs_of(name: str, env: type[gymnasium.Env[Any, Any]], **options: Any) -> Any:
    from stable_baselines3.common.logger import configure

    policy = {"net_arch": [12, 10], **options.pop("policy", {})}
    model = getattr(peers, name)(
        "MlpPolicy",
        env(),
        learning_rate=3e-3,
        gamma=DISCOUNT,
        policy_kwargs=policy,
        buffer_size=10,
        device="cpu",
        **options,
    )
    model.set_logger(configure(None, []))
    return model


def ours_of(name: str, env: type[gymnasium.Env[Any, Any]], **options: Any) -> Any:
    return algorithm_class(name)(
        env,
        num_envs=1,
        learning_rate=3e-3,
        discount=DISCOUNT,
        minibatch_size=BATCH,
        hidden_sizes=[12, 10],
        replay_capacity=64,
        **options,
    )


def batch_of(action: Tensor) -> dict[str, Tensor]:
    draws = torch.Generator().manual_seed(0)
    return {
        "observation": torch.randn(BATCH, 3, generator=draws),
        "action": action,
        "reward": torch.randn(BATCH, generator=draws),
        "next_observation": torch.randn(BATCH, 3, generator=draws),
        "terminated": torch.rand(BATCH, generator=draws) < 0.3,
        # Of one, two or three steps.
        "discount": DISCOUNT ** torch.randint(1, 4, (BATCH,), generator=draws).double(),
    }


def give(theirs: Any, batch: dict[str, Tensor]) -> None:
    """Make their replay buffer return ``batch`` for ever."""
    from stable_baselines3.common.type_aliases import ReplayBufferSamples

    samples = ReplayBufferSamples(
        observations=batch["observation"],
        actions=batch["action"].reshape(BATCH, -1),
        next_observations=batch["next_observation"],
        dones=batch["terminated"].double().unsqueeze(-1),
        rewards=batch["reward"].unsqueeze(-1),
        discounts=batch["discount"].unsqueeze(-1),
    )
    theirs.replay_buffer.sample = lambda *_, **__: samples


def linears(module: nn.Module) -> list[nn.Linear]:
    return [each for each in module.modules() if isinstance(each, nn.Linear)]


@torch.no_grad()
def copy_linears(ours: nn.Module, theirs: nn.Module) -> None:
    for mine, other in zip(linears(ours), linears(theirs), strict=True):
        mine.weight.copy_(other.weight)
        mine.bias.copy_(other.bias)


def copy_critics(ours: QEnsemble, theirs: Any) -> None:
    for member, network in enumerate(theirs.q_networks):
        ours.copy_member_(member, linears(network))


def assert_equal_linears(ours: nn.Module, theirs: nn.Module, tolerance: float = 1e-11) -> None:
    for mine, other in zip(linears(ours), linears(theirs), strict=True):
        torch.testing.assert_close(mine.weight, other.weight, rtol=0, atol=tolerance)
        torch.testing.assert_close(mine.bias, other.bias, rtol=0, atol=tolerance)


def assert_equal_critics(ours: QEnsemble, theirs: Any, tolerance: float = 1e-11) -> None:
    for member, network in enumerate(theirs.q_networks):
        pairs = zip(ours.weights, ours.biases, linears(network), strict=True)
        for weight, bias, layer in pairs:
            torch.testing.assert_close(weight[member], layer.weight, rtol=0, atol=tolerance)
            torch.testing.assert_close(bias[member, 0], layer.bias, rtol=0, atol=tolerance)


@torch.no_grad()
def shake(module: nn.Module) -> None:
    """Make targets other than what they follow."""
    draws = torch.Generator().manual_seed(5)
    for parameter in module.parameters():
        parameter.add_(0.1 * torch.randn(parameter.shape, generator=draws))


@pytest.mark.parametrize("limit", [10.0, 0.05])
def test_dqn(limit: float) -> None:
    theirs = theirs_of("DQN", RandomEnds, max_grad_norm=limit)
    ours = ours_of("dqn", RandomEnds, max_gradient_norm=limit)
    shake(theirs.q_net_target)
    copy_linears(ours.model, theirs.q_net)
    copy_linears(ours.target, theirs.q_net_target)
    batch = batch_of(torch.randint(3, (BATCH,), generator=torch.Generator().manual_seed(1)))
    give(theirs, batch)
    for _ in range(STEPS):
        theirs.train(1, BATCH)
        metrics = ours._gradient_step(batch)
        loss = theirs.logger.name_to_value["train/loss"]
        assert metrics["loss/q"].item() == pytest.approx(loss, abs=1e-12)
        moments = theirs.policy.optimizer.state_dict()["state"].values()
        flat = torch.cat([each["exp_avg"].reshape(-1) for each in moments])
        torch.testing.assert_close(ours.optimizers["q"].first_moment, flat, rtol=0, atol=1e-12)
        assert_equal_linears(ours.model, theirs.q_net)


def continuous_batch() -> dict[str, Tensor]:
    return batch_of(torch.rand(BATCH, 2, generator=torch.Generator().manual_seed(1)) * 2 - 1)


@torch.no_grad()
def copy_actor(ours: Any, theirs: Any) -> None:
    """Their two heads are the halves of ours."""
    copy_linears(ours.encoder, theirs.latent_pi)
    for mine, heads in (
        (ours.head.weight, (theirs.mu.weight, theirs.log_std.weight)),
        (ours.head.bias, (theirs.mu.bias, theirs.log_std.bias)),
    ):
        mine.copy_(torch.cat(heads))


def normal(*shape: int) -> Tensor:
    """Draw as `torch.distributions` does, from the process-wide generator."""
    return torch.normal(torch.zeros(shape), torch.ones(shape))


@pytest.mark.parametrize("alpha", ["auto", 0.2])
def test_sac(alpha: str | float) -> None:
    theirs = theirs_of("SAC", Continuous, ent_coef=alpha)
    ours = ours_of("sac", Continuous, entropy_coefficient=None if alpha == "auto" else float(alpha))
    # They add 1e-6 within the logarithm of the tanh's slope; here it is exact.
    theirs.actor.action_dist.epsilon = 0.0
    shake(theirs.critic_target)
    copy_actor(ours.model.actor, theirs.actor)
    copy_critics(ours.model.critic, theirs.critic)
    copy_critics(ours.target, theirs.critic_target)
    batch = continuous_batch()
    give(theirs, batch)
    for step in range(STEPS):
        torch.manual_seed(step)
        theirs.train(1, BATCH)
        torch.manual_seed(step)
        noise = {"noise": normal(BATCH, 2), "next_noise": normal(BATCH, 2)}
        metrics = ours._gradient_step({**batch, **noise})
        logged = theirs.logger.name_to_value
        for mine, other in {
            "loss/critic": "critic_loss",
            "loss/actor": "actor_loss",
            "train/entropy_coefficient": "ent_coef",
            **({"loss/temperature": "ent_coef_loss"} if alpha == "auto" else {}),
        }.items():
            assert metrics[mine].item() == pytest.approx(logged[f"train/{other}"], abs=1e-10)
        assert_equal_critics(ours.model.critic, theirs.critic)
        assert_equal_critics(ours.target, theirs.critic_target)
        assert_equal_linears(ours.model.actor.encoder, theirs.actor.latent_pi)
        mean, log_std = ours.model.actor.head.weight.chunk(2)
        torch.testing.assert_close(mean, theirs.actor.mu.weight, rtol=0, atol=1e-11)
        torch.testing.assert_close(log_std, theirs.actor.log_std.weight, rtol=0, atol=1e-11)
        if alpha == "auto":
            torch.testing.assert_close(ours.model.log_alpha, theirs.log_ent_coef[0])


def test_sac_with_state_dependent_exploration() -> None:
    theirs = theirs_of("SAC", Continuous, use_sde=True, policy={"log_std_init": -1.0})
    ours = ours_of("sac", Continuous, gsde=True, log_std_init=-1.0)
    theirs.actor.action_dist.bijector.epsilon = 0.0
    actor = ours.model.actor
    copy_linears(actor.encoder, theirs.actor.latent_pi)
    copy_linears(actor.head, theirs.actor.mu)
    copy_critics(ours.model.critic, theirs.critic)
    copy_critics(ours.target, theirs.critic_target)
    batch = continuous_batch()
    give(theirs, batch)
    for step in range(STEPS):
        torch.manual_seed(step)
        theirs.train(1, BATCH)
        torch.manual_seed(step)
        matrix = normal(*actor.log_std.shape)
        metrics = ours._gradient_step({**batch, "noise": matrix, "next_noise": matrix})
        loss = theirs.logger.name_to_value["train/actor_loss"]
        assert metrics["loss/actor"].item() == pytest.approx(loss, abs=1e-9)
        assert_equal_critics(ours.model.critic, theirs.critic, 1e-9)
        assert_equal_linears(actor.head, theirs.actor.mu, 1e-9)
        torch.testing.assert_close(actor.log_std, theirs.actor.log_std, rtol=0, atol=1e-9)


@pytest.mark.parametrize("twin", [True, False])
def test_td3_and_ddpg(twin: bool) -> None:
    if twin:
        theirs = theirs_of("TD3", Continuous)
        ours = ours_of("td3", Continuous)
    else:
        theirs = theirs_of("DDPG", Continuous)
        options = {"twin_critics": False, "policy_delay": 1, "target_policy_noise": 0.0}
        ours = ours_of("td3", Continuous, **options)
    shake(theirs.critic_target)
    shake(theirs.actor_target)
    for mine, actor, critic in (
        (ours.model, theirs.actor, theirs.critic),
        (ours.target, theirs.actor_target, theirs.critic_target),
    ):
        copy_linears(mine.actor, actor)
        copy_critics(mine.critic, critic)
    batch = continuous_batch()
    give(theirs, batch)
    for step in range(STEPS):
        torch.manual_seed(step)
        theirs.train(1, BATCH)
        torch.manual_seed(step)
        metrics = ours._take({**batch, "noise": torch.empty(BATCH, 2).normal_(0, 1)})
        ours.gradient_steps += 1
        loss = theirs.logger.name_to_value["train/critic_loss"]
        assert metrics["loss/critic"].item() == pytest.approx(loss, abs=1e-10)
        for mine, actor, critic in (
            (ours.model, theirs.actor, theirs.critic),
            (ours.target, theirs.actor_target, theirs.critic_target),
        ):
            assert_equal_linears(mine.actor, actor)
            assert_equal_critics(mine.critic, critic)


def test_their_observations_are_what_ours_are() -> None:
    """The encoder keeps float64, so that the comparisons above are of float64."""
    ours = ours_of("sac", Continuous)
    observation = torch.from_numpy(np.ones((1, 3)))
    assert ours.model.actor.encoder(observation).dtype == torch.float64
