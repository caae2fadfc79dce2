"""Proximal policy optimisation of policies with memory: an LSTM or a GRU.

python -m rl_training.contrib.recurrent_ppo --config zoo/recurrent_ppo_cartpole_novel.yaml

It is `rl_training.recipes.ppo.PPO`, whose samples are sequences: their first state is the one the
rollout had there, and it is zeroed inside them where an episode begins. Memory in policy gradients:
Wierstra et al. 2007; stored states and burn-in: Kapturowski et al. 2019 (R2D2).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_training.config import TrainConfig, require
from rl_training.contrib.memory_config import MemoryConfig
from rl_training.data.recurrent_rollout_buffer import (
    RecurrentRolloutBuffer,
    padded,
    padded_indices,
)
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.observations import as_batch
from rl_training.errors import UserError
from rl_training.losses.recurrent_ppo import RecurrentPPOLoss
from rl_training.models.actor_critic import Architecture
from rl_training.models.agreement import require_agreement_of_memory
from rl_training.models.carried_state import checked_starts, checked_state, zeroed_where
from rl_training.models.lstm import MEMORY, LSTMActorCritic
from rl_training.models.recurrent_policy import (
    RecurrentPolicy,
    RecurrentRolloutPolicy,
    recall,
    remember,
)
from rl_training.recipes.ppo import PPO, PPOConfig
from rl_training.registry import ACTION_SPACES
from rl_training.workflows import TrainResult, train_with_overrides

logger = logging.getLogger(__name__)
Array = NDArray[Any]


@dataclass(kw_only=True)
class RecurrentPPOConfig(MemoryConfig, PPOConfig):
    """PPO's hyperparameters, and those of the memory."""

    num_steps: int = 128
    """Steps per environment and iteration (the paper's horizon T)."""
    minibatch_size: int = 256
    """Samples per gradient step, in whole sequences."""

    def validate(self, config: TrainConfig) -> None:
        """Refuse values that cannot be trained with, naming key and value."""
        super().validate(config)
        self.validate_memory(config)


class RecurrentPPO(PPO):
    """PPO on sequences, with a policy and a value function that remember."""

    name: ClassVar[str] = "recurrent_ppo"
    Config: ClassVar[type[Any]] = RecurrentPPOConfig
    action_spaces: ClassVar[tuple[str, ...]] = ACTION_SPACES["recurrent_ppo"]
    loss_class: ClassVar[type[Any]] = RecurrentPPOLoss
    rollout_policy_class: ClassVar[type[Any]] = RecurrentRolloutPolicy
    buffer_class: ClassVar[type[RolloutBuffer]] = RecurrentRolloutBuffer
    model: LSTMActorCritic
    _unremembered = False

    def _build_model(self) -> LSTMActorCritic:
        require(not self.config.model.shared_trunk, "model.shared_trunk", _SHARED_TRUNK)
        shared = self.config.algorithm.critic_memory == "shared"
        return self._make_recurrent(LSTMActorCritic, "shared" if shared else "dual")

    def _make_recurrent(
        self, cls: type[LSTMActorCritic], architecture: Architecture
    ) -> LSTMActorCritic:
        config = self.config.algorithm
        made = self._make_model(
            cls,
            architecture,
            memory=config.memory,
            memory_size=config.memory_size,
            memory_layers=config.memory_layers,
            critic_memory=config.critic_memory,
            output_sizes=config.output_sizes,
            activation=self.config.model.activation,
            previous_action=config.previous_action,
            previous_reward=config.previous_reward,
        )
        return cast("LSTMActorCritic", made)

    # ---- collection: the environments carry what the policy writes into "next", and zero it where
    # an episode begins

    @property
    def policy(self) -> TensorDictModuleBase:
        """The policy on TensorDict keys, one step at a time."""
        return RecurrentPolicy(self.model)

    @torch.no_grad()
    def after_collection(self, batch: TensorDictBase) -> None:
        """Add ``action_log_prob`` ``[N, T]`` and ``state_value`` ``[N, T, 1]``, replayed from the
        states that the rows began with.
        """
        keys = ("observation", "action", "is_init", *self.model.carried_sizes)
        rows = {key: batch[key].to(self.device) for key in keys}
        state = batch[MEMORY][:, 0].to(self.device)
        memory = (state, rows["is_init"].squeeze(-1), self.model.extra(rows))
        observation, action = rows["observation"], rows["action"]
        log_probability, _, value = self.model.evaluate_actions(observation, action, *memory)
        scored = (log_probability, value)
        require_agreement_of_memory(self.model, (observation, *memory), action, scored)
        batch.set("action_log_prob", log_probability.cpu())
        batch.set("state_value", value.unsqueeze(-1).cpu())

    def _successor_values(self, successors: TensorDictBase) -> Tensor:
        """Return the values ``[M]`` of last observations, by the state after those before them."""
        given = {key: value.to(self.device) for key, value in successors.items()}
        return self.model.step_value(given["observation"], given[MEMORY], self.model.extra(given))

    # ---- learning on sequences

    @property
    def _length(self) -> int:
        config = self.config.algorithm
        return int(config.sequence_length or config.num_steps)

    def _samples(self, buffer: RecurrentRolloutBuffer) -> dict[str, Tensor]:
        return buffer.sequences(
            self._length,
            burn_in=self.config.algorithm.burn_in,
            extra_keys=tuple(self.model.carried_sizes),
        )

    def _minibatches(
        self, samples: Mapping[str, Tensor], epochs: int
    ) -> Iterator[tuple[Mapping[str, Tensor], Tensor]]:
        """Yield sequences, and which of them a gradient step is on, over shuffled passes."""
        sequences = dict(samples)
        earlier = sequences.pop("burn_in_memory", None)
        count = len(sequences["is_init"])
        per_minibatch = self.config.algorithm.minibatch_size // self._length
        for _ in range(epochs):
            current = {**sequences, MEMORY: self._first_states(sequences, earlier)}
            current = padded(current, per_minibatch)
            for indices in padded_indices(
                count, per_minibatch, generator=self.generators["minibatch"]
            ):
                yield current, indices

    @torch.no_grad()
    def _first_states(self, sequences: Mapping[str, Tensor], earlier: Tensor | None) -> Tensor:
        """Return the state that each sequence is trained from, ``[S, K, H]``: the rollout's, or one
        computed by the present parameters.
        """
        config, stored = self.config.algorithm, sequences[MEMORY]
        chunks = config.num_steps // self._length
        if chunks == 1 or not (config.refresh_state or config.burn_in):
            return stored
        rows = {key: each.reshape(-1, chunks, *each.shape[1:]) for key, each in sequences.items()}
        keys = ("observation", "is_init", *self.model.carried_sizes)
        if config.refresh_state:
            # From the rollout's beginning over all of its chunks.
            given = {key: rows[key].flatten(1, 2) for key in keys}
            start = rows[MEMORY][:, 0]
        else:
            # From each chunk's last steps to the beginning of the next.
            given = {key: sequences[key][:, -config.burn_in :] for key in keys}
            assert earlier is not None
            start = earlier
        _, _, states = self.model.sequence(
            given["observation"], start, given["is_init"], self.model.extra(given)
        )
        every = self._length if config.refresh_state else config.burn_in
        ends = states[:, every - 1 :: every]
        ends = ends.reshape(-1, chunks, *stored.shape[1:])
        return torch.cat([rows[MEMORY][:, :1], ends[:, :-1]], 1).flatten(0, 1)

    # ---- acting

    def act(
        self, root: TensorDictBase, *, deterministic: bool, generator: torch.Generator | None
    ) -> None:
        """Write ``action`` into a root ``[N]``, and what is carried on into ``next``."""
        carried = recall(self.model, root)
        action, _, _, state = self.model.act(
            root.get("observation").to(self.device),
            carried[MEMORY],
            extra=self.model.extra(carried),
            deterministic=deterministic,
            generator=generator,
        )
        remember(self.model, root, action, state)

    def action(
        self, observation: Tensor, *, deterministic: bool, generator: torch.Generator | None
    ) -> Tensor:
        """Return the actions ``[N, *action]`` of an episode's first step."""
        carried = self.model.initial_carried(len(observation))
        return self.model.act(
            observation,
            extra=self.model.extra(carried),
            deterministic=deterministic,
            generator=generator,
        )[0]

    @torch.no_grad()
    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        action_masks: Any = None,
        deterministic: bool = True,
    ) -> tuple[Array, dict[str, Array]]:
        """Return actions for raw observations and the state to pass with the next ones.

        Args:
            observation: one ``[*shape]`` or a batch ``[N, *shape]``, NumPy.
            state: what the call before returned, a dict of arrays; None: episodes begin. Where the
                model reads ``previous_reward``, the caller puts it there.
            episode_start: bool, or one ``[N]``: whose episode begins; their state counts as zero.
            action_masks: as for `Algorithm.predict`.
            deterministic: the most likely action instead of a sample.

        Raises:
            UserError: an observation or a state of another shape, or no state where no episode
                begins. `stateful_policy` keeps the state itself.
        """
        observation = self._with_masks(observation, action_masks)
        batch, single = as_batch(observation, self.raw_observation_space, self.normalizer)
        carried = self._carried(state, episode_start, len(batch))
        action, _, _, after = self.model.act(
            batch.to(self.device),
            carried[MEMORY],
            extra=self.model.extra(carried),
            deterministic=deterministic,
            generator=self._prediction_generator,
        )
        following = self.model.carried(action, after)
        taken = self._action_map.taken(action.cpu().numpy(), single=single)
        result = {key: value.cpu().numpy() for key, value in following.items()}
        return taken, result

    def _carried(self, state: Any, episode_start: Any, count: int) -> dict[str, Tensor]:
        """Return ``state`` as checked tensors on the device, zeroed where episodes begin."""
        carried = self.model.initial_carried(count)
        starts = None if episode_start is None else checked_starts(episode_start, count)
        if state is None:
            self._require_beginning(starts)
            return carried
        given = checked_state(state, carried)
        return given if starts is None else zeroed_where(given, starts.to(self.device))

    def _require_beginning(self, starts: Tensor | None) -> None:
        if starts is None:
            if self._unremembered:
                logger.warning(
                    "predict was called without a state again, so it began a new episode: pass the "
                    "state that it returned, or use stateful_policy(), which keeps it."
                )
            self._unremembered = True
        elif not starts.all():
            raise UserError(
                "predict needs the state that it returned where no episode begins; "
                "stateful_policy() keeps it for you."
            )


_SHARED_TRUNK = "is PPO's; a policy with memory has algorithm.critic_memory"


def train_recurrent_ppo(config: Any, **overrides: Any) -> TrainResult:
    """Train recurrent PPO as ``config`` says (a `TrainConfig` or the path of a preset), with any
    field overridden.
    """
    return train_with_overrides("recurrent_ppo", config, overrides)


if __name__ == "__main__":
    from rl_training.cli import recipe_main

    recipe_main("recurrent_ppo")
