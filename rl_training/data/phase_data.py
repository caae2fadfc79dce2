"""What PPG's auxiliary phase is computed from: observations and value targets of many rollouts.

Of observations that are stacks of frames, each frame is kept once, as in the replay buffer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_training.data.frame_stacks import FrameStacks
from rl_training.data.recurrent_rollout_buffer import RecurrentRolloutBuffer
from rl_training.data.replay_storage import (
    Storage,
    allocator,
    require_room,
    scratch_directory,
    tensor_bytes,
)
from rl_training.data.transition_ring import Layout
from rl_training.errors import UserError
from rl_training.runtime.checks import require_counter
from rl_training.runtime.resources import size_text
from rl_training.runtime.sharded import Sharded, rows_per_shard

Part = dict[str, Tensor]
_TARGET = "value_target"


def phase_layout(
    num_envs: int,
    num_steps: int,
    observation_shape: Sequence[int],
    observation_dtype: torch.dtype,
    *,
    frame_stack: int = 1,
) -> Layout:
    """Return shape and dtype of what `PhaseData` keeps of one rollout.

    That is ``value_target`` ``[N * T]``, and ``observation`` ``[N * T, ...]``; or of stacks
    ``frames`` ``[N, T + stack - 1, channels, ...]``, of each row the older ones of its first stack
    and then one a step, and ``ages`` ``[N, T]``.
    """
    count = num_envs * num_steps
    target: Layout = {_TARGET: ((count,), torch.float32)}
    if frame_stack == 1:
        return {**target, "observation": ((count, *observation_shape), observation_dtype)}
    channels, *size = observation_shape
    frame = (channels // frame_stack, *size)
    return {
        **target,
        "frames": ((num_envs, num_steps + frame_stack - 1, *frame), observation_dtype),
        "ages": ((num_envs, num_steps), torch.uint8),
    }


class PhaseData:
    """The latest ``capacity`` rollouts ``[N, T]`` as samples ``[M, ...]``.

    Rollouts are numbered from the first one ever added; number r lies at r modulo ``capacity`` of
    ring tensors, which are made with the first.

    Args:
        layout: of one rollout, `phase_layout`.
        capacity: rollouts.
        frame_stack: how many frames an observation is a stack of; 1: it is none.
        storage: ``"ram"``, or ``"disk"``: files mapped into memory, gone when the process ends.
        directory: for the disk; created when missing; None: the system's temporary one.
    """

    def __init__(
        self,
        layout: Layout,
        capacity: int,
        *,
        frame_stack: int = 1,
        storage: Storage = "ram",
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        self.capacity, self.frame_stack, self.storage = capacity, frame_stack, storage
        self.first = self.written = 0
        """The numbers of the oldest rollout that is held, and of the next one."""
        self._layout, self._directory = layout, directory
        self._samples = layout[_TARGET][0][0]
        self._rings: dict[str, Tensor] = {}
        self._known: dict[str, dict[int, tuple[str, int]]] = {key: {} for key in layout}

    def __len__(self) -> int:
        """Return the number of rollouts."""
        return self.written - self.first

    @property
    def size_in_bytes(self) -> int:
        """What all tensors take, whether made and touched yet or not."""
        return self._size_of(self.capacity)

    def describe(self) -> str:
        """Return the size, and where it is."""
        place = "memory" if self.storage == "ram" else "disk"
        return f"{size_text(self.size_in_bytes)} of {place}"

    def _size_of(self, rollouts: int) -> int:
        return rollouts * sum(tensor_bytes(*each) for each in self._layout.values())

    def allocate(self) -> None:
        """Make the tensors, unless they are there.

        Raises:
            UserError: there is no room; the message says for how many rollouts there would be.
        """
        if self._rings:
            return
        directory = scratch_directory(self._directory) if self.storage == "disk" else None
        what = {"what": "the auxiliary phase's data", "unit": "iterations"}
        require_room(self.storage, directory, self._size_of, self.capacity, **what)
        make = allocator(self.storage, directory)
        self._rings = {
            key: make((self.capacity, *shape), dtype)
            for key, (shape, dtype) in self._layout.items()
        }

    # ---- writing

    def add(self, batch: TensorDictBase) -> None:
        """Keep copies of what the phase needs of a rollout, in place of the oldest when full."""
        self.allocate()
        for key, value in self._part(batch).items():
            self._rings[key][self.written % self.capacity] = value
        self.written += 1
        self.forget_all_but(self.capacity)

    def forget_all_but(self, count: int) -> None:
        """Hold at most the newest ``count`` rollouts from now on."""
        self.first = max(self.first, self.written - count)

    def _part(self, batch: TensorDictBase) -> Part:
        """Return what is kept of a rollout."""
        part = {_TARGET: batch[_TARGET].flatten()}
        if self.frame_stack == 1:
            return {**part, "observation": batch["observation"].flatten(0, 1)}
        return {**part, **self._frames(batch)}

    def _frames(self, batch: TensorDictBase) -> Part:
        observation, count = batch["observation"], self.frame_stack
        stacks = FrameStacks(count, len(observation))
        # Whatever age the first steps have, the frames before them are at hand.
        oldest = torch.full((len(observation),), count - 1)
        stacks.go_on(oldest, ended=torch.zeros(len(oldest), dtype=torch.bool))
        ages = stacks.ages(batch["is_init"], batch["next", "done"].squeeze(-1))
        stacks.require_stacked(observation, ages)
        first = observation[:, 0]
        older = first.reshape(len(first), count, -1, *first.shape[2:])[:, :-1]
        return {"frames": torch.cat([older, stacks.newest(observation)], 1), "ages": ages}

    # ---- reading

    @property
    def _wraps(self) -> bool:
        """Whether the oldest rollout lies behind the newest."""
        return self.first % self.capacity + len(self) > self.capacity

    def joined(self) -> Part:
        """Return all samples, without a copy: ``value_target`` ``[M]``, and ``observation`` or what
        `phase_samples.samples_of` puts it together from. Which of them are held, `order` says.
        """
        start = self.first % self.capacity
        held = slice(0, self.capacity) if self._wraps else slice(start, start + len(self))
        rings = {key: ring[held] for key, ring in self._rings.items()}
        if self.frame_stack == 1:
            return {key: ring.flatten(0, 1) for key, ring in rings.items()}
        frames, ages = rings["frames"].flatten(0, 1), rings["ages"].flatten().long()
        rows = torch.arange(len(frames)).unsqueeze(1) * frames.shape[1]
        newest = rows + torch.arange(self.frame_stack - 1, frames.shape[1])
        places = FrameStacks(self.frame_stack, 1).places(newest.flatten(), ages)
        target = rings[_TARGET].flatten()
        return {_TARGET: target, "places": places, "frames": frames.flatten(0, 1)}

    def order(self, unit: int = 1) -> Tensor:
        """Return where in what `joined` gives the samples lie, the oldest first, int64 ``[M]``.

        Args:
            unit: count so many samples, which follow each other in a rollout, as one.
        """
        per_rollout = self._samples // unit
        places = torch.arange(len(self) * per_rollout)
        if not self._wraps:
            return places
        start = self.first % self.capacity * per_rollout
        return (places + start) % (self.capacity * per_rollout)

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Return the content, without a copy: save, digest or load it before adding again."""
        rows = {key: self._row_state(key) for key in self._layout} if len(self) else {}
        return {"first": self.first, "written": self.written, "rows": rows}

    def _row_state(self, key: str) -> Sharded:
        ring = self._rings[key]
        return Sharded.of_ring(
            ring,
            start=self.first,
            stop=self.written,
            sealed=self.written,
            shard_rows=rows_per_shard(ring, at_most=self.capacity),
            known=self._known[key],
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold what ``state_dict()`` returned, and nothing else.

        Raises:
            UserError: it has more rollouts than this one may hold.
            ValueError: it is of other rollouts, or its parts do not fit together.
        """
        first, written = (require_counter(key, state[key]) for key in ("first", "written"))
        if first > written:
            raise ValueError(f"the auxiliary data begins with {first} and ends with {written}")
        if written - first > self.capacity:
            raise UserError(
                f"the saved auxiliary data is of {written - first} iterations, and at most "
                f"{self.capacity} are kept now."
            )
        self.first, self.written = first, written
        self._known = {key: {} for key in self._layout}
        if not len(self):
            return
        self.allocate()
        for key, ring in self._rings.items():
            rows = state["rows"][key]
            if (rows.start, rows.stop) != (first, written):
                raise ValueError(f"{key} has iterations {rows.start} to {rows.stop}")
            rows.copy_into(ring)
            self._known[key] = dict(rows.known)


class SequencePhaseData(PhaseData):
    """The same as sequences ``[S, length, ...]``, with the states that they were collected from.

    Args:
        layout: of one rollout, `sequence_layout`.
        capacity: rollouts.
        length: steps of a sequence.
        keys: what is kept beside observations, states and value targets.
        **options: of `PhaseData`.
    """

    def __init__(
        self, layout: Layout, capacity: int, *, length: int, keys: Sequence[str], **options: Any
    ) -> None:
        super().__init__(layout, capacity, **options)
        self._length, self._keys = length, tuple(keys)

    def _part(self, batch: TensorDictBase) -> Part:
        sequences = RecurrentRolloutBuffer.of(batch).sequences(self._length, extra_keys=self._keys)
        return {key: sequences[key] for key in self._layout}


def sequence_layout(
    count: int,
    length: int,
    observation_shape: Sequence[int],
    observation_dtype: torch.dtype,
    state_shape: Sequence[int],
    sizes: Mapping[str, int],
) -> Layout:
    """Return shape and dtype of what `SequencePhaseData` keeps of one rollout of ``count``
    sequences: ``sizes`` are those of other keys of the batch.
    """
    return {
        _TARGET: ((count, length), torch.float32),
        "observation": ((count, length, *observation_shape), observation_dtype),
        "is_init": ((count, length), torch.bool),
        "memory": ((count, *state_shape), torch.float32),
        **{key: ((count, length, size), torch.float32) for key, size in sizes.items()},
    }
