"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018,
https://arxiv.org/abs/1802.09477); without its three tricks DDPG (Lillicrap et al. 2016,
https://arxiv.org/abs/1509.02971).

python -m rl_training.recipes.td3 --config zoo/td3_pendulum.yaml
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_training.config import TrainConfig
from rl_training.losses import td3 as losses
from rl_training.models.action_noise import NOISES
from rl_training.models.actors import DeterministicActor
from rl_training.models.q_networks import ContinuousQ
from rl_training.off_policy import OffPolicyAlgorithm
from rl_training.off_policy_config import OffPolicyConfig
from rl_training.optim import FlatParameters, compile_isolated, descend
from rl_training.registry import ACTION_SPACES
from rl_training.runtime.checks import require_noise
from rl_training.workflows import TrainResult, train_with_overrides


@dataclass(kw_only=True)
class TD3Config(OffPolicyConfig):
    """TD3's hyperparameters, under the paper's names. DDPG is ``twin_critics: false, policy_delay:
    1, target_policy_noise: 0``.
    """

    learning_rate: float = 1e-3
    """Adam's step size."""
    tau: float = 0.005
    """How far the targets move towards the networks at each of their updates."""
    twin_critics: bool = True
    """Two critics, the smaller of which gives the target (clipped double Q-learning)."""
    policy_delay: int = 2
    """Gradient steps of the critics for each of the policy and the targets (the paper's d)."""
    target_policy_noise: float = 0.2
    """Deviation of the noise on the target policy's actions, in [-1, 1] (sigma tilde)."""
    target_noise_clip: float = 0.5
    """Bound of that noise (the paper's c)."""
    exploration_noise: Literal["normal", "ornstein_uhlenbeck"] = "normal"
    """Noise on the actions while collecting."""
    exploration_deviation: float = 0.1
    """Its standard deviation, for actions in [-1, 1] (sigma)."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of the products between the critics' hidden layers; all else stays float32."""

    def validate(self, config: TrainConfig) -> None:
        """Refuse values that cannot be trained with, naming key and value."""
        super().validate(config)
        self._require(0 < self.tau <= 1, "tau", "lie in (0, 1]")
        self._require_at_least_one("policy_delay")
        keys = ("target_policy_noise", "target_noise_clip", "exploration_deviation")
        self._require_not_negative(*keys)


class TD3Model(nn.Module):
    """A deterministic policy and its critics."""

    def __init__(self, actor: DeterministicActor, critic: ContinuousQ) -> None:
        super().__init__()
        self.actor, self.critic = actor, critic


class TD3(OffPolicyAlgorithm):
    """Fit critics to smoothed targets, and now and then the policy to the first critic."""

    name: ClassVar[str] = "td3"
    Config: ClassVar[type[Any]] = TD3Config
    action_spaces: ClassVar[tuple[str, ...]] = ACTION_SPACES["td3"]
    model: TD3Model
    target: TD3Model

    # ---- networks

    def make_networks(self) -> None:
        """Build policy, critics, and a copy of both."""
        config, model = self.config.algorithm, self.config.model
        self._require_built_networks(encoder=False)
        self.noise = NOISES[config.exploration_noise](deviation=config.exploration_deviation)
        critic = ContinuousQ(
            observation_shape=self.observation_space.shape,
            num_actions=self.num_actions,
            hidden_sizes=model.of_critic().hidden_sizes,
            count=2 if config.twin_critics else 1,
            activation=model.activation,
            orthogonal_init=model.orthogonal_init,
            bfloat16=config.precision == "bfloat16",
        )
        actor = DeterministicActor(encoder=self._make_encoder(), num_actions=self.num_actions)
        self.model = TD3Model(actor, critic)
        self.target = copy.deepcopy(self.model)

    def make_optimizers(self) -> None:
        """Build one Adam each for policy and critics."""
        self.parameters = _flat(self.model)
        self.target_parameters = _flat(self.target)
        for name, parameters in self.parameters.items():
            self.optimizers[name] = self._make_adam(parameters, name)
        self._learn_all = self._full_step
        if self.config.compile:
            self._learn_all = compile_isolated(self._full_step)

    # ---- acting

    def action(
        self, observation: Tensor, *, deterministic: bool, generator: torch.Generator | None
    ) -> Tensor:
        """Return the policy's action, or with independent noise of the exploration's deviation."""
        action = self.model.actor(observation)
        if deterministic:
            return action
        noise = torch.empty(action.shape).normal_(generator=generator).to(action.device)
        deviation = self.config.algorithm.exploration_deviation
        return (action + deviation * noise).clamp(-1.0, 1.0)

    def _act(self, observation: Tensor, noise: Tensor) -> Tensor:
        return self.model.actor.explore(observation, noise)

    def _rollout_noise(self, steps: int) -> list[Tensor]:
        draws, count = self.generators["rollout"], self.config.num_envs
        return list(self.noise.draw(steps, count, self.num_actions, draws).unbind(0))

    # ---- learning

    def _update(self, batch: TensorDictBase) -> dict[str, Tensor]:
        self.noise.restart(batch["next", "done"].squeeze(-1).any(1))
        return super()._update(batch)

    def _draw(self, batch: dict[str, Tensor]) -> None:
        batch["noise"] = self._normal(self.config.algorithm.minibatch_size, self.num_actions)

    def _take(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        delay = self.config.algorithm.policy_delay
        return (self._learn if (self.gradient_steps + 1) % delay else self._learn_all)(batch)

    def _gradient_step(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Take a step of the critics."""
        config = self.config.algorithm
        following = batch["next_observation"]
        with torch.no_grad():
            action = losses.smoothed_action(
                self.target.actor(following),
                batch["noise"],
                config.target_policy_noise,
                config.target_noise_clip,
            )
            next_q = self.target.critic(following, action)
            target = losses.clipped_double_target(
                batch["reward"], batch["discount"], batch["terminated"], next_q
            )
        q = self.model.critic(batch["observation"], batch["action"])
        loss = losses.critic_loss(q, target)
        return {
            "loss/critic": loss.detach(),
            "train/q": q.detach().mean(),
            "train/critic_gradient_norm": self._descend(loss, "critic"),
        }

    def _full_step(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Take a step of the critics, then one of the policy by the new ones, and move the
        targets.
        """
        metrics = self._gradient_step(batch)
        observation = batch["observation"]
        action = self.model.actor(observation)
        q = self.model.critic(observation, action, frozen=True, members=1)
        loss = losses.actor_loss(q)
        metrics["loss/actor"] = loss.detach()
        metrics["train/actor_gradient_norm"] = self._descend(loss, "actor")
        for name, target in self.target_parameters.items():
            target.follow(self.parameters[name], self.config.algorithm.tau)
        return metrics

    def _descend(self, loss: Tensor, name: str) -> Tensor:
        limit = self.config.algorithm.max_gradient_norm
        return descend(loss, self.optimizers[name], max_gradient_norm=limit)

    # ---- state

    def extra_state(self) -> dict[str, Any]:
        """Return the exploration noise's process as well."""
        return {**super().extra_state(), "noise": self.noise.state_dict()}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore all of it."""
        super().load_extra_state(state)
        shape = (self.config.num_envs, self.num_actions)
        require_noise("noise", state["noise"].get("value"), shape)
        self.noise.load_state_dict(state["noise"])


def _flat(model: TD3Model) -> dict[str, FlatParameters]:
    """Return a tensor for each: compiled, a step on a part of one would write the whole."""
    groups = {"actor": model.actor.parameters(), "critic": model.critic.parameters()}
    return {name: FlatParameters({name: own}) for name, own in groups.items()}


def train_td3(config: Any, **overrides: Any) -> TrainResult:
    """Train TD3 as ``config`` says (a `TrainConfig` or the path of a preset), with any field
    overridden.
    """
    return train_with_overrides("td3", config, overrides)


if __name__ == "__main__":
    from rl_training.cli import recipe_main

    recipe_main("td3")
