"""Policies with memory: an encoder, an LSTM or a GRU, and heads on what is remembered."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from rl_training.envs.masks import MaskColumns
from rl_training.models.actor_critic import (
    ActorCritic,
    Architecture,
    output_size,
    scalar,
    trainable,
)
from rl_training.models.heads import ActionHead, Parameters
from rl_training.models.memory import Memory, MemoryKind
from rl_training.models.mlp import MLP, orthogonal_

CriticMemory = Literal["separate", "shared", "none"]
"""A memory of the value function's own, the policy's, or none at all."""

MEMORY, PREVIOUS_ACTION, PREVIOUS_REWARD = "memory", "previous_action", "previous_reward"
"""Keys that a policy carries from step to step: the state ``[N, K, H]``, and what it did and got
``[N, A]``, ``[N, 1]``. All are zero where an episode begins.
"""


class LSTMActorCritic(ActorCritic):
    """Encoder, memory, hidden layers, heads: from sequences to distributions and values.

    Everything is ``[B, T, ...]``: B sequences of T steps, with the state ``[B, K, H]`` that each
    began with and ``is_init`` ``[B, T]``, True where an episode begins: the state is zeroed before
    that step. Single steps, ``[N, ...]``, have methods of their own.

    Args:
        make_encoder: returns a new module from observations to ``[*batch, output_size]``.
        make_head: from the number of features to the action head.
        architecture: of the encoder, as for `ActorCritic`; ``shared`` and ``detach`` with
            ``critic_memory="shared"`` alone.
        orthogonal_init: orthogonal weights with gains sqrt(2), 0.01 (policy) and 1 (value); those
            of the memory with gain 1, and zero biases.
        memory: ``lstm`` or ``gru``.
        memory_size: units of each layer, H.
        memory_layers: layers.
        critic_memory: ``separate`` (an encoder and a memory of its own), ``shared`` (the policy's,
            trained by both) or ``none`` (an encoder of its own and no memory).
        output_sizes: hidden layers between the memory and the heads.
        activation: of those.
        previous_action: also give the memory the action before (one-hot where discrete).
        previous_reward: also give it the reward before.
        mask_columns: where the mask of legal actions stands in an observation; the head's features
            then end with it.
    """

    masks_its_features: ClassVar[bool] = True
    carried_sizes: dict[str, int]
    """What is carried beside the state, by key: how many numbers."""

    def __init__(
        self,
        *,
        make_encoder: Callable[[], nn.Module],
        make_head: Callable[[int], ActionHead],
        architecture: Architecture = "dual",
        orthogonal_init: bool = True,
        memory: MemoryKind = "lstm",
        memory_size: int = 64,
        memory_layers: int = 1,
        critic_memory: CriticMemory = "separate",
        output_sizes: Sequence[int] = (),
        activation: str = "tanh",
        previous_action: bool = False,
        previous_reward: bool = False,
        mask_columns: MaskColumns | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.architecture = architecture
        self.critic_memory = critic_memory
        self.mask_columns = mask_columns

        def make_output(size: int) -> MLP:
            return MLP(input_shape=(size,), hidden_sizes=output_sizes, activation=activation)

        self.encoder = make_encoder()
        self.value_encoder = None if critic_memory == "shared" else make_encoder()
        self.output = make_output(memory_size)
        self.feature_size = self.output.output_size
        if mask_columns is not None:
            self.feature_size += mask_columns.size
        self.action_head = make_head(self.feature_size)
        self.carried_sizes = {
            **({PREVIOUS_ACTION: self.action_head.num_actions} if previous_action else {}),
            **({PREVIOUS_REWARD: 1} if previous_reward else {}),
        }
        features = output_size(self.encoder) + sum(self.carried_sizes.values())
        self.memory = Memory(
            count=2 if critic_memory == "separate" else 1,
            input_size=features,
            hidden_size=memory_size,
            layers=memory_layers,
            kind=memory,
        )
        self.value_output = make_output(features if critic_memory == "none" else memory_size)
        self.value_head = nn.Linear(self.value_output.output_size, 1)
        self._orthogonal_init = orthogonal_init
        if orthogonal_init:
            self._initialize()

    def _initialize(self) -> None:
        for module in (self.encoder, self.value_encoder, self.output, self.value_output):
            if module is not None:
                orthogonal_(module, math.sqrt(2))
        orthogonal_(self.action_head, 0.01)
        orthogonal_(self.value_head, 1.0)
        self.memory.orthogonal_()

    # ---- sequences [B, T, ...]

    def initial_state(self, num_envs: int) -> Tensor:
        """Return the state at an episode's start: zeros ``[num_envs, K, H]``."""
        return self.memory.initial_state(num_envs)

    def sequence(
        self,
        observation: Tensor,
        state: Tensor | None = None,
        is_init: Tensor | None = None,
        extra: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return features of the policy ``[B, T, F]``, values ``[B, T]`` and the states after every
        step ``[B, T, K, H]``.

        Args:
            observation: ``[B, T, *shape]``.
            state: ``[B, K, H]`` before the first step; None: zeros.
            is_init: bool ``[B, T]``; None: nowhere.
            extra: ``[B, T, E]``, where the model takes it.
        """
        inputs, own = self._inputs(observation, extra)
        if state is None:
            state = self.initial_state(observation.shape[0])
        if is_init is None:
            is_init = torch.zeros(observation.shape[:2], dtype=torch.bool, device=inputs.device)
        remembered, states = self.memory.sequence(
            inputs.transpose(1, 2), is_init.transpose(0, 1), state
        )
        remembered = remembered.transpose(1, 2)
        # [M, T, N, L, P, H]: every step's state as one tensor of all memories.
        after = states.permute(2, 1, 0, 3, 4, 5).flatten(2, 4)
        features = self._features(remembered, observation)
        return features, self._value_of(remembered, own), after

    def _inputs(self, observation: Tensor, extra: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return what the memories take, ``[M, *batch, I]``, and what a value function without
        memory reads.
        """
        encoded = [self.encoder(observation)]
        if self.value_encoder is not None:
            encoded.append(self.value_encoder(observation))
        if extra is not None:
            encoded = [torch.cat([each, extra], -1) for each in encoded]
        own = encoded.pop() if self.critic_memory == "none" else None
        return torch.stack(encoded), own

    def _features(self, remembered: Tensor, observation: Tensor) -> Tensor:
        """Return what the action head reads, ``[*batch, F]``."""
        features: Tensor = self.output(remembered[0])
        if self.mask_columns is None:
            return features
        return torch.cat([features, self.mask_columns.of(observation)], -1)

    def _value_of(self, remembered: Tensor, own: Tensor | None) -> Tensor:
        read = remembered[-1] if own is None else own
        if self.architecture == "detach":
            read = read.detach()
        return scalar(self.value_head, self.value_output(read))

    def forward(
        self,
        observation: Tensor,
        state: Tensor | None = None,
        is_init: Tensor | None = None,
        extra: Tensor | None = None,
    ) -> tuple[Parameters, Tensor]:
        """Return the action distribution's parameters and the values ``[B, T]`` of sequences."""
        features, value, _ = self.sequence(observation, state, is_init, extra)
        return self.action_head(features), value

    def distribution(self, observation: Tensor, *memory: Any) -> Parameters:
        """Return the action distribution's parameters of sequences alone."""
        return self(observation, *memory)[0]

    def value(self, observation: Tensor, *memory: Any) -> Tensor:
        """Return the values ``[B, T]`` of sequences alone."""
        return self(observation, *memory)[1]

    def evaluate_actions(  # type: ignore[override]
        self, observation: Tensor, action: Tensor, *memory: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probability, entropy and value, each ``[B, T]``, of stored actions."""
        parameters, value = self(observation, *memory)
        log_probability, entropy = self.action_head.evaluate(parameters, action)
        return log_probability, entropy, value

    # ---- single steps [N, ...]

    def step(
        self,
        observation: Tensor,
        state: Tensor,
        extra: Tensor | None = None,
        weights: Any = None,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Return features ``[N, F]``, what the value is read from, and the next state.

        Args:
            observation: ``[N, *shape]``.
            state: ``[N, K, H]``, zeroed where an episode begins.
            extra: ``[N, E]``, where the model takes it.
            weights: of the memory, where they do not change between calls.
        """
        inputs, own = self._inputs(observation, extra)
        remembered, after = self.memory.step(inputs, state, weights)
        return self._features(remembered, observation), remembered, own, after

    def step_value(self, observation: Tensor, state: Tensor, extra: Tensor | None = None) -> Tensor:
        """Return the value ``[N]`` of what is observed next, after ``state``."""
        _, remembered, own, _ = self.step(observation, state, extra)
        return self._value_of(remembered, own)

    def act(  # type: ignore[override]
        self,
        observation: Tensor,
        state: Tensor | None = None,
        *,
        extra: Tensor | None = None,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return action, its log-probability ``[N]``, value ``[N]`` and the next state ``[N, K,
        H]``.

        Args:
            observation: ``[N, *shape]``.
            state: ``[N, K, H]``, zeroed where an episode begins; None: everywhere.
            extra: ``[N, E]``, where the model takes it.
            deterministic: the most likely action instead of a sample.
            generator: of the sample.
        """
        if state is None:
            state = self.initial_state(observation.shape[0])
        features, remembered, own, after = self.step(observation, state, extra)
        head = self.action_head
        parameters = head(features)
        action = head.mode(parameters) if deterministic else head.draw(parameters, generator)
        log_probability, _ = head.evaluate(parameters, action)
        return action, log_probability, self._value_of(remembered, own), after

    # ---- what is carried from step to step, by key

    def initial_carried(self, num_envs: int) -> dict[str, Tensor]:
        """Return what is carried at an episode's start: the state, and what else the model reads,
        all zeros.
        """
        state = self.initial_state(num_envs)
        sizes = self.carried_sizes.items()
        return {MEMORY: state, **{key: state.new_zeros(num_envs, size) for key, size in sizes}}

    def carried(self, action: Tensor, state: Tensor) -> dict[str, Tensor]:
        """Return what is carried on from a step: its action and the state after it, ``[N, ...]``.

        The reward is not known yet: its place is held, and whoever steps the environment fills it.
        """
        result = {MEMORY: state}
        if PREVIOUS_ACTION in self.carried_sizes:
            result[PREVIOUS_ACTION] = self.action_head.encode(action)
        if PREVIOUS_REWARD in self.carried_sizes:
            result[PREVIOUS_REWARD] = state.new_zeros(state.shape[0], 1)
        return result

    def extra(self, carried: Any) -> Tensor | None:
        """Return what the memory takes beside features, ``[*batch, E]``, from a mapping of carried
        keys; None when the model takes nothing.
        """
        parts = [carried[key] for key in self.carried_sizes]
        return torch.cat(parts, -1) if parts else None

    # ---- parameters

    def policy_parameters(self) -> list[nn.Parameter]:
        """Return what the policy loss trains."""
        return trainable(self.encoder, self.memory.cells[0], self.output, self.action_head)

    def value_parameters(self) -> list[nn.Parameter]:
        """Return what only the value loss trains."""
        own = self.memory.cells[1] if self.critic_memory == "separate" else None
        return trainable(self.value_encoder, own, self.value_output, self.value_head)


class LSTMPPGModel(LSTMActorCritic):
    """An `LSTMActorCritic` with a third head, the auxiliary value, on the policy's features.

    Its other parameters are made first and alike.
    """

    def __init__(self, *, orthogonal_init: bool = True, **options: Any) -> None:
        super().__init__(orthogonal_init=orthogonal_init, **options)
        self.auxiliary_head = nn.Linear(self.feature_size, 1)
        if orthogonal_init:
            orthogonal_(self.auxiliary_head, 1.0)

    def auxiliary(self, observation: Tensor, *memory: Any) -> tuple[Parameters, Tensor, Tensor]:
        """Return distribution parameters, auxiliary value and true value, both ``[B, T]``, of
        sequences.
        """
        features, value, _ = self.sequence(observation, *memory)
        return self.action_head(features), scalar(self.auxiliary_head, features), value

    def auxiliary_parameters(self) -> list[nn.Parameter]:
        """Return what only the auxiliary phase trains: the auxiliary value's head."""
        return trainable(self.auxiliary_head)
