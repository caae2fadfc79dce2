"""Proximal policy optimisation (Schulman et al. 2017, https://arxiv.org/abs/1707.06347).

python -m rl_training.recipes.ppo --config zoo/ppo_cartpole.yaml
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_training.config import Hyperparameters, TrainConfig, require
from rl_training.data.rollout_buffer import RolloutBuffer, shuffled_indices
from rl_training.losses.ppo import LeanClipPPOLoss, normalize
from rl_training.losses.returns import explained_variance
from rl_training.models.actor_critic import ActorCritic, MLPActorCritic
from rl_training.on_policy import OnPolicyAlgorithm
from rl_training.optim import FlatAdam, FlatParameters, GradientStep
from rl_training.registry import ACTION_SPACES
from rl_training.workflows import TrainResult, train_with_overrides

Schedule = Literal["constant", "linear"]

# Far above what is of use: beyond them a run would only end in NaN, or in want of memory or years.
_AT_MOST: dict[str, float] = {
    "adam_epsilon": 1.0,
    "entropy_coefficient": 1e6,
    "value_coefficient": 1e6,
    "clone_coefficient": 1e6,
    "true_value_coefficient": 1e6,
    "log_std_init": 60.0,
    "num_steps": 10_000_000,
    "num_epochs": 1_000_000,
    "policy_epochs": 1_000_000,
    "value_epochs": 1_000_000,
    "auxiliary_epochs": 1_000_000,
    "policy_iterations": 1_000_000,
}


@dataclass(kw_only=True)
class ClippedPolicyConfig(Hyperparameters):
    """What PPO and the policy phase of PPG have in common."""

    learning_rate: float = 3e-4
    """Adam's step size."""
    learning_rate_schedule: Schedule = "constant"
    """``linear``: down to zero over the run's total steps."""
    num_steps: int = 256
    """Steps per environment and iteration (the paper's horizon T)."""
    minibatch_size: int = 64
    """Samples per gradient step."""
    discount: float = 0.99
    """Gamma."""
    gae_lambda: float = 0.95
    """Lambda of generalised advantage estimation."""
    clip_epsilon: float = 0.2
    """The probability ratio is clipped to [1 - epsilon, 1 + epsilon]."""
    clip_schedule: Schedule = "constant"
    """``linear``: epsilon down to zero over the run's total steps."""
    value_clip_epsilon: float | None = None
    """Clip the value's change per update to this; None: do not."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus (the paper's c2)."""
    value_coefficient: float = 0.5
    """Weight of the mean squared value error (the paper's c1)."""
    max_gradient_norm: float | None = 0.5
    """Global gradient norm above which gradients are scaled down; None: never."""
    normalize_advantage: Literal["minibatch", "batch", "off"] = "minibatch"
    """Over what advantages get mean 0 and deviation 1."""
    target_kl: float | None = None
    """Stop an iteration's updates before a minibatch whose KL estimate exceeds 1.5 times this;
    None: never.
    """
    adam_epsilon: float = 1e-5
    """Adam's epsilon."""
    log_std_init: float = 0.0
    """First log standard deviation of continuous actions."""
    squash: bool = False
    """Continuous actions through tanh onto the bounds, instead of clipped to them."""
    gsde: bool = False
    """State-dependent exploration of continuous actions."""
    gsde_resample_interval: int = -1
    """Steps of an environment between two of its exploration matrices; -1: one per rollout."""

    def validate(self, config: TrainConfig) -> None:
        """Refuse values that cannot be trained with, naming key and value."""
        self._require_positive("learning_rate", "num_steps", "clip_epsilon", "adam_epsilon")
        self._require_at_most(_AT_MOST)
        self._require_not_negative("entropy_coefficient", "value_coefficient")
        self._require_positive_or_null("max_gradient_norm", "value_clip_epsilon", "target_kl")
        self._require_share("discount", "gae_lambda")
        batch = self.num_steps * config.num_envs
        self._require(
            2 <= self.minibatch_size <= batch,
            "minibatch_size",
            f"lie in [2, {batch}] (num_steps {self.num_steps} x num_envs {config.num_envs})",
        )
        interval = self.gsde_resample_interval
        self._require(interval == -1 or interval > 0, "gsde_resample_interval", "be -1 or positive")

    @property
    def scheduled(self) -> bool:
        """Whether learning rate or clipping falls with the budget."""
        return "linear" in (self.learning_rate_schedule, self.clip_schedule)


@dataclass(kw_only=True)
class PPOConfig(ClippedPolicyConfig):
    """PPO's hyperparameters, under the paper's names; the defaults are the paper's for continuous
    control.
    """

    num_epochs: int = 10
    """Passes over each batch (the paper's K)."""

    def validate(self, config: TrainConfig) -> None:
        """Refuse values that cannot be trained with, naming key and value."""
        super().validate(config)
        self._require_at_least_one("num_epochs")
        require(
            config.model.critic_hidden_sizes is None or not config.model.shared_trunk,
            "model.critic_hidden_sizes",
            "must be null with model.shared_trunk: the value function has the policy's layers",
        )


class PPO(OnPolicyAlgorithm):
    """Collect, estimate advantages, and take clipped gradient steps on shuffled minibatches.

    How a batch is collected stands in `rl_training.on_policy`.
    """

    name: ClassVar[str] = "ppo"
    Config: ClassVar[type[Any]] = PPOConfig
    action_spaces: ClassVar[tuple[str, ...]] = ACTION_SPACES["ppo"]
    loss_class: ClassVar[type[Any]] = LeanClipPPOLoss
    buffer_class: ClassVar[type[RolloutBuffer]] = RolloutBuffer

    def make(self) -> None:
        """Build the model, the loss, the optimiser and the gradient step."""
        config = self.config.algorithm
        self.model = self._build_model().to(self.device)
        self.modules["model"] = self.model
        self.parameters = FlatParameters(self._parameter_groups())
        self.loss_module = self.loss_class(
            self.model,
            clip_epsilon=config.clip_epsilon,
            entropy_coefficient=config.entropy_coefficient,
            value_coefficient=config.value_coefficient,
            value_clip_epsilon=config.value_clip_epsilon,
            normalize_advantage=config.normalize_advantage == "minibatch",
        )
        self._make_optimizers()
        self.rollout_policy = self._make_rollout_policy()

    def _build_model(self) -> ActorCritic:
        return self._make_model(
            MLPActorCritic, "shared" if self.config.model.shared_trunk else "dual"
        )

    def _parameter_groups(self) -> dict[str, list[torch.nn.Parameter]]:
        return {"policy": self.model.policy_parameters(), "value": self.model.value_parameters()}

    def _make_optimizers(self) -> None:
        self.optimizers["policy"] = self._make_adam("policy", "value")
        self._step = self._make_step(self._loss, self.optimizers["policy"], max_kl=self._max_kl)

    @property
    def _max_kl(self) -> float | None:
        target = self.config.algorithm.target_kl
        return None if target is None else 1.5 * target

    def _loss(self, minibatch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        terms = self.loss_module.terms(minibatch)
        loss = terms["loss_objective"] + terms["loss_critic"] + terms["loss_entropy"]
        return loss, {key: value.detach() for key, value in terms.items()}

    # ---- learning

    def _update(self, batch: TensorDictBase) -> dict[str, Tensor]:
        config = self.config.algorithm
        remaining = 1.0 - self.progress()
        linear = config.learning_rate_schedule == "linear"
        learning_rate = config.learning_rate * (remaining if linear else 1.0)
        clip_epsilon = config.clip_epsilon * (remaining if config.clip_schedule == "linear" else 1)
        for optimizer in self._scheduled_optimizers():
            optimizer.learning_rate.fill_(learning_rate)
        self.loss_module.clip_epsilon.fill_(clip_epsilon)
        samples = self.advantages(batch)
        with self.modes.learning():
            metrics = self._optimize(samples)
        metrics["train/explained_variance"] = explained_variance(
            batch["state_value"], batch["value_target"]
        )
        metrics["train/learning_rate"] = torch.tensor(learning_rate)
        metrics["train/clip_epsilon"] = torch.tensor(clip_epsilon)
        return metrics

    @property
    def scheduled(self) -> bool:
        """See the config."""
        return bool(self.config.algorithm.scheduled)

    def _scheduled_optimizers(self) -> list[FlatAdam]:
        return [self.optimizers["policy"]]

    @torch.no_grad()
    def advantages(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """Write ``advantage`` and ``value_target`` into the batch, and return its samples flat,
        ``[N * T, ...]``.
        """
        if "action_log_prob" not in batch.keys():  # noqa: SIM118  a TensorDict is no dict
            self.after_collection(batch)
        config, buffer = self.config.algorithm, self.buffer_class.of(batch)
        self._bootstrap(buffer)
        buffer.compute_returns_and_advantages(None, config.discount, config.gae_lambda)
        if config.normalize_advantage == "batch":
            buffer.advantages.copy_(normalize(buffer.advantages))
        return {key: value.to(self.device) for key, value in self._samples(buffer).items()}

    def _samples(self, buffer: Any) -> dict[str, Tensor]:
        samples: dict[str, Tensor] = buffer.samples()
        return samples

    def _bootstrap(self, buffer: RolloutBuffer) -> None:
        """Set the values of every step's true successor.

        While the episode goes on that is the next step's own value; only the last step's
        successors and those at a truncation need a forward of their own.
        """
        following = buffer.batch["next"]
        terminated = following["terminated"].squeeze(-1).T
        needs_forward = buffer.dones & ~terminated
        needs_forward[-1] = True
        next_values = buffer.values.roll(-1, 0)
        successors = following.transpose(0, 1)[needs_forward]
        next_values[needs_forward] = self._successor_values(successors).cpu()
        buffer.terminated, buffer.next_values = terminated, next_values

    def _successor_values(self, successors: TensorDictBase) -> Tensor:
        """Return the values ``[M]`` of what steps ended with."""
        return self.model.value(successors["observation"].to(self.device))

    def _minibatches(
        self, samples: Mapping[str, Tensor], epochs: int
    ) -> Iterator[tuple[Mapping[str, Tensor], Tensor]]:
        """Yield samples, and which of them a gradient step is on, over shuffled passes."""
        count, size = samples["value_target"].shape[0], self.config.algorithm.minibatch_size
        draws = self.generators["minibatch"]
        for _ in range(epochs):
            for indices in shuffled_indices(count, size, unit=self._unit, generator=draws):
                yield samples, indices

    @property
    def _unit(self) -> int:
        """Samples, steps of an environment, that minibatches are drawn in."""
        return 1

    def _optimize(self, samples: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self._run_epochs(self._step, samples, self.config.algorithm.num_epochs)

    def _run_epochs(
        self, step: GradientStep, samples: Mapping[str, Tensor], epochs: int
    ) -> dict[str, Tensor]:
        """Take gradient steps over ``epochs`` shuffled passes; return the metrics' means.

        Over the steps that were taken: the minibatch at which ``target_kl`` stops is none of them,
        unless it is the first, whose metrics are better than nothing.
        """
        taken: list[Tensor] = []
        for chosen, indices in self._minibatches(samples, epochs):
            measured = step(chosen, indices)
            if step.stopped:
                break
            taken.append(measured)
        means = torch.stack(taken or [measured]).mean(0).unbind(0)
        named = zip(step.metric_names, means, strict=True)
        metrics = {METRICS[name]: value for name, value in named}
        metrics["train/gradient_steps"] = torch.tensor(float(len(taken)))
        return metrics


METRICS = {
    "loss_objective": "loss/policy",
    "loss_critic": "loss/value",
    "loss_entropy": "loss/entropy",
    "entropy": "train/entropy",
    "approx_kl": "train/approx_kl",
    "clip_fraction": "train/clip_fraction",
    "gradient_norm": "train/gradient_norm",
}


def train_ppo(config: Any, **overrides: Any) -> TrainResult:
    """Train PPO as ``config`` says (a `TrainConfig` or the path of a preset), with any field
    overridden.
    """
    return train_with_overrides("ppo", config, overrides)


if __name__ == "__main__":
    from rl_training.cli import recipe_main

    recipe_main("ppo")
