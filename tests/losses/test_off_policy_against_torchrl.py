"""The off-policy losses beside TorchRL's loss modules, in float64: equal values and gradients, and
each difference shown where there is one.

Both read the same networks with the same parameters; what is compared is the arithmetic on top.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.distributions import Categorical
from torchrl.modules import (
    MLP,
    DistributionalQValueActor,
    ProbabilisticActor,
    QValueActor,
    TanhNormal,
    ValueOperator,
)
from torchrl.objectives import (
    DiscreteSACLoss,
    DistributionalDQNLoss,
    DQNLoss,
    HardUpdate,
    SACLoss,
    SoftUpdate,
    TD3Loss,
    ValueEstimators,
)

from rl_training.losses import dqn, sac, td3

BATCH, SIZE, ACTIONS, ATOMS, GAMMA = 24, 3, 4, 7, 0.9
EXACT: dict[str, Any] = {"rtol": 0, "atol": 1e-12}


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No target network updater")
        yield
    torch.set_default_dtype(torch.float32)


def network(inputs: int, outputs: int) -> nn.Module:
    return MLP(in_features=inputs, out_features=outputs, num_cells=[8], activation_class=nn.Tanh)


class Facts:
    """A minibatch, some terminated, some truncated, and the same for TorchRL's loss modules."""

    def __init__(self, action: Tensor) -> None:
        self.observation, self.following = torch.randn(BATCH, SIZE), torch.randn(BATCH, SIZE)
        self.action, self.reward = action, torch.randn(BATCH)
        self.terminated = torch.arange(BATCH) % 3 == 0
        self.discount = torch.full((BATCH,), GAMMA)
        done = self.terminated | (torch.arange(BATCH) % 4 == 0)
        following = {
            "observation": self.following,
            "reward": self.reward.unsqueeze(-1),
            "terminated": self.terminated.unsqueeze(-1),
            "done": done.unsqueeze(-1),
        }
        content = {"observation": self.observation, "action": action, "next": following}
        self.batch = TensorDict(content, batch_size=[BATCH])
        self.target = self.reward, self.discount, self.terminated


def leaves(parameters: Any) -> list[Tensor]:
    return [each for each in parameters.values(True, True) if each.requires_grad]


@torch.no_grad()
def shake(parameters: Any) -> None:
    """Make a target's parameters other than what they follow."""
    for each in parameters.values(True, True):
        each.data.add_(0.1 * torch.randn_like(each))


def assert_equal(ours: Tensor, theirs: Tensor, parameters: Any, factor: float = 1.0) -> None:
    """Assert that ``ours`` is ``factor`` times ``theirs``, and so every gradient."""
    torch.testing.assert_close(ours, factor * theirs, **EXACT)
    mine = torch.autograd.grad(ours, leaves(parameters))
    other = torch.autograd.grad(theirs, leaves(parameters))
    for one, two in zip(mine, other, strict=True):
        assert one.abs().max() > 0
        torch.testing.assert_close(one, factor * two, **EXACT)


def q_of(module: Any, parameters: Any, *inputs: Tensor) -> Tensor:
    """Return what each of two critics says, ``[2, B, ...]``."""
    outputs = []
    for member in range(2):
        with parameters[member].to_module(module.qvalue_network):
            outputs.append(module.qvalue_network.module(*inputs))
    return torch.stack(outputs)


# ---- DQN


def discrete_facts() -> Facts:
    return Facts(torch.randint(ACTIONS, (BATCH,)))


def dqn_pair(huber: bool, double: bool) -> tuple[DQNLoss, Facts, Tensor, Tensor]:
    """Return TorchRL's loss module, a minibatch, and our values and targets ``[B]``."""
    actor = QValueActor(network(SIZE, ACTIONS), action_space="categorical")
    loss = "smooth_l1" if huber else "l2"
    module = DQNLoss(actor, loss_function=loss, double_dqn=double, action_space="categorical")
    module.make_value_estimator(ValueEstimators.TD0, gamma=GAMMA)
    shake(module.target_value_network_params)
    facts = discrete_facts()

    def values(parameters: Any, observation: Tensor) -> Tensor:
        with parameters.to_module(module.value_network):
            return module.value_network(TensorDict({"observation": observation}, [BATCH]))[
                "action_value"
            ]

    with torch.no_grad():
        next_q = values(module.target_value_network_params, facts.following)
        chooser = values(module.value_network_params, facts.following) if double else None
        target = dqn.greedy_target(*facts.target, next_q, chooser)
    q = values(module.value_network_params, facts.observation)
    return module, facts, q.gather(-1, facts.action.unsqueeze(-1)).squeeze(-1), target


@pytest.mark.parametrize("huber", [False, True])
@pytest.mark.parametrize("double", [False, True])
def test_dqn_equals_dqn_loss(huber: bool, double: bool) -> None:
    module, facts, q, target = dqn_pair(huber, double)
    theirs = module(facts.batch)["loss"]
    assert_equal(dqn.td_loss(q, target, huber=huber), theirs, module.value_network_params)


def test_weights_equal_dqn_loss_s_up_to_its_division_by_their_sum() -> None:
    module, facts, q, target = dqn_pair(False, False)
    weights = torch.rand(BATCH)
    facts.batch["priority_weight"] = weights
    theirs = module(facts.batch)["loss"]
    ours = dqn.td_loss(q, target, huber=False, weights=weights)
    # The paper's is a mean over the minibatch; theirs a mean that the weights are the measure of.
    assert_equal(ours, theirs, module.value_network_params, factor=weights.mean().item())


def test_dqn_loss_s_priorities_are_the_squares_of_the_paper_s() -> None:
    module, facts, q, target = dqn_pair(True, False)
    error = q - target
    module(facts.batch)
    torch.testing.assert_close(facts.batch["td_error"].squeeze(-1), error.square(), **EXACT)


def test_c51_equals_distributional_dqn_loss_which_is_always_double() -> None:
    support = torch.linspace(-2, 2, ATOMS)
    inner = nn.Sequential(network(SIZE, ATOMS * ACTIONS), nn.Unflatten(-1, (ATOMS, ACTIONS)))
    actor = DistributionalQValueActor(
        nn.Sequential(inner, nn.LogSoftmax(-2)), support=support, action_space="categorical"
    )
    module = DistributionalDQNLoss(actor, gamma=GAMMA)
    trained, target = module.value_network_params, module.target_value_network_params
    for each in target.values(True, True):
        if each.shape != support.shape:
            each.data.add_(0.3 * torch.randn_like(each))
    facts = discrete_facts()
    facts.batch["action"] = facts.action.unsqueeze(-1)

    def logits(parameters: Any, observation: Tensor) -> Tensor:
        """Return ``[B, actions, atoms]``."""
        with parameters.to_module(module.value_network):
            found = module.value_network(TensorDict({"observation": observation}, [BATCH]))
        return found["action_value"].transpose(1, 2)

    def loss(chooser: Any) -> Tensor:
        rows = torch.arange(BATCH)
        with torch.no_grad():
            best = (logits(chooser, facts.following).exp() @ support).argmax(-1)
            following = logits(target, facts.following).exp()[rows, best]
            projected = dqn.project_distribution(following, *facts.target, support)
        chosen = logits(trained, facts.observation)[rows, facts.action]
        return dqn.categorical_loss(chosen, projected).mean()

    theirs = module(facts.batch)["loss"]
    # Without double Q-learning, the paper's own choice is the target network's.
    assert abs(loss(target).item() - theirs.item()) > 1e-6
    assert_equal(loss(trained), theirs, trained)


# ---- SAC


def sac_pair(**options: Any) -> tuple[SACLoss, Facts]:
    class Halves(nn.Module):
        def forward(self, output: Tensor) -> tuple[Tensor, Tensor]:
            mean, log_std = output.chunk(2, -1)
            return mean, log_std.exp()

    actor = ProbabilisticActor(
        TensorDictModule(
            nn.Sequential(network(SIZE, 2 * ACTIONS), Halves()), ["observation"], ["loc", "scale"]
        ),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
    )
    critics = [
        ValueOperator(network(SIZE + ACTIONS, 1), in_keys=["observation", "action"])
        for _ in range(2)
    ]
    module = SACLoss(actor, critics, target_entropy=-2.0, alpha_init=0.3, **options)
    module.make_value_estimator(ValueEstimators.TD0, gamma=GAMMA)
    shake(module.target_qvalue_network_params)
    return module, Facts(2 * torch.rand(BATCH, ACTIONS) - 1)


def sampled(module: SACLoss, observation: Tensor) -> tuple[Tensor, Tensor]:
    with module.actor_network_params.to_module(module.actor_network):
        found = module.actor_network.get_dist(TensorDict({"observation": observation}, [BATCH]))
    action = found.rsample()
    return action, found.log_prob(action)


def our_sac_critic_loss(module: SACLoss, facts: Facts) -> Tensor:
    with torch.no_grad():
        action, log_probability = sampled(module, facts.following)
        next_q = q_of(module, module.target_qvalue_network_params, facts.following, action)
        alpha = module.log_alpha.exp()
        target = sac.soft_target(*facts.target, next_q.squeeze(-1), log_probability, alpha)
    q = q_of(module, module.qvalue_network_params, facts.observation, facts.action).squeeze(-1)
    return sac.critic_loss(q, target)


def test_sac_s_critic_loss_is_half_of_sac_loss_s() -> None:
    module, facts = sac_pair(loss_function="l2")
    torch.manual_seed(1)
    theirs, _ = module.qvalue_v2_loss(facts.batch)
    torch.manual_seed(1)
    assert_equal(our_sac_critic_loss(module, facts), theirs, module.qvalue_network_params, 0.5)


def test_sac_loss_s_default_is_huber_s_and_not_the_paper_s() -> None:
    module, facts = sac_pair()
    torch.manual_seed(1)
    theirs, _ = module.qvalue_v2_loss(facts.batch)
    torch.manual_seed(1)
    ours = our_sac_critic_loss(module, facts)
    assert abs(ours.item() - theirs.item()) > 1e-2


def test_sac_s_policy_and_temperature_losses_equal_sac_loss_s() -> None:
    module, facts = sac_pair(loss_function="l2")
    torch.manual_seed(2)
    theirs, metadata = module.actor_loss(facts.batch)
    torch.manual_seed(2)
    action, log_probability = sampled(module, facts.observation)
    q = q_of(module, module.qvalue_network_params.detach(), facts.observation, action).squeeze(-1)
    ours = sac.actor_loss(q, log_probability, module.log_alpha.detach().exp())
    assert_equal(ours, theirs, module.actor_network_params)
    temperature = sac.temperature_loss(module.log_alpha, -metadata["log_prob"], -2.0)
    other = module.alpha_loss(metadata["log_prob"]).mean()
    torch.testing.assert_close(temperature, other, **EXACT)
    (mine,) = torch.autograd.grad(temperature, module.log_alpha)
    torch.testing.assert_close(mine, torch.autograd.grad(other, module.log_alpha)[0], **EXACT)


def test_discrete_sac_s_losses_equal_discrete_sac_loss_s_up_to_the_half() -> None:
    actor = ProbabilisticActor(
        TensorDictModule(network(SIZE, ACTIONS), ["observation"], ["logits"]),
        in_keys=["logits"],
        distribution_class=Categorical,
    )
    critics = [
        TensorDictModule(network(SIZE, ACTIONS), ["observation"], ["action_value"])
        for _ in range(2)
    ]
    module = DiscreteSACLoss(
        actor,
        critics,
        action_space="categorical",
        num_actions=ACTIONS,
        loss_function="l2",
        alpha_init=0.3,
    )
    module.make_value_estimator(ValueEstimators.TD0, gamma=GAMMA)
    shake(module.target_qvalue_network_params)
    facts, alpha = discrete_facts(), module.log_alpha.detach().exp()

    def logits(observation: Tensor) -> Tensor:
        with module.actor_network_params.to_module(module.actor_network):
            found = module.actor_network.get_dist(TensorDict({"observation": observation}, [BATCH]))
        return found.logits

    theirs, _ = module.qvalue_loss(facts.batch)
    with torch.no_grad():
        next_q = q_of(module, module.target_qvalue_network_params, facts.following)
        target = sac.discrete_soft_target(*facts.target, next_q, logits(facts.following), alpha)
    q = q_of(module, module.qvalue_network_params, facts.observation)
    q = q.gather(-1, facts.action.expand(2, -1).unsqueeze(-1)).squeeze(-1)
    assert_equal(sac.critic_loss(q, target), theirs, module.qvalue_network_params, 0.5)

    theirs, metadata = module.actor_loss(facts.batch)
    q = q_of(module, module.qvalue_network_params.detach(), facts.observation)
    ours = sac.discrete_actor_loss(q, logits(facts.observation), alpha)
    assert_equal(ours, theirs, module.actor_network_params)
    temperature = sac.temperature_loss(
        module.log_alpha, -metadata["log_prob"], module.target_entropy.item()
    )
    torch.testing.assert_close(temperature, module.alpha_loss(metadata["log_prob"]).mean(), **EXACT)


# ---- TD3


def td3_pair(**options: Any) -> tuple[TD3Loss, Facts]:
    actor = TensorDictModule(
        nn.Sequential(network(SIZE, ACTIONS), nn.Tanh()), ["observation"], ["action"]
    )
    critics = [
        ValueOperator(network(SIZE + ACTIONS, 1), in_keys=["observation", "action"])
        for _ in range(2)
    ]
    module = TD3Loss(actor, critics, bounds=(-1.0, 1.0), policy_noise=0.4, **options)
    module.make_value_estimator(ValueEstimators.TD0, gamma=GAMMA)
    shake(module.target_qvalue_network_params)
    shake(module.target_actor_network_params)
    return module, Facts(2 * torch.rand(BATCH, ACTIONS) - 1)


def acted(module: TD3Loss, parameters: Any, observation: Tensor) -> Tensor:
    with parameters.to_module(module.actor_network):
        return module.actor_network.module(observation)


def our_td3_critic_loss(module: TD3Loss, facts: Facts) -> Tensor:
    noise = torch.randn_like(facts.action)
    with torch.no_grad():
        action = acted(module, module.target_actor_network_params, facts.following)
        action = td3.smoothed_action(action, noise, 0.4, 0.5)
        next_q = q_of(module, module.target_qvalue_network_params, facts.following, action)
        target = td3.clipped_double_target(*facts.target, next_q.squeeze(-1))
    q = q_of(module, module.qvalue_network_params, facts.observation, facts.action)
    return td3.critic_loss(q.squeeze(-1), target)


def test_td3_s_losses_equal_td3_loss_s() -> None:
    module, facts = td3_pair(loss_function="l2")
    torch.manual_seed(3)
    theirs, _ = module.value_loss(facts.batch)
    torch.manual_seed(3)
    assert_equal(our_td3_critic_loss(module, facts), theirs, module.qvalue_network_params)
    theirs, _ = module.actor_loss(facts.batch)
    action = acted(module, module.actor_network_params, facts.observation)
    q = q_of(module, module.qvalue_network_params.detach(), facts.observation, action).squeeze(-1)
    assert_equal(td3.actor_loss(q), theirs, module.actor_network_params)


def test_td3_loss_s_default_is_huber_s_and_not_the_paper_s() -> None:
    module, facts = td3_pair()
    torch.manual_seed(3)
    theirs, _ = module.value_loss(facts.batch)
    torch.manual_seed(3)
    assert abs(our_td3_critic_loss(module, facts).item() - theirs.item()) > 1e-2


# ---- targets, and what one module call computes


def test_soft_updates_are_equal() -> None:
    module, _ = td3_pair()
    updater = SoftUpdate(module, tau=0.1)  # it makes targets equal first
    shake(module.target_qvalue_network_params)
    names = ("target_qvalue_network_params", "qvalue_network_params")
    before, trained = (getattr(module, name).data.clone() for name in names)
    updater.step()
    for key, target in module.target_qvalue_network_params.items(True, True):
        expected = before[key].lerp(trained[key], 0.1)  # as the recipes move their flat targets
        torch.testing.assert_close(target, expected, **EXACT)


def test_hard_update_copies_one_call_late() -> None:
    actor = QValueActor(network(SIZE, ACTIONS), action_space="categorical")
    module = DQNLoss(actor, action_space="categorical")
    updater = HardUpdate(module, value_network_update_interval=4)
    copied = []
    for call in range(1, 16):
        with torch.no_grad():
            for each in module.value_network_params.values(True, True):
                each.add_(1.0)
        updater.step()
        pairs = zip(
            module.target_value_network_params.values(True, True),
            module.value_network_params.values(True, True),
            strict=True,
        )
        if all(torch.equal(one, two) for one, two in pairs):
            copied.append(call)
    assert copied == [5, 10, 15]  # not 4, 8, 12


def test_sac_loss_takes_the_policy_s_gradient_by_the_critics_before_their_step() -> None:
    """The papers' order, and the recipes', is the critics' step first."""
    module, facts = sac_pair(loss_function="l2")
    torch.manual_seed(2)
    together = module(facts.batch)
    torch.manual_seed(2)
    loss, _ = module.qvalue_v2_loss(facts.batch)
    parameters = leaves(module.qvalue_network_params)
    with torch.no_grad():
        for each, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            each.sub_(0.1 * gradient)
    in_order, _ = module.actor_loss(facts.batch)
    assert abs(together["loss_actor"].item() - in_order.item()) > 1e-3
