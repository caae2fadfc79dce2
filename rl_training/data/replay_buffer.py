"""Replay: the latest transitions of all environments, sampled uniformly or by priority.

How steps lie in memory: see `rl_training.data.transition_ring`. The storage is a TensorDict.
TorchRL's `TensorDictReplayBuffer` around it is not used, because it stores each observation twice,
and because a sample and an extension through it cost a multiple of the index arithmetic here. Its
prioritised sampler: see `rl_training.data.priorities`.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_training.data.n_step import discount_powers, n_step_return
from rl_training.data.priorities import Priorities
from rl_training.data.replay_storage import Storage, allocator, require_room
from rl_training.data.transition_ring import (
    RUNNING,
    Layout,
    TransitionRing,
    ring_bytes,
    transition_layout,
)
from rl_training.errors import UserError
from rl_training.runtime.resources import size_text


class ReplayBuffer:
    """The latest ``capacity`` transitions of ``num_envs`` environments.

    Transitions are numbered from the first one ever stored: step t of environment e is
    ``t * num_envs + e``. Sampling returns these numbers as ``indices``, and they mean the same
    transition for as long as it is held.

    With ``n_steps`` above 1 a sample is the discounted sum of k rewards and the observation after
    them: k is ``n_steps``, or fewer where the episode ended before, terminated or truncated, and
    where the recorded steps end. So the newest steps can be sampled at once, with a shorter but
    exact return; nothing waits, and nothing is made up.

    Args:
        capacity: transitions; rounded down to a multiple of ``num_envs``.
        num_envs: environments, the rows of every batch.
        observation_shape: of one observation.
        observation_dtype: of observations; kept.
        action_shape: of one action; ``()`` for discrete ones.
        action_dtype: of actions; kept.
        n_steps: rewards per sample at most.
        discount: gamma.
        storage: ``"ram"``, or ``"disk"``: files mapped into memory, gone when the process ends.
        directory: for the disk; created when missing.
        prioritised: sample by priority (`Priorities`) instead of uniformly.
        alpha: the exponent of priorities.
        priority_epsilon: what is added to the absolute TD error.
        frame_stack: observations are stacks of so many frames (`FrameStacks`), of which each is
            stored once; the first batch begins with the first steps of episodes.

    Raises:
        UserError: an impossible value, or no room; the message has the capacity that would fit.
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        observation_shape: Sequence[int],
        observation_dtype: torch.dtype,
        action_shape: Sequence[int],
        action_dtype: torch.dtype,
        *,
        n_steps: int = 1,
        discount: float,
        storage: Storage = "ram",
        directory: str | os.PathLike[str] | None = None,
        prioritised: bool = False,
        alpha: float = 0.6,
        priority_epsilon: float = 1e-6,
        frame_stack: int = 1,
    ) -> None:
        _check(capacity, num_envs, n_steps, alpha, priority_epsilon)
        layout = transition_layout(
            observation_shape,
            observation_dtype,
            action_shape,
            action_dtype,
            frame_stack=frame_stack,
        )
        allocate = allocator(storage, directory)
        size_of = functools.partial(
            _size, layout, num_envs=num_envs, prioritised=prioritised, frame_stack=frame_stack
        )
        require_room(storage, directory, size_of, capacity)
        steps = capacity // num_envs
        self.capacity, self.num_envs, self.n_steps = steps * num_envs, num_envs, n_steps
        self.discount, self._where = discount, storage
        self._ring = TransitionRing(layout, steps, num_envs, allocate, frame_stack=frame_stack)
        self._window = torch.arange(0, n_steps * num_envs, num_envs)
        self._powers = discount_powers(discount, n_steps, dtype=torch.float32)
        self.priorities: Priorities | None = None
        if prioritised:
            self.priorities = Priorities(
                self._ring.positions, alpha=alpha, epsilon=priority_epsilon
            )

    # ---- size

    def __len__(self) -> int:
        return self.written - self._first

    @property
    def written(self) -> int:
        """Transitions ever stored; the number of the next one."""
        return self._ring.written * self.num_envs

    @property
    def _first(self) -> int:
        """The number of the oldest transition that is held."""
        return self._ring.oldest * self.num_envs

    @property
    def storage(self) -> TensorDict:
        """Ring tensors ``[capacity / num_envs + frame_stack, num_envs, ...]``: step t lies at t
        modulo that.

        ``end`` is -1 where the episode went on after the step.
        """
        return self._ring.storage

    @property
    def size_in_bytes(self) -> int:
        """What all tensors take, whether touched yet or not."""
        tree = 0 if self.priorities is None else _tree_bytes(self._ring.positions)
        return self._ring.size_in_bytes + tree

    def describe(self) -> str:
        """Return one line with capacity and size."""
        kind = "uniform" if self.priorities is None else "prioritised"
        place = "memory" if self._where == "ram" else "disk"
        return (
            f"replay buffer ({kind}): {self.capacity:,} transitions, "
            f"{size_text(self.size_in_bytes)} of {place}"
        )

    # ---- writing

    def extend(self, batch: TensorDictBase) -> None:
        """Store a collected batch ``[num_envs, T]``, which goes on where the last one ended.

        It holds ``observation``, ``action``, and ``next`` with ``observation`` (the true
        successor), ``reward``, ``terminated`` and ``done``. Where ``is_init`` says that an
        episode begins while the stored one was still running (environments made anew), the stored
        one counts as truncated there.

        Raises:
            ValueError: another number of environments.
        """
        if batch.shape[0] != self.num_envs:
            raise ValueError(f"a batch of {batch.shape[0]} environments; expected {self.num_envs}")
        before = self._ring.written
        self._ring.extend(batch)
        if self.priorities is not None:
            # Of a batch longer than the buffer, the positions repeat.
            new = torch.arange(before * self.num_envs, self.written)
            self.priorities.add(new % self._ring.positions)
            # The head, and before the oldest step what is kept for its frames.
            frames = self._ring.frames.count
            head = torch.arange(self.written, self.written + frames * self.num_envs)
            self.priorities.fill(head % self._ring.positions, 0.0)

    # ---- sampling

    def sample(
        self, batch_size: int, generator: torch.Generator, *, beta: float | None = None
    ) -> dict[str, Tensor]:
        """Return ``batch_size`` samples, drawn with replacement by ``generator``.

        Args:
            batch_size: B.
            generator: of the CPU; what is drawn depends on it and on the buffer alone.
            beta: exponent of the importance weights, with priorities.

        Returns:
            Fresh tensors: ``observation`` and ``next_observation`` ``[B, *observation]``,
            ``action`` ``[B, *action]``, ``reward`` ``[B]`` (the sum of k discounted rewards),
            ``terminated`` ``[B]`` (after the k-th step), ``discount`` ``[B]`` (gamma to the k),
            ``indices`` ``[B]`` for `update_priorities`, and with priorities ``weights`` ``[B]``.
            So the target is ``reward + discount * ~terminated * value(next_observation)``.

        Raises:
            ValueError: the buffer is empty, or priorities without beta.
        """
        if not self.written:
            raise ValueError("the replay buffer is empty")
        weights = {}
        if self.priorities is None:
            indices = torch.randint(self._first, self.written, (batch_size,), generator=generator)
            positions = indices % self._ring.positions
        else:
            if beta is None:
                raise ValueError("prioritised sampling needs beta")
            positions = self.priorities.draw(batch_size, generator)
            weights["weights"] = self.priorities.weights(positions, beta)
            newest = self.written - 1
            indices = newest - (newest - positions) % self._ring.positions
        return {**self._gather(indices, positions), "indices": indices, **weights}

    def _gather(self, indices: Tensor, positions: Tensor) -> dict[str, Tensor]:
        flat = self._ring.flat
        if self.n_steps == 1:
            reward = flat["reward"].index_select(0, positions)
            discount = torch.full(reward.shape, self.discount, dtype=torch.float32)
            last = positions
        else:
            reward, steps, last = self._look_ahead(indices, positions)
            discount = self._powers.index_select(0, steps)
        return {
            "observation": self._ring.observations(positions),
            "action": flat["action"].index_select(0, positions),
            "reward": reward,
            "next_observation": self._ring.successors(last),
            "terminated": flat["terminated"].index_select(0, last),
            "discount": discount,
        }

    def _look_ahead(self, indices: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return n-step rewards, their numbers of steps k, and the positions of the k-th steps."""
        count, flat = self.num_envs, self._ring.flat
        window = (positions.unsqueeze(1) + self._window).remainder_(self._ring.positions)
        shape, places = window.shape, window.flatten()
        reward, steps = n_step_return(
            flat["reward"].index_select(0, places).view(shape),
            flat["end"].index_select(0, places).view(shape) != RUNNING,
            self.discount,
            available=self._ring.written - torch.div(indices, count, rounding_mode="floor"),
        )
        return reward, steps, window.gather(1, (steps - 1).unsqueeze(1)).squeeze(1)

    def update_priorities(self, indices: Tensor, td_error: Tensor) -> None:
        """Set the priorities of samples by their TD errors ``[B]``, of either sign.

        Transitions that have been overwritten meanwhile are left out.

        Raises:
            ValueError: the buffer has no priorities.
        """
        if self.priorities is None:
            raise ValueError("this replay buffer samples uniformly")
        error = td_error.detach().cpu()
        held = (indices >= self._first) & (indices < self.written)
        if not held.all():
            indices, error = indices[held], error[held]
        if len(indices):
            self.priorities.update(indices % self._ring.positions, error)

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Return the content, without a copy: save, digest or load it before extending again."""
        return {
            "capacity": self.capacity,
            "num_envs": self.num_envs,
            **self._ring.state_dict(),
            "priorities": self._priority_state(),
        }

    def _priority_state(self) -> dict[str, Any] | None:
        if self.priorities is None:
            return None
        values = self.priorities.get(self._held_positions()).float()
        return {"values": values, "maximum": self.priorities.maximum}

    def _held_positions(self) -> Tensor:
        return torch.arange(self._first, self.written) % self._ring.positions

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold what ``state_dict()`` returned, and nothing else.

        Raises:
            UserError: it is of another capacity or number of environments, of other observations
                or actions, or has priorities where this one has none.
        """
        for key in ("capacity", "num_envs"):
            if state[key] != getattr(self, key):
                raise UserError(
                    f"the saved replay buffer has {key} {state[key]}, this one "
                    f"{getattr(self, key)}: a replay buffer cannot change its size."
                )
        if (state["priorities"] is None) != (self.priorities is None):
            raise UserError("of the saved replay buffer and this one, only one has priorities.")
        try:
            self._ring.load_state_dict(state)
            if self.priorities is not None:
                saved = state["priorities"]
                self.priorities.load(self._held_positions(), saved["values"], saved["maximum"])
        except ValueError as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"the saved replay buffer does not fit: {error}") from error


def replay_size_in_bytes(
    capacity: int,
    num_envs: int,
    observation_shape: Sequence[int],
    observation_dtype: torch.dtype,
    action_shape: Sequence[int],
    action_dtype: torch.dtype,
    *,
    prioritised: bool = False,
    frame_stack: int = 1,
) -> int:
    """Return what a `ReplayBuffer` of these arguments takes, before it is made.

    Terminal observations of very short episodes can take more later: in the worst case, episodes
    of a single step, as much as the observations.
    """
    layout = transition_layout(
        observation_shape, observation_dtype, action_shape, action_dtype, frame_stack=frame_stack
    )
    return _size(layout, capacity, num_envs, prioritised, frame_stack)


def _size(layout: Layout, capacity: int, num_envs: int, prioritised: bool, frame_stack: int) -> int:
    steps = capacity // num_envs
    tree = _tree_bytes((steps + frame_stack) * num_envs) if prioritised else 0
    return ring_bytes(layout, steps, num_envs, frame_stack=frame_stack) + tree


def _tree_bytes(positions: int) -> int:
    return 2 * 8 << math.ceil(math.log2(max(positions, 2)))


def _check(capacity: int, num_envs: int, n_steps: int, alpha: float, epsilon: float) -> None:
    if num_envs < 1 or capacity < num_envs:
        raise UserError(
            f"a replay buffer's capacity is {capacity}; with {num_envs} environments it has to be "
            f"{max(num_envs, 1)} or more."
        )
    if n_steps < 1:
        raise UserError(f"n_steps is {n_steps}; it has to be 1 or more.")
    if alpha < 0 or not epsilon > 0:
        raise UserError(
            f"alpha is {alpha} and priority_epsilon {epsilon}; alpha has to be 0 or more, "
            "priority_epsilon above 0."
        )
