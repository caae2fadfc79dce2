"""Phasic policy gradient (Cobbe et al. 2020, https://arxiv.org/abs/2009.04416).

python -m rl_training.recipes.ppg --config zoo/ppg_cartpole.yaml
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_training.config import TrainConfig, require, require_directory
from rl_training.data.frame_stacks import stacked_frames
from rl_training.data.phase_data import PhaseData, phase_layout
from rl_training.data.phase_samples import PhaseSamples
from rl_training.data.replay_storage import Storage
from rl_training.envs.observations import observed_torch_dtype
from rl_training.errors import UserError
from rl_training.losses.ppg import PPGAuxiliaryLoss
from rl_training.models.actor_critic import Architecture, MLPPPGModel
from rl_training.optim import FlatAdam, GradientStep, LossFunction
from rl_training.recipes.ppo import PPO, ClippedPolicyConfig
from rl_training.registry import ACTION_SPACES
from rl_training.runtime.checks import require_counter
from rl_training.workflows import TrainResult, train_with_overrides


@dataclass(kw_only=True)
class PPGConfig(ClippedPolicyConfig):
    """PPG's hyperparameters, under the paper's names; defaults of the paper and its code."""

    learning_rate: float = 5e-4
    """Adam's step size in the policy phase."""
    discount: float = 0.999
    """Gamma."""
    entropy_coefficient: float = 0.01
    """Weight of the entropy bonus (the paper's beta_S)."""
    max_gradient_norm: float | None = None
    """Global gradient norm above which gradients are scaled down, in both phases; None: never."""
    normalize_advantage: Literal["minibatch", "batch", "off"] = "batch"
    """Over what advantages get mean 0 and deviation 1."""
    adam_epsilon: float = 1e-8
    """Adam's epsilon."""
    architecture: Architecture = "dual"
    """``dual``: an encoder each; ``detach``: one, untouched by the value loss; ``shared``: one,
    trained by both.
    """
    policy_iterations: int = 32
    """Iterations of a policy phase (N_pi): so many lie between two auxiliary phases."""
    policy_epochs: int = 1
    """Passes of the policy loss over each batch (E_pi)."""
    value_epochs: int = 1
    """Passes of the value loss over each batch (E_V); equal to ``policy_epochs``, both are trained
    together.
    """
    auxiliary_epochs: int = 6
    """Passes over the phase's data in the auxiliary phase (E_aux); 0 leaves the phase out."""
    auxiliary_minibatches: int = 512
    """Minibatches of each of those passes (the paper: 16 N_pi)."""
    auxiliary_iterations: int | None = None
    """The auxiliary phase is over the data of the latest so many iterations, older ones included;
    None: over those since the phase before.
    """
    auxiliary_steps: int | None = None
    """Gradient steps after which an auxiliary phase ends early; None: never."""
    whole_sequences: bool = False
    """Minibatches of whole rows of a rollout, in both phases, as the paper's code has them; else of
    single steps.
    """
    policy_accumulation: int = 1
    """Parts in which the gradient of a minibatch of the policy phase is computed, to take less
    memory.
    """
    auxiliary_accumulation: int = 1
    """The same for the auxiliary phase."""
    auxiliary_storage: Storage = "ram"
    """Where the auxiliary phase's data is: in memory, or in files mapped into it."""
    auxiliary_directory: str | None = None
    """Directory of those files; None: the system's temporary one."""
    auxiliary_learning_rate: float = 5e-4
    """Adam's step size in the auxiliary phase, whose optimiser is its own."""
    clone_coefficient: float = 1.0
    """Weight of the divergence from the old policy in the auxiliary phase (beta_clone)."""
    true_value_coefficient: float = 1.0
    """Weight of the true value function's error in the auxiliary phase."""

    @property
    def phase_iterations(self) -> int:
        """Iterations whose data an auxiliary phase is over."""
        return self.auxiliary_iterations or self.policy_iterations

    def validate(self, config: TrainConfig) -> None:
        """Refuse values that cannot be trained with, naming key and value."""
        super().validate(config)
        require_directory("algorithm.auxiliary_directory", self.auxiliary_directory)
        self._require_at_least_one("policy_iterations", "policy_epochs", "value_epochs")
        self._require_at_least_one("auxiliary_minibatches")
        self._require_at_least_one("policy_accumulation", "auxiliary_accumulation")
        for key in ("auxiliary_iterations", "auxiliary_steps"):
            value = getattr(self, key)
            self._require(value is None or value >= 1, key, "be at least 1, or null")
        require(
            self.policy_accumulation == 1 or self.normalize_advantage != "minibatch",
            "algorithm.policy_accumulation",
            "must be 1 with normalize_advantage 'minibatch': parts have other means",
        )
        self._require_not_negative("auxiliary_epochs", "clone_coefficient")
        self._require_not_negative("true_value_coefficient")
        self._require_positive("auxiliary_learning_rate")
        rows = self.phase_iterations * config.num_envs
        most, what = rows * self.num_steps, "samples"
        if self.whole_sequences:
            most, what = rows, "sequences"
            self._require(
                self.minibatch_size % self.num_steps == 0,
                "minibatch_size",
                f"be a multiple of num_steps, {self.num_steps}, with whole_sequences",
            )
        self._require(
            self.auxiliary_minibatches <= most,
            "auxiliary_minibatches",
            f"be at most the {most} {what} of a phase",
        )
        require(
            not config.compile
            or self.auxiliary_minibatches % (self.auxiliary_iterations or 1) == 0,
            "algorithm.auxiliary_minibatches",
            "must be a multiple of auxiliary_iterations with compile: each size is compiled anew",
        )
        self._validate_architecture(config)

    def _validate_architecture(self, config: TrainConfig) -> None:
        require(
            self.architecture != "shared" or self.policy_epochs == self.value_epochs,
            "algorithm.value_epochs",
            "must equal policy_epochs: architecture shared trains both losses together",
        )
        require(
            not config.model.shared_trunk,
            "model.shared_trunk",
            "is PPO's; PPG has algorithm.architecture",
        )
        require(
            config.model.critic_hidden_sizes is None or self.architecture == "dual",
            "model.critic_hidden_sizes",
            f"must be null with architecture {self.architecture}: both have the same layers",
        )


class PPG(PPO):
    """PPO's iterations, and after every ``policy_iterations`` of them an auxiliary phase.

    The auxiliary phase distils the value function into the policy's encoder, over all the data of
    the policy phase, while a divergence from the old policy keeps the behaviour. With
    ``auxiliary_epochs = 0`` and ``policy_epochs = value_epochs`` it is PPO, bit for bit. With
    ``policy_iterations = 1`` and ``auxiliary_iterations = 32`` there is a phase after every
    iteration, over those of the last 32 (Wang et al. 2023, PPG Reloaded).
    """

    name: ClassVar[str] = "ppg"
    Config: ClassVar[type[Any]] = PPGConfig
    action_spaces: ClassVar[tuple[str, ...]] = ACTION_SPACES["ppg"]
    auxiliary_loss_class: ClassVar[type[Any]] = PPGAuxiliaryLoss
    model: MLPPPGModel

    def __init__(self, env: Any = None, **options: Any) -> None:
        super().__init__(env, **options)
        if self.config.algorithm.auxiliary_epochs > 0:
            self._phase.allocate()  # no room for it: refused before anything is written

    def make(self) -> None:
        """Add the auxiliary loss, its optimiser and its gradient step to PPO's."""
        config = self.config.algorithm
        super().make()
        self.auxiliary_loss = self.auxiliary_loss_class(
            self.model,
            clone_coefficient=config.clone_coefficient,
            true_value_coefficient=config.true_value_coefficient,
        )
        self.optimizers["auxiliary"] = self._make_adam("policy", "value", "auxiliary")
        self.optimizers["auxiliary"].learning_rate.fill_(config.auxiliary_learning_rate)
        self._auxiliary_step = self._make_step(
            self._auxiliary_loss,
            self.optimizers["auxiliary"],
            pieces=config.auxiliary_accumulation,
        )
        self._phase = self._make_phase_data()
        self._since_phase = 0
        """Iterations since the last auxiliary phase."""

    def _make_step(self, loss: LossFunction, optimizer: FlatAdam, **options: Any) -> GradientStep:
        options = {"pieces": self.config.algorithm.policy_accumulation, **options}
        return super()._make_step(loss, optimizer, **options)

    def _make_phase_data(self) -> PhaseData:
        frames = stacked_frames(self.config, named=self._source is None)
        layout = phase_layout(
            self.config.num_envs,
            self.config.algorithm.num_steps,
            self.observation_space.shape,
            observed_torch_dtype(self.observation_space, self.normalizer),
            frame_stack=frames,
        )
        return PhaseData(layout, frame_stack=frames, **self._phase_options())

    def _phase_options(self) -> dict[str, Any]:
        config = self.config.algorithm
        place = {"storage": config.auxiliary_storage, "directory": config.auxiliary_directory}
        return {"capacity": config.phase_iterations, **place}

    def _build_model(self) -> MLPPPGModel:
        return cast(
            "MLPPPGModel", self._make_model(MLPPPGModel, self.config.algorithm.architecture)
        )

    def _parameter_groups(self) -> dict[str, list[torch.nn.Parameter]]:
        return {**super()._parameter_groups(), "auxiliary": self.model.auxiliary_parameters()}

    def _make_optimizers(self) -> None:
        config = self.config.algorithm
        self._joint = config.policy_epochs == config.value_epochs
        if self._joint:
            super()._make_optimizers()
            return
        self.optimizers["policy"] = self._make_adam("policy")
        self.optimizers["value"] = self._make_adam("value")
        self._step = self._make_step(
            self._policy_loss, self.optimizers["policy"], max_kl=self._max_kl
        )
        self._value_step = self._make_step(self._value_loss, self.optimizers["value"])

    def _scheduled_optimizers(self) -> list[FlatAdam]:
        return [each for name, each in self.optimizers.items() if name != "auxiliary"]

    def _policy_loss(self, minibatch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        terms = self.loss_module.policy_terms(minibatch)
        metrics = {key: value.detach() for key, value in terms.items()}
        return terms["loss_objective"] + terms["loss_entropy"], metrics

    def _value_loss(self, minibatch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        loss = self.loss_module.value_terms(minibatch)["loss_critic"]
        return loss, {"loss_critic": loss.detach()}

    def _auxiliary_loss(self, minibatch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        terms = self.auxiliary_loss.terms(minibatch)
        return terms.pop("loss_auxiliary"), terms

    def describe(self) -> list[str]:
        """Return also the size of the auxiliary phase's data."""
        config, steps = self.config.algorithm, self.frames_per_batch
        return [
            *super().describe(),
            f"auxiliary phase: {config.phase_iterations * steps:,} samples every "
            f"{config.policy_iterations * steps:,} steps, {self._phase.describe()}",
        ]

    def _update(self, batch: TensorDictBase) -> dict[str, Tensor]:
        config = self.config.algorithm
        start = time.perf_counter()
        metrics = super()._update(batch)
        metrics["time/policy_phase"] = torch.tensor(time.perf_counter() - start)
        if config.auxiliary_epochs > 0:
            self._phase.add(batch)
            self._since_phase += 1
            if self._since_phase >= config.policy_iterations:
                metrics.update(self.auxiliary_update())
        return metrics

    @property
    def _unit(self) -> int:
        """Samples that minibatches are drawn in, in both phases: single ones, or whole rows."""
        config = self.config.algorithm
        return int(config.num_steps) if config.whole_sequences else 1

    def _optimize(self, samples: Mapping[str, Tensor]) -> dict[str, Tensor]:
        config = self.config.algorithm
        metrics = self._run_epochs(self._step, samples, config.policy_epochs)
        if not self._joint:
            steps = metrics.pop("train/gradient_steps")
            policy_norm = metrics["train/gradient_norm"]
            metrics.update(self._run_epochs(self._value_step, samples, config.value_epochs))
            metrics["train/value_gradient_norm"] = metrics["train/gradient_norm"]
            metrics["train/gradient_norm"] = policy_norm
            metrics["train/gradient_steps"] += steps
        return metrics

    def auxiliary_update(self) -> dict[str, Tensor]:
        """Run the auxiliary phase on the data gathered, forget what the next one is not to see, and
        return ``aux/*`` metrics.

        Raises:
            UserError: no data has been gathered.
        """
        if not self._phase:
            raise UserError("there is no data for an auxiliary phase yet: update() gathers it.")
        config, phase = self.config.algorithm, self._phase
        start = time.perf_counter()
        # Samples whose number grows at first are not for a compiled step to see as a whole.
        whole = phase.storage == "ram" and config.auxiliary_iterations is None
        samples = PhaseSamples(phase, unit=self._unit, device=self.device, whole=whole)
        pieces, most = self._pieces(len(samples)), config.auxiliary_steps
        taken: list[Tensor] = []
        for epoch in range(config.auxiliary_epochs):
            minibatches = samples.shuffled(
                pieces, self.generators["minibatch"], at_most=most and most - len(taken)
            )
            if epoch == 0:
                self._keep_old_policy(samples, minibatches)
            with self.modes.learning():
                taken += [self._auxiliary_step(*samples.minibatch(each)) for each in minibatches]
        self._since_phase = 0
        phase.forget_all_but(max(config.phase_iterations - config.policy_iterations, 0))
        return self._auxiliary_metrics(torch.stack(taken), time.perf_counter() - start)

    def _pieces(self, count: int) -> int:
        """Return how many minibatches a pass over ``count`` samples or sequences has."""
        config = self.config.algorithm
        pieces = config.auxiliary_minibatches
        if config.auxiliary_iterations is not None:
            # While the latest iterations are fewer than that, as large ones as afterwards.
            pieces = max(pieces * len(self._phase) // config.auxiliary_iterations, 1)
        return int(min(pieces, count))

    @torch.no_grad()
    def _keep_old_policy(self, samples: PhaseSamples, minibatches: Sequence[Tensor]) -> None:
        """Keep the distribution of the policy as it now is beside the samples.

        In the very minibatches that the phase begins with, cut as the gradient steps compute them:
        the same rows multiplied in another batch may differ in the last bit, and the first
        divergence would not be exactly zero.
        """
        count, loss = self.config.algorithm.auxiliary_accumulation, self.auxiliary_loss
        parts = [part for each in minibatches for part in each.tensor_split(min(count, len(each)))]
        samples.keep(loss.old_parameter_keys, loss.distribution, parts)

    def _auxiliary_metrics(self, taken: Tensor, seconds: float) -> dict[str, Tensor]:
        names = self._auxiliary_step.metric_names
        metrics = {
            f"aux/{name}": value for name, value in zip(names, taken.mean(0).unbind(0), strict=True)
        }
        divergence = taken[:, names.index("kl")]
        metrics["aux/kl_first"], metrics["aux/kl_last"] = divergence[0], divergence[-1]
        metrics["time/auxiliary_phase"] = torch.tensor(seconds)
        return metrics

    def extra_state(self) -> dict[str, Any]:
        """Return the data gathered for the next auxiliary phase, beside PPO's."""
        phase = {**self._phase.state_dict(), "iterations": self._since_phase}
        return {**super().extra_state(), "phase": phase}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore ``extra_state()``."""
        super().load_extra_state(state)
        self._phase.load_state_dict(state["phase"])
        self._since_phase = require_counter("iterations", state["phase"]["iterations"])


def train_ppg(config: Any, **overrides: Any) -> TrainResult:
    """Train PPG as ``config`` says (a `TrainConfig` or the path of a preset), with any field
    overridden.
    """
    return train_with_overrides("ppg", config, overrides)


if __name__ == "__main__":
    from rl_training.cli import recipe_main

    recipe_main("ppg")
