"""The hyperparameters that algorithms with memory have in common."""

from __future__ import annotations

from dataclasses import dataclass, field

from rl_training.config import Hyperparameters, TrainConfig, require
from rl_training.models.lstm import CriticMemory
from rl_training.models.memory import MemoryKind

_AT_MOST = {"memory_size": 65_536, "memory_layers": 64}


@dataclass(kw_only=True)
class MemoryConfig(Hyperparameters):
    """What a policy remembers with, and how its sequences are trained on."""

    memory: MemoryKind = "lstm"
    """``lstm`` or ``gru``."""
    memory_size: int = 64
    """Units of each of its layers."""
    memory_layers: int = 1
    """Its layers."""
    critic_memory: CriticMemory = "separate"
    """``separate``: encoder and memory of the value function's own; ``shared``: the policy's,
    trained by both; ``none``: an encoder of its own, and no memory.
    """
    output_sizes: list[int] = field(default_factory=list)
    """Units of each hidden layer between the memory and the heads."""
    previous_action: bool = False
    """The memory also gets the action before."""
    previous_reward: bool = False
    """The memory also gets the reward before."""
    sequence_length: int | None = None
    """Steps of a sequence that is trained on, which divide ``num_steps``; None: all of them."""
    burn_in: int = 0
    """Steps before a sequence from which its first state is computed anew, by the present
    parameters, before each pass.
    """
    refresh_state: bool = False
    """Compute every sequence's first state anew before each pass, from the rollout's beginning."""

    def validate_memory(self, config: TrainConfig) -> None:
        """Refuse what no policy can remember with, or no sequence be cut by."""
        require(
            config.model.critic_hidden_sizes is None,
            "model.critic_hidden_sizes",
            "must be null with a memory: what both memories read has one size",
        )
        for key, most in _AT_MOST.items():
            self._require(1 <= getattr(self, key) <= most, key, f"lie in [1, {most}]")
        sizes = self.output_sizes
        self._require(all(size >= 1 for size in sizes), "output_sizes", "be positive")
        steps = config.algorithm.num_steps
        length = steps if self.sequence_length is None else self.sequence_length
        self._require(
            1 <= length <= steps and steps % length == 0,
            "sequence_length",
            f"divide num_steps, {steps}",
        )
        size = config.algorithm.minibatch_size
        require(
            size % length == 0,
            "algorithm.minibatch_size",
            f"must be a multiple of the sequence length, {length}, not {size}",
        )
        most = length if length < steps else 0
        self._require(
            0 <= self.burn_in <= most,
            "burn_in",
            f"lie in [0, {most}]: sequences are of {length} steps, and whole rollouts have nothing "
            "before them",
        )
        self._require(
            not (self.refresh_state and self.burn_in), "burn_in", "be 0 with refresh_state"
        )
        self._require(
            not (self.previous_reward and config.env.normalize_reward),
            "previous_reward",
            "be false with env.normalize_reward: evaluation has other rewards than training",
        )
