"""Soft actor-critic (Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905; with Discrete actions
Christodoulou 2019, https://arxiv.org/abs/1910.07207).

python -m rl_training.recipes.sac --config zoo/sac_pendulum.yaml
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from rl_training.config import TrainConfig
from rl_training.errors import UserError
from rl_training.losses import sac as losses
from rl_training.models.actors import (
    CategoricalActor,
    SquashedGaussianActor,
    StateDependentNoiseActor,
)
from rl_training.models.mlp import MLP
from rl_training.models.q_networks import ContinuousQ, DiscreteQ, EncodedDiscreteQ
from rl_training.off_policy import OffPolicyAlgorithm
from rl_training.off_policy_config import OffPolicyConfig
from rl_training.optim import FlatParameters, descend
from rl_training.registry import ACTION_SPACES
from rl_training.runtime.checks import require_counter, require_noise
from rl_training.workflows import TrainResult, train_with_overrides


@dataclass(kw_only=True)
class SACConfig(OffPolicyConfig):
    """SAC's hyperparameters, under the paper's names."""

    tau: float = 0.005
    """How far the target critics move towards the critics per gradient step."""
    entropy_coefficient: float | None = None
    """Alpha, the weight of the policy's entropy; None: tuned towards ``target_entropy``."""
    initial_entropy_coefficient: float = 1.0
    """Alpha's first value when it is tuned."""
    target_entropy: float | None = None
    """Entropy that alpha is tuned for, in nats, of actions in [-1, 1]; None: minus the dimensions
    of a Box action, 0.98 of the largest possible for Discrete ones.
    """
    gsde: bool = False
    """State-dependent exploration of Box actions."""
    gsde_resample_interval: int = -1
    """Steps of an environment between two of its exploration matrices; -1: one per rollout."""
    log_std_init: float = -3.0
    """First log standard deviation of gSDE's matrices."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of the products between the critics' hidden layers; all else stays float32."""

    def validate(self, config: TrainConfig) -> None:
        """Refuse values that cannot be trained with, naming key and value."""
        super().validate(config)
        self._require(0 < self.tau <= 1, "tau", "lie in (0, 1]")
        self._require_positive("initial_entropy_coefficient")
        alpha = self.entropy_coefficient
        self._require(alpha is None or alpha > 0, "entropy_coefficient", "be null or positive")
        interval = self.gsde_resample_interval
        self._require(interval == -1 or interval > 0, "gsde_resample_interval", "be -1 or positive")


class SACModel(nn.Module):
    """A policy, its critics, and the logarithm of the entropy coefficient."""

    def __init__(self, actor: nn.Module, critic: nn.Module, alpha: float) -> None:
        super().__init__()
        self.actor: Any = actor
        self.critic: Any = critic
        self.log_alpha = nn.Parameter(torch.tensor(math.log(alpha)))


class SAC(OffPolicyAlgorithm):
    """Fit twin critics to soft targets, the policy to the critics, and alpha to its entropy."""

    name: ClassVar[str] = "sac"
    Config: ClassVar[type[Any]] = SACConfig
    action_spaces: ClassVar[tuple[str, ...]] = ACTION_SPACES["sac"]
    model: SACModel

    # ---- networks

    def make_networks(self) -> None:
        """Build a policy and two critics, for Box or for Discrete actions."""
        config = self.config.algorithm
        self._require_built_networks(encoder=self.discrete)
        if self.discrete and config.gsde:
            raise UserError("algorithm.gsde needs continuous actions (a Box).")
        self._tuned = config.entropy_coefficient is None
        self.target_entropy = self._target_entropy()
        alpha = config.initial_entropy_coefficient if self._tuned else config.entropy_coefficient
        actor = self._make_actor()
        self.model = SACModel(actor, self._make_critic(actor.encoder), alpha)
        self.target = copy.deepcopy(self.model.critic)
        self._matrix: Tensor | None = None
        self._matrix_age = 0

    def _target_entropy(self) -> float:
        asked, count = self.config.algorithm.target_entropy, self.num_actions
        largest = math.log(count) if self.discrete else count * math.log(2.0)
        if asked is None:
            return 0.98 * largest if self.discrete else -float(count)
        if asked > largest or (self.discrete and asked < 0):
            least = "0" if self.discrete else "minus infinity"
            raise UserError(
                f"algorithm.target_entropy must lie between {least} and {largest:.4g}, the largest "
                f"entropy of {self.action_space}, not {asked}."
            )
        return float(asked)

    def _make_actor(self) -> Any:
        config, encoder = self.config.algorithm, self._make_encoder()
        if self.discrete:
            return CategoricalActor(encoder=encoder, num_actions=self.num_actions)
        if config.gsde:
            return StateDependentNoiseActor(
                encoder=encoder, num_actions=self.num_actions, log_std_init=config.log_std_init
            )
        return SquashedGaussianActor(encoder=encoder, num_actions=self.num_actions)

    def _make_critic(self, encoder: nn.Module) -> nn.Module:
        """Return critics of their own: MLPs, or with encoders like the policy's."""
        model, shape = self.config.model.of_critic(), self.observation_space.shape
        if not isinstance(encoder, MLP):
            self._require_float32()
            return EncodedDiscreteQ(
                make_encoder=functools.partial(self._make_encoder, model),
                num_actions=self.num_actions,
                orthogonal_init=model.orthogonal_init,
            )
        shared: dict[str, Any] = {
            "hidden_sizes": model.hidden_sizes,
            "activation": model.activation,
            "orthogonal_init": model.orthogonal_init,
            "bfloat16": self.config.algorithm.precision == "bfloat16",
        }
        if self.discrete:
            return DiscreteQ(input_size=math.prod(shape), outputs=self.num_actions, **shared)
        return ContinuousQ(observation_shape=shape, num_actions=self.num_actions, **shared)

    def _require_float32(self) -> None:
        if self.config.algorithm.precision != "float32":
            raise UserError(
                "algorithm.precision is of critics that are MLPs; of encoders it is "
                "model.precision."
            )

    def make_optimizers(self) -> None:
        """Build one Adam each for policy, critics and, when it is tuned, alpha."""
        model = self.model
        groups = {"actor": model.actor.parameters(), "critic": model.critic.parameters()}
        if self._tuned:
            groups["temperature"] = iter([model.log_alpha])
        # A tensor for each: compiled, a step on a part of one would write the whole.
        self.parameters = {name: FlatParameters({name: own}) for name, own in groups.items()}
        self.target_parameters = FlatParameters({"critic": self.target.parameters()})
        for name, parameters in self.parameters.items():
            self.optimizers[name] = self._make_adam(parameters, name)

    # ---- acting

    def action(
        self, observation: Tensor, *, deterministic: bool, generator: torch.Generator | None
    ) -> Tensor:
        """Return the most likely action, or a sample."""
        actor = self.model.actor
        if deterministic:
            return actor.mode(observation)
        shape = (len(observation), self.num_actions)
        if self.discrete:
            noise = torch.empty(shape).exponential_(generator=generator).log_().neg_()
            return actor.explore(observation, noise.to(self.device))
        mean, log_std = actor.parameters_of(observation)
        noise = torch.empty(shape).normal_(generator=generator)
        return (mean + log_std.exp() * noise.to(self.device)).tanh()

    def _act(self, observation: Tensor, noise: Tensor) -> Tensor:
        return self.model.actor.explore(observation, noise)

    def _rollout_noise(self, steps: int) -> list[Tensor]:
        draws, count = self.generators["rollout"], self.config.num_envs
        if self.config.algorithm.gsde:
            return self._matrices(steps)
        shape = (steps, count, self.num_actions)
        if self.discrete:
            gumbel = torch.empty(shape).exponential_(generator=draws).log_().neg_()
            return list(gumbel.unbind(0))
        return list(torch.randn(shape, generator=draws).unbind(0))

    def _matrices(self, steps: int) -> list[Tensor]:
        """Return gSDE's matrices of each step: one stays until its interval is over."""
        interval = self.config.algorithm.gsde_resample_interval
        shape = self.model.actor.rollout_noise_shape(self.config.num_envs)
        if interval < 0:
            self._matrix = None
        matrices = []
        for _ in range(steps):
            if self._matrix is None or self._matrix_age == interval:
                self._matrix = torch.randn(shape, generator=self.generators["rollout"])
                self._matrix_age = 0
            self._matrix_age += 1
            matrices.append(self._matrix)
        return matrices

    # ---- learning

    def _draw(self, batch: dict[str, Tensor]) -> None:
        if not self.discrete:
            shape = self.model.actor.noise_shape(self.config.algorithm.minibatch_size)
            batch["noise"], batch["next_noise"] = self._normal(2, *shape).unbind(0)

    def _gradient_step(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Critics, then policy by the new critics, then alpha; targets and policy see alpha as it
        was.
        """
        alpha = self.model.log_alpha.detach().exp()
        critic_loss, q = self._critic_loss(batch, alpha)
        metrics = {"loss/critic": critic_loss.detach(), "train/q": q.detach().mean()}
        metrics["train/critic_gradient_norm"] = self._descend(critic_loss, "critic")
        actor_loss, entropy = self._actor_loss(batch, alpha)
        metrics["loss/actor"] = actor_loss.detach()
        metrics["train/actor_gradient_norm"] = self._descend(actor_loss, "actor")
        metrics["train/entropy"] = entropy.mean()
        metrics["train/entropy_coefficient"] = alpha
        if self._tuned:
            loss = losses.temperature_loss(self.model.log_alpha, entropy, self.target_entropy)
            metrics["loss/temperature"] = loss.detach()
            self._descend(loss, "temperature")
        self.target_parameters.follow(self.parameters["critic"], self.config.algorithm.tau)
        return metrics

    def _descend(self, loss: Tensor, name: str) -> Tensor:
        limit = self.config.algorithm.max_gradient_norm
        return descend(loss, self.optimizers[name], max_gradient_norm=limit)

    def _critic_loss(self, batch: dict[str, Tensor], alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Return the critics' loss, and their values ``[2, B]`` of the actions that were taken."""
        facts = batch["reward"], batch["discount"], batch["terminated"]
        following, actor = batch["next_observation"], self.model.actor
        with torch.no_grad():
            if self.discrete:
                next_q = self.target(following)
                target = losses.discrete_soft_target(*facts, next_q, actor(following), alpha)
            else:
                action, log_probability = actor.sample(following, batch["next_noise"])
                next_q = self.target(following, action)
                target = losses.soft_target(*facts, next_q, log_probability, alpha)
        if self.discrete:
            q = self.model.critic(batch["observation"])
            q = q.gather(-1, batch["action"].expand(q.shape[0], -1).unsqueeze(-1)).squeeze(-1)
        else:
            q = self.model.critic(batch["observation"], batch["action"])
        return losses.critic_loss(q, target), q

    def _actor_loss(self, batch: dict[str, Tensor], alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Return the policy's loss and, detached, its entropy (of samples, ``[B]``)."""
        observation, actor = batch["observation"], self.model.actor
        if self.discrete:
            logits = actor(observation)
            with torch.no_grad():
                q = self.model.critic(observation)
            log_probability = logits.detach().log_softmax(-1)
            entropy = -(log_probability.exp() * log_probability).sum(-1)
            return losses.discrete_actor_loss(q, logits, alpha), entropy
        action, log_probability = actor.sample(observation, batch["noise"])
        q = self.model.critic(observation, action, frozen=True)
        return losses.actor_loss(q, log_probability, alpha), -log_probability.detach()

    # ---- state

    def extra_state(self) -> dict[str, Any]:
        """Return gSDE's matrix as well."""
        return {**super().extra_state(), "matrix": self._matrix, "matrix_age": self._matrix_age}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore all of it."""
        super().load_extra_state(state)
        if state["matrix"] is not None:
            shape = self.model.actor.rollout_noise_shape(self.config.num_envs)
            require_noise("matrix", state["matrix"], shape)
        self._matrix = state["matrix"]
        self._matrix_age = require_counter("matrix_age", state["matrix_age"])


def train_sac(config: Any, **overrides: Any) -> TrainResult:
    """Train SAC as ``config`` says (a `TrainConfig` or the path of a preset), with any field
    overridden.
    """
    return train_with_overrides("sac", config, overrides)


if __name__ == "__main__":
    from rl_training.cli import recipe_main

    recipe_main("sac")
