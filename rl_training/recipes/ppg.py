"""Phasic policy gradient (Cobbe et al. 2020, https://arxiv.org/abs/2009.04416).

python -m rl_training.recipes.ppg --config zoo/ppg_cartpole.yaml
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_training.config import TrainConfig, require
from rl_training.data.frame_stacks import stacked_frames
from rl_training.data.phase_data import PhaseData, minibatch_of, parts_of, samples_of
from rl_training.data.rollout_buffer import shuffled_indices
from rl_training.errors import UserError
from rl_training.losses.ppg import PPGAuxiliaryLoss
from rl_training.models.actor_critic import Architecture, MLPPPGModel
from rl_training.optim import FlatAdam
from rl_training.recipes.ppo import PPO, ClippedPolicyConfig
from rl_training.registry import ACTION_SPACES
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
    """Iterations of a policy phase (N_pi)."""
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
    whole_sequences: bool = False
    """Minibatches of whole rows of a rollout, in both phases, as the paper's code has them; else of
    single steps.
    """
    auxiliary_accumulation: int = 1
    """Parts in which the gradient of an auxiliary minibatch is computed, to take less memory."""
    auxiliary_learning_rate: float = 5e-4
    """Adam's step size in the auxiliary phase, whose optimiser is its own."""
    clone_coefficient: float = 1.0
    """Weight of the divergence from the old policy in the auxiliary phase (beta_clone)."""
    true_value_coefficient: float = 1.0
    """Weight of the true value function's error in the auxiliary phase."""

    def validate(self, config: TrainConfig) -> None:
        """Refuse values that cannot be trained with, naming key and value."""
        super().validate(config)
        at_least_one = ("policy_iterations", "policy_epochs", "value_epochs")
        for key in (*at_least_one, "auxiliary_minibatches", "auxiliary_accumulation"):
            self._require(getattr(self, key) >= 1, key, "be at least 1")
        for key in ("auxiliary_epochs", "clone_coefficient", "true_value_coefficient"):
            self._require(getattr(self, key) >= 0, key, "not be negative")
        self._require(self.auxiliary_learning_rate > 0, "auxiliary_learning_rate", "be positive")
        rows = self.policy_iterations * config.num_envs
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
            self.architecture != "shared" or self.policy_epochs == self.value_epochs,
            "algorithm.value_epochs",
            "must equal policy_epochs: architecture shared trains both losses together",
        )
        require(
            not config.model.shared_trunk,
            "model.shared_trunk",
            "is PPO's; PPG has algorithm.architecture",
        )


class PPG(PPO):
    """PPO's iterations, and after every ``policy_iterations`` of them an auxiliary phase.

    The auxiliary phase distils the value function into the policy's encoder, over all the data of
    the policy phase, while a divergence from the old policy keeps the behaviour. With
    ``auxiliary_epochs = 0`` and ``policy_epochs = value_epochs`` it is PPO, bit for bit.
    """

    name: ClassVar[str] = "ppg"
    Config: ClassVar[type[Any]] = PPGConfig
    action_spaces: ClassVar[tuple[str, ...]] = ACTION_SPACES["ppg"]
    auxiliary_loss_class: ClassVar[type[Any]] = PPGAuxiliaryLoss
    model: MLPPPGModel

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

    def _make_phase_data(self) -> PhaseData:
        return PhaseData(stacked_frames(self.config, named=self._source is None))

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
        samples = self.config.algorithm.policy_iterations * self.frames_per_batch
        specs = self.environment.observation_spec["observation"]
        values = specs.shape[1:].numel() // self._phase.frame_stack
        per_sample = specs.dtype.itemsize * values + torch.float32.itemsize
        return [
            *super().describe(),
            f"auxiliary phase: {samples:,} samples every {samples:,} steps, "
            f"{samples * per_sample / 1e6:.2f} MB",
        ]

    def _update(self, batch: TensorDictBase) -> dict[str, Tensor]:
        config = self.config.algorithm
        start = time.perf_counter()
        metrics = super()._update(batch)
        metrics["time/policy_phase"] = torch.tensor(time.perf_counter() - start)
        if config.auxiliary_epochs > 0:
            self._phase.add(batch)
            if len(self._phase) == config.policy_iterations:
                metrics.update(self.auxiliary_update())
        return metrics

    def _minibatches(
        self, samples: Mapping[str, Tensor], epochs: int
    ) -> Iterator[tuple[Mapping[str, Tensor], Tensor]]:
        """Yield samples, and which of them a gradient step is on: single steps or whole rows."""
        config = self.config.algorithm
        if not config.whole_sequences:
            yield from super()._minibatches(samples, epochs)
            return
        count = samples["value_target"].shape[0] // config.num_steps
        size = config.minibatch_size // config.num_steps
        for _ in range(epochs):
            for rows in shuffled_indices(count, size, generator=self.generators["minibatch"]):
                yield samples, _steps_of(rows, config.num_steps)

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
        """Run the auxiliary phase on the data gathered since the last one, forget it, and return
        ``aux/*`` metrics.

        Raises:
            UserError: no data has been gathered.
        """
        if not self._phase:
            raise UserError("there is no data for an auxiliary phase yet: update() gathers it.")
        config = self.config.algorithm
        start = time.perf_counter()
        data = {key: value.to(self.device) for key, value in self._phase.joined().items()}
        # Where the samples are sequences themselves, each is one.
        unit = config.num_steps if config.whole_sequences else 1
        count = data["value_target"].shape[0] // unit
        pieces = min(config.auxiliary_minibatches, count)
        taken: list[Tensor] = []
        for epoch in range(config.auxiliary_epochs):
            permutation = torch.randperm(count, generator=self.generators["minibatch"])
            cuts = permutation.to(self.device).tensor_split(pieces)
            minibatches = [_steps_of(rows, unit) for rows in cuts]
            if epoch == 0:
                data.update(self._old_policy(data, self._parts(minibatches)))
            taken += [self._auxiliary_step(*minibatch_of(data, each)) for each in minibatches]
        self._phase.parts = []
        return self._auxiliary_metrics(torch.stack(taken), time.perf_counter() - start)

    def _parts(self, minibatches: Sequence[Tensor]) -> list[Tensor]:
        """Return the minibatches as the gradient steps compute them."""
        parts = self.config.algorithm.auxiliary_accumulation
        return [part for each in minibatches for part in each.tensor_split(min(parts, len(each)))]

    @torch.no_grad()
    def _old_policy(
        self, data: Mapping[str, Tensor], minibatches: Sequence[Tensor]
    ) -> dict[str, Tensor]:
        """Return the distribution of the policy as it now is, ``[M, ...]`` per parameter.

        In the very minibatches that the phase begins with: the same rows multiplied in another
        batch may differ in the last bit, and the first divergence would not be exactly zero.
        """
        names = self.auxiliary_loss.old_parameter_keys
        parts = [self.auxiliary_loss.distribution(samples_of(data, each)) for each in minibatches]
        order = torch.cat(list(minibatches))
        old = {}
        for name, pieces in zip(names, zip(*parts, strict=True), strict=True):
            joined = torch.cat(pieces)
            old[name] = torch.empty_like(joined).index_copy_(0, order, joined)
        return old

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
        return {**super().extra_state(), "phase": parts_of(self._phase.parts)}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore ``extra_state()``."""
        super().load_extra_state(state)
        self._phase.parts = parts_of(state["phase"])


def _steps_of(rows: Tensor, length: int) -> Tensor:
    """Return the indices of all steps of some rows of ``length`` steps."""
    if length == 1:
        return rows
    return (rows.unsqueeze(1) * length + torch.arange(length, device=rows.device)).flatten()


def train_ppg(config: Any, **overrides: Any) -> TrainResult:
    """Train PPG as ``config`` says (a `TrainConfig` or the path of a preset), with any field
    overridden.
    """
    return train_with_overrides("ppg", config, overrides)


if __name__ == "__main__":
    from rl_training.cli import recipe_main

    recipe_main("ppg")
