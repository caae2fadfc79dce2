"""What algorithms that learn from rollouts have in common: the model for the spaces, optimisers and
gradient steps on it, and collecting with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_training.algorithm import Algorithm
from rl_training.envs import observed_dtype, space_to_dict
from rl_training.envs.hybrid import require_continuous
from rl_training.envs.masks import mask_columns
from rl_training.models.actor_critic import ActorCritic, Architecture
from rl_training.models.agreement import require_agreement
from rl_training.models.build import build_actor_critic
from rl_training.models.rollout_policy import FEATURES, RolloutPolicy
from rl_training.models.tensordict_modules import policy_module
from rl_training.optim import FlatAdam, FlatParameters, GradientStep, LossFunction


class OnPolicyAlgorithm(Algorithm):
    """Collects with an actor-critic, whose log-probabilities and values complete each batch.

    A subclass makes ``model``, ``parameters`` and ``rollout_policy``, and learns in ``_update``.
    """

    rollout_policy_class: ClassVar[type[Any]] = RolloutPolicy
    rollout_policy: RolloutPolicy
    model: ActorCritic
    parameters: FlatParameters
    """The model's, in groups."""

    # ---- parts

    def _make_model(
        self, cls: type[ActorCritic], architecture: Architecture, **model_options: Any
    ) -> ActorCritic:
        config = self.config.algorithm
        require_continuous(self.action_space, gsde=config.gsde, squash=config.squash)
        masks = self.config.env.action_masks != "off"
        return build_actor_critic(
            cls,
            model=self.config.model,
            observation_shape=self.observation_space.shape,
            observation_dtype=observed_dtype(self.observation_space, self.normalizer),
            layout=self.observation_layout,
            action_space=space_to_dict(self.action_space),
            architecture=architecture,
            networks=self.networks,
            model_options=model_options,
            mask=mask_columns(self.raw_observation_space, self.action_space) if masks else None,
            log_std_init=config.log_std_init,
            gsde=config.gsde,
            gsde_resample_interval=config.gsde_resample_interval,
        )

    def _make_rollout_policy(self) -> RolloutPolicy:
        made: RolloutPolicy = self.rollout_policy_class(
            self.model, generator=self.generators["rollout"]
        )
        return made

    def _make_adam(self, *groups: str) -> FlatAdam:
        config = self.config.algorithm
        return FlatAdam(
            *self.parameters.select(*groups),
            learning_rate=config.learning_rate,
            epsilon=config.adam_epsilon,
        )

    def _make_step(self, loss: LossFunction, optimizer: FlatAdam, **options: Any) -> GradientStep:
        return GradientStep(
            loss,
            optimizer,
            max_gradient_norm=self.config.algorithm.max_gradient_norm,
            compile=self.config.compile,
            **options,
        )

    # ---- collection

    @property
    def frames_per_batch(self) -> int:
        """Steps of all environments per iteration."""
        return int(self.config.algorithm.num_steps * self.environment.num_envs)

    @property
    def squash_actions(self) -> bool:
        """Whether actions pass through tanh."""
        return bool(self.config.algorithm.squash)

    @property
    def policy(self) -> TensorDictModuleBase:
        """TorchRL's ProbabilisticActor on the trained model."""
        return policy_module(self.model)

    def before_collection(self) -> None:
        """Draw the rollout's noise."""
        steps = self.config.algorithm.num_steps
        self.rollout_policy.begin_rollout(steps, self.environment.num_envs)

    @torch.no_grad()
    def after_collection(self, batch: TensorDictBase) -> None:
        """Add ``action_log_prob`` ``[N, T]`` and ``state_value`` ``[N, T, 1]``, of the collecting
        parameters, and take ``features`` out.

        Raises:
            UserError: a model of one's own contradicts itself.
        """
        features = batch.pop(FEATURES, None)
        known = {} if features is None else {"features": features.to(self.device)}
        observation = batch.get("observation").to(self.device)
        action = batch.get("action").to(self.device)
        log_probability, _, value = self.model.evaluate_actions(observation, action, **known)
        require_agreement(self.model, observation, action, (log_probability, value))
        batch.set("action_log_prob", log_probability.cpu())
        batch.set("state_value", value.unsqueeze(-1).cpu())

    def action(
        self, observation: Tensor, *, deterministic: bool, generator: torch.Generator | None
    ) -> Tensor:
        """Return the most likely action, or a sample."""
        # Not `model.act`: half of its time goes into the value and the log-probability.
        parameters, head = self.model.distribution(observation), self.model.action_head
        return head.mode(parameters) if deterministic else head.draw(parameters, generator)

    # ---- state

    def extra_state(self) -> dict[str, Any]:
        """Return gSDE's matrix."""
        return {"exploration": self.model.action_head.exploration_state()}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore gSDE's matrix."""
        self.model.action_head.load_exploration_state(state["exploration"])
