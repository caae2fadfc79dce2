"""A rollout with its advantages, and its shuffled minibatches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_training.data.advantages import generalized_advantage_estimate

_TRAINING_KEYS = (
    "observation",
    "action",
    "action_log_prob",
    "advantage",
    "value_target",
    "state_value",
)


Buffer = TypeVar("Buffer", bound="RolloutBuffer")


class RolloutBuffer:
    """``num_steps`` steps of ``num_envs`` environments as one TensorDict ``[num_envs, num_steps]``.

    A recipe wraps the collected batch (`of`). A loop of one's own fills the views step by step::

        buffer = RolloutBuffer(128, 8, obs_shape=(4,), action_shape=())
        buffer.obs[t], buffer.actions[t], buffer.rewards[t] = observation, action, reward

    The views ``obs, actions, logprobs, rewards, dones, values, advantages, returns`` are
    ``[num_steps, num_envs, ...]`` and share the batch's memory. ``dones[t]`` says that an episode
    ended with step t.

    Args:
        num_steps: steps of each environment.
        num_envs: environments.
        obs_shape: of one observation.
        action_shape: of one action; ``()`` for discrete ones.
        obs_dtype: of observations.
        action_dtype: of actions; None: int64 for shape ``()``, else float32.
    """

    def __init__(
        self,
        num_steps: int,
        num_envs: int,
        obs_shape: Sequence[int],
        action_shape: Sequence[int],
        *,
        obs_dtype: torch.dtype = torch.float32,
        action_dtype: torch.dtype | None = None,
    ) -> None:
        shape = (num_envs, num_steps)
        discrete = len(tuple(action_shape)) == 0
        kind = action_dtype or (torch.int64 if discrete else torch.float32)
        done = torch.zeros(*shape, 1, dtype=torch.bool)
        batch = {
            "observation": torch.zeros(*shape, *obs_shape, dtype=obs_dtype),
            "action": torch.zeros(*shape, *action_shape, dtype=kind),
            "action_log_prob": torch.zeros(shape),
            "state_value": torch.zeros(*shape, 1),
            "advantage": torch.zeros(*shape, 1),
            "value_target": torch.zeros(*shape, 1),
            "next": {"reward": torch.zeros(*shape, 1), "done": done},
        }
        self._adopt(TensorDict(batch, shape))

    @classmethod
    def of(cls: type[Buffer], batch: TensorDictBase) -> Buffer:
        """Return a buffer over a collected batch ``[N, T]``, without a copy."""
        self = cls.__new__(cls)
        self._adopt(batch)
        return self

    def _adopt(self, batch: TensorDictBase) -> None:
        self.batch = batch
        self.num_envs, self.num_steps = batch.shape
        self.terminated: Tensor | None = None
        """Bool ``[num_steps, num_envs]``: which of ``dones`` are the environment's own ends."""
        self.next_values: Tensor | None = None
        """Value of each step's true successor, ``[num_steps, num_envs]``: at an episode's end the
        terminal observation's, not that of the next episode's start.
        """

    def reset(self) -> None:
        """Set everything to zero."""
        self.batch.zero_()
        self.terminated = self.next_values = None

    # ---- views [num_steps, num_envs, ...]

    @property
    def obs(self) -> Tensor:
        """Observations."""
        return self.batch["observation"].transpose(0, 1)

    @property
    def actions(self) -> Tensor:
        """Actions as the policy sampled them."""
        return self.batch["action"].transpose(0, 1)

    @property
    def logprobs(self) -> Tensor:
        """Their log-probabilities under the collecting policy."""
        return self.batch["action_log_prob"].T

    @property
    def rewards(self) -> Tensor:
        """Rewards."""
        return self._column("next", "reward")

    @property
    def dones(self) -> Tensor:
        """Whether the episode ended with the step, for either reason."""
        return self._column("next", "done")

    @property
    def values(self) -> Tensor:
        """Values of ``obs`` under the collecting parameters."""
        return self._column("state_value")

    @property
    def advantages(self) -> Tensor:
        """Advantages, once computed."""
        return self._column("advantage")

    @property
    def returns(self) -> Tensor:
        """Value targets, once computed: advantages plus values."""
        return self._column("value_target")

    def _column(self, *key: str) -> Tensor:
        return self.batch[key].squeeze(-1).T

    # ---- advantages

    def compute_returns_and_advantages(
        self, last_value: Tensor | None, gamma: float, gae_lambda: float
    ) -> None:
        """Fill ``advantages`` and ``returns`` by generalised advantage estimation.

        With ``terminated`` and ``next_values`` set, truncation bootstraps exactly. Without them,
        every done counts as a termination.

        Args:
            last_value: value ``[num_envs]`` of what follows the last step; unused, and None, when
                ``next_values`` is set.
            gamma: discount.
            gae_lambda: lambda.

        Raises:
            ValueError: neither of the two is given; or ``terminated`` without ``next_values``: what
                follows a truncated episode in the buffer is another one's beginning.
        """
        if self.terminated is not None and self.next_values is None:
            raise ValueError("terminated needs next_values: a truncated step's own successor.")
        done = self.batch["next", "done"].squeeze(-1)
        value = self.batch["state_value"].squeeze(-1)
        terminated = done if self.terminated is None else self.terminated.T
        if self.next_values is not None:
            next_value = self.next_values.T
        elif last_value is not None:
            next_value = torch.cat([value[:, 1:], last_value.reshape(-1, 1)], 1)
        else:
            raise ValueError("last_value is needed where next_values is not set.")
        advantage, target = generalized_advantage_estimate(
            reward=self.batch["next", "reward"].squeeze(-1),
            value=value,
            next_value=next_value,
            terminated=terminated,
            done=done,
            discount=gamma,
            gae_lambda=gae_lambda,
        )
        self.batch["advantage"] = advantage.unsqueeze(-1)
        self.batch["value_target"] = target.unsqueeze(-1)

    # ---- minibatches

    def samples(self) -> dict[str, Tensor]:
        """Return what an update reads, ``[num_envs * num_steps, ...]``, by TorchRL's keys."""
        present = [key for key in _TRAINING_KEYS if self.batch.get(key) is not None]
        flat = {key: self.batch[key].flatten(0, 1) for key in present}
        for key in ("advantage", "value_target", "state_value"):
            if key in flat:
                flat[key] = flat[key].squeeze(-1)
        return flat

    def iter_minibatches(
        self, minibatch_size: int, *, generator: torch.Generator | None = None
    ) -> Iterator[dict[str, Tensor]]:
        """Yield one shuffled pass over the samples; the last minibatch may be smaller."""
        samples = self.samples()
        count = self.num_envs * self.num_steps
        for indices in shuffled_indices(count, minibatch_size, generator=generator):
            yield {key: value[indices] for key, value in samples.items()}


def shuffled_indices(
    count: int, size: int, *, unit: int = 1, generator: torch.Generator | None = None
) -> tuple[Tensor, ...]:
    """Return a permutation of ``count`` samples in pieces of ``size``; the last may be smaller.

    Args:
        count: of all.
        size: of a piece.
        unit: so many samples, which follow each other, are drawn as one; it divides both.
        generator: of the permutation.
    """
    pieces = torch.split(torch.randperm(count // unit, generator=generator), size // unit)
    return tuple(steps_of(rows, unit) for rows in pieces)


def steps_of(rows: Tensor, length: int) -> Tensor:
    """Return the indices of all steps of some rows of ``length`` steps."""
    if length == 1:
        return rows
    return (rows.unsqueeze(1) * length + torch.arange(length, device=rows.device)).flatten()
