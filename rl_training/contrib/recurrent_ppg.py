"""Phasic policy gradient of policies with memory: an LSTM or a GRU.

python -m rl_training.contrib.recurrent_ppg --config zoo/recurrent_ppg_repeat_previous.yaml

It is `rl_training.recipes.ppg.PPG` on the sequences of `rl_training.contrib.recurrent_ppo`. The
auxiliary phase replays those of all its iterations from the states that they were collected from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, cast

from rl_training.config import TrainConfig, require
from rl_training.contrib.memory_config import MemoryConfig
from rl_training.contrib.recurrent_ppo import RecurrentPPO
from rl_training.data.phase_data import PhaseData, SequencePhaseData, sequence_layout
from rl_training.envs.observations import observed_torch_dtype
from rl_training.losses.recurrent_ppg import RecurrentPPGAuxiliaryLoss
from rl_training.models.lstm import LSTMPPGModel
from rl_training.recipes.ppg import PPG, PPGConfig
from rl_training.registry import ACTION_SPACES
from rl_training.workflows import TrainResult, train_with_overrides


@dataclass(kw_only=True)
class RecurrentPPGConfig(MemoryConfig, PPGConfig):
    """PPG's hyperparameters, and those of the memory."""

    num_steps: int = 128
    """Steps per environment and iteration."""
    minibatch_size: int = 256
    """Samples per gradient step of the policy phase, in whole sequences."""
    auxiliary_minibatches: int = 128
    """Minibatches of each pass of the auxiliary phase, in whole sequences."""

    def validate(self, config: TrainConfig) -> None:
        """Refuse values that cannot be trained with, naming key and value."""
        super().validate(config)
        self.validate_memory(config)
        self._require(
            not self.whole_sequences, "whole_sequences", "be false: sequence_length says it here"
        )
        shared = self.critic_memory == "shared"
        require(
            shared == (self.architecture != "dual"),
            "algorithm.critic_memory",
            "must be 'shared' with architecture 'shared' or 'detach', and only then, "
            f"not {self.critic_memory!r} with {self.architecture!r}",
        )
        require(
            self.policy_accumulation == 1
            or self.num_steps * config.num_envs % self.minibatch_size == 0,
            "algorithm.policy_accumulation",
            "must be 1 where minibatch_size does not divide the rollout: the last one is filled up",
        )
        length = self.sequence_length or self.num_steps
        count = self.phase_iterations * self.num_steps * config.num_envs // length
        self._require(
            self.auxiliary_minibatches <= count,
            "auxiliary_minibatches",
            f"be at most the {count} sequences of a phase",
        )


class RecurrentPPG(RecurrentPPO, PPG):
    """PPG on sequences, with a policy and value functions that remember."""

    name: ClassVar[str] = "recurrent_ppg"
    Config: ClassVar[type[Any]] = RecurrentPPGConfig
    action_spaces: ClassVar[tuple[str, ...]] = ACTION_SPACES["recurrent_ppg"]
    auxiliary_loss_class: ClassVar[type[Any]] = RecurrentPPGAuxiliaryLoss
    model: LSTMPPGModel  # type: ignore[assignment]

    def _build_model(self) -> LSTMPPGModel:  # type: ignore[override]
        architecture = self.config.algorithm.architecture
        return cast("LSTMPPGModel", self._make_recurrent(LSTMPPGModel, architecture))

    def _make_phase_data(self) -> PhaseData:
        sizes = self.model.carried_sizes
        layout = sequence_layout(
            self.config.num_envs * self.config.algorithm.num_steps // self._length,
            self._length,
            self.observation_space.shape,
            observed_torch_dtype(self.observation_space, self.normalizer),
            self.model.initial_state(1).shape[1:],
            sizes,
        )
        return SequencePhaseData(
            layout, length=self._length, keys=tuple(sizes), **self._phase_options()
        )


def train_recurrent_ppg(config: Any, **overrides: Any) -> TrainResult:
    """Train recurrent PPG as ``config`` says (a `TrainConfig` or the path of a preset), with any
    field overridden.
    """
    return train_with_overrides("recurrent_ppg", config, overrides)


if __name__ == "__main__":
    from rl_training.cli import recipe_main

    recipe_main("recurrent_ppg")
