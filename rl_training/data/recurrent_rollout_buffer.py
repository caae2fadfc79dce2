"""A rollout as sequences for policies with memory, with the state that each begins with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from rl_training.data.rollout_buffer import RolloutBuffer, shuffled_indices
from rl_training.errors import UserError

_MEMORY, _IS_INIT = "memory", "is_init"


class RecurrentRolloutBuffer(RolloutBuffer):
    """A `RolloutBuffer` that also holds, for every step, the state before it and whether an
    episode begins with it.

    It is cut into sequences: whole rows, or chunks of equal length. Episodes may begin inside;
    ``is_init`` says where, so that nothing is padded but the last minibatch, and only where the
    sequences do not fill it. What is padded has ``mask`` False.

    Args:
        num_steps: steps of each environment.
        num_envs: environments.
        obs_shape: of one observation.
        action_shape: of one action; ``()`` for discrete ones.
        state_shape: of one environment's state.
        obs_dtype: of observations.
        action_dtype: of actions; None: int64 for shape ``()``, else float32.
    """

    def __init__(
        self,
        num_steps: int,
        num_envs: int,
        obs_shape: Sequence[int],
        action_shape: Sequence[int],
        state_shape: Sequence[int],
        *,
        obs_dtype: torch.dtype = torch.float32,
        action_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            num_steps,
            num_envs,
            obs_shape,
            action_shape,
            obs_dtype=obs_dtype,
            action_dtype=action_dtype,
        )
        shape = (num_envs, num_steps)
        self.batch[_MEMORY] = torch.zeros(*shape, *state_shape)
        self.batch[_IS_INIT] = torch.zeros(*shape, 1, dtype=torch.bool)

    @property
    def states(self) -> Tensor:
        """State before each step, ``[num_steps, num_envs, *state_shape]``."""
        return self.batch[_MEMORY].transpose(0, 1)

    @property
    def episode_starts(self) -> Tensor:
        """Whether an episode begins with the step, bool ``[num_steps, num_envs]``."""
        return self._column(_IS_INIT)

    def sequences(
        self, length: int, *, burn_in: int = 0, extra_keys: Sequence[str] = ()
    ) -> dict[str, Tensor]:
        """Return what an update reads as ``[S, length, ...]``, S = num_envs x num_steps / length.

        ``is_init`` is ``[S, length]``, and ``memory``, the state before each sequence's first
        step, ``[S, *state_shape]``: the states of the steps inside are left out.

        Args:
            length: of each.
            burn_in: when positive, ``burn_in_memory`` ``[S, *state_shape]`` is the state so many
                steps before each sequence's end.
            extra_keys: of the batch, which are cut as well.

        Raises:
            UserError: ``length`` does not divide ``num_steps``.
        """
        if not 1 <= length <= self.num_steps or self.num_steps % length:
            raise UserError(
                f"a sequence length of {length} does not divide the {self.num_steps} steps of a "
                "rollout."
            )
        count = self.num_envs * self.num_steps // length
        cut = {
            key: value.reshape(count, length, *value.shape[1:])
            for key, value in self.samples().items()
        }
        for key in extra_keys:
            value = self.batch[key]
            cut[key] = value.reshape(count, length, *value.shape[2:])
        cut[_IS_INIT] = self.batch[_IS_INIT].reshape(count, length)
        cut[_MEMORY] = self.batch[_MEMORY][:, ::length].flatten(0, 1)
        if burn_in:
            cut["burn_in_memory"] = self.batch[_MEMORY][:, length - burn_in :: length].flatten(0, 1)
        return cut

    def iter_sequences(
        self, length: int, per_minibatch: int, *, generator: torch.Generator | None = None
    ) -> Iterator[dict[str, Tensor]]:
        """Yield one shuffled pass over the sequences, ``per_minibatch`` at a time.

        Every minibatch has that many; where the last is filled up, ``mask`` ``[S, length]`` is
        False there, and True elsewhere.
        """
        sequences = self.sequences(length)
        count = len(sequences[_IS_INIT])
        sequences = padded(sequences, per_minibatch)
        for indices in padded_indices(count, per_minibatch, generator=generator):
            yield {key: value[indices] for key, value in sequences.items()}


def padded(sequences: dict[str, Tensor], per_minibatch: int) -> dict[str, Tensor]:
    """Return ``sequences`` with one more, of zeros and with ``mask`` False, where minibatches of
    ``per_minibatch`` do not come out even; otherwise as they are.
    """
    count = len(sequences[_IS_INIT])
    if count % per_minibatch == 0:
        return sequences
    mask = torch.ones_like(sequences[_IS_INIT])
    return {
        key: functional.pad(value, (*[0, 0] * (value.ndim - 1), 0, 1))
        for key, value in {**sequences, "mask": mask}.items()
    }


def padded_indices(
    count: int, size: int, *, generator: torch.Generator | None = None
) -> Iterator[Tensor]:
    """Yield a permutation of ``count`` sequences in pieces of ``size``, the last filled up with the
    index ``count``, that of the padding.
    """
    for indices in shuffled_indices(count, size, generator=generator):
        yield functional.pad(indices, (0, size - len(indices)), value=count)
