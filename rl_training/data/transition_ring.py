"""The rows of a replay buffer: steps of all environments as ring tensors in one TensorDict.

An observation is stored once: what follows step t is row t + 1's observation, except at an
episode's end, whose terminal observation lies in a queue of its own (`EpisodeEnds`), and the newest
observation of all, which lies in one more row at the write head.

Of observations that are stacks of frames, only the newest frame is stored, and the stack is put
together again at sampling: from the steps before it in its episode, whose first frame fills what is
missing. So the frames of some more rows than are held have to stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_training.data.episode_ends import FIRST_SIZE, EpisodeEnds
from rl_training.data.frame_stacks import FrameStacks
from rl_training.data.replay_storage import Allocate, tensor_bytes
from rl_training.runtime.checks import require_counter
from rl_training.runtime.sharded import Sharded, ring_spans, rows_per_shard

RUNNING = -1
"""The value of ``end`` where the episode went on; elsewhere it is a number in `EpisodeEnds`."""
_SHARD_TRANSITIONS = 2**14

Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]


def transition_layout(
    observation_shape: Sequence[int],
    observation_dtype: torch.dtype,
    action_shape: Sequence[int],
    action_dtype: torch.dtype,
    *,
    frame_stack: int = 1,
) -> Layout:
    """Return shape and dtype of what one step of one environment stores.

    ``frame_stack`` frames along the first dimension make an observation.
    """
    channels, *size = observation_shape if frame_stack > 1 else (0,)
    if channels % frame_stack:
        raise ValueError(f"{channels} channels are not {frame_stack} frames")
    frame = (channels // frame_stack, *size) if frame_stack > 1 else tuple(observation_shape)
    stacked = {"age": ((), torch.uint8)} if frame_stack > 1 else {}
    return {
        **stacked,
        "observation": (frame, observation_dtype),
        "action": (tuple(action_shape), action_dtype),
        "reward": ((), torch.float32),
        "terminated": ((), torch.bool),
        "end": ((), torch.int64),
    }


def ring_bytes(layout: Layout, steps: int, num_envs: int, *, frame_stack: int = 1) -> int:
    """Return the size of a `TransitionRing` before it is made."""
    per_position = sum(tensor_bytes(shape, dtype) for shape, dtype in layout.values())
    ends = min(steps * num_envs, FIRST_SIZE) * tensor_bytes(*layout["observation"])
    return (steps + frame_stack) * num_envs * per_position + ends


class TransitionRing:
    """The latest ``steps`` steps of ``num_envs`` environments.

    Row t, counted from the first one ever stored, lies at t modulo ``rows``: the steps, the write
    head, and with ``frame_stack`` above 1 the frames before the oldest step. Its transitions lie at
    the ``positions`` (t * num_envs + environment) modulo ``positions`` of the flat tensors.
    """

    def __init__(
        self,
        layout: Layout,
        steps: int,
        num_envs: int,
        allocate: Allocate,
        *,
        frame_stack: int = 1,
    ) -> None:
        self.steps, self.num_envs = steps, num_envs
        self.rows = steps + frame_stack
        self.positions = self.rows * num_envs
        self.frames = FrameStacks(frame_stack, num_envs)
        self.written = 0
        """Rows ever stored; the number of the next one."""
        self.storage = TensorDict(
            {
                key: allocate((self.rows, num_envs, *shape), dtype)
                for key, (shape, dtype) in layout.items()
            },
            batch_size=(self.rows, num_envs),
        )
        self._rings: dict[str, Tensor] = {key: self.storage[key] for key in layout}
        self.flat = {key: ring.flatten(0, 1) for key, ring in self._rings.items()}
        """The same memory as ``[positions, ...]``."""
        self._ends = EpisodeEnds(steps * num_envs, *layout["observation"], allocate)
        self._known: dict[str, dict[int, tuple[str, int]]] = {key: {} for key in layout}

    @property
    def oldest(self) -> int:
        """The oldest row that is held."""
        return max(0, self.written - self.steps)

    @property
    def size_in_bytes(self) -> int:
        """What all tensors take, whether touched yet or not."""
        rings = sum(ring.numel() * ring.element_size() for ring in self._rings.values())
        return rings + self._ends.size_in_bytes

    # ---- writing

    def extend(self, batch: TensorDictBase) -> None:
        """Store a batch ``[num_envs, T]``; see `ReplayBuffer.extend`."""
        following = batch.get("next")
        columns = {
            "observation": batch.get("observation"),
            "action": batch.get("action"),
            "reward": following.get("reward").squeeze(-1),
            "terminated": following.get("terminated").squeeze(-1),
        }
        done = following.get("done").squeeze(-1)
        successor = following.get("observation")
        begins = batch.get("is_init", None)
        if self.frames.count > 1:
            columns["age"] = self.frames.ages(begins, done)
            self.frames.require_stacked(columns["observation"], columns["age"])
            columns["observation"] = self.frames.newest(columns["observation"])
            successor = self.frames.newest(successor)
        if begins is not None and self.written:
            self._end_abandoned(begins[:, 0].reshape(-1))
        if done.shape[1] <= self.steps:
            self._write(columns, successor, done)
            return
        for first in range(0, done.shape[1], self.steps):
            part = slice(first, first + self.steps)
            some = {key: value[:, part] for key, value in columns.items()}
            self._write(some, successor[:, part], done[:, part])

    def _end_abandoned(self, begins: Tensor) -> None:
        """End the newest step as truncated where an episode begins that it did not announce."""
        if not begins.any():
            return
        newest = self._rings["end"][(self.written - 1) % self.rows]
        abandoned = begins & (newest == RUNNING)
        if abandoned.any():
            head = self._rings["observation"][self.written % self.rows]
            newest[abandoned] = self._ends.append(head[abandoned])

    def _write(self, columns: dict[str, Tensor], successor: Tensor, done: Tensor) -> None:
        """Store at most ``steps`` steps; all tensors ``[num_envs, T, ...]``."""
        first, last = self.written, self.written + done.shape[1]
        rings = self._rings
        self._forget_ends(last)
        offset = 0
        for at, until in ring_spans(first, last, self.rows):
            part = slice(offset, offset + until - at)
            for key, value in columns.items():
                rings[key][at:until] = value[:, part].transpose(0, 1)
            rings["end"][at:until] = RUNNING
            offset += until - at
        rings["observation"][last % self.rows] = successor[:, -1]
        if done.any():
            steps, environments = done.T.nonzero(as_tuple=True)
            numbers = self._ends.append(successor[environments, steps])
            rings["end"][(steps + first) % self.rows, environments] = numbers
        self.written = last

    def _forget_ends(self, last: int) -> None:
        """Let go of the terminal observations of rows that are not held once row ``last`` is next.

        Numbers grow from row to row, so those up to the highest of these rows.
        """
        for at, until in ring_spans(self.oldest, last - self.steps, self.rows):
            self._ends.forget(int(self._rings["end"][at:until].max()) + 1)

    # ---- reading

    def successors(self, positions: Tensor) -> Tensor:
        """Return the observations ``[B, ...]`` that followed the steps at ``positions`` ``[B]``."""
        after = (positions + self.num_envs).remainder_(self.positions)
        if self.frames.count > 1:
            age = self.flat["age"].index_select(0, positions)
            observation = self._stacks(after, age.long() + 1)
        else:
            observation = self.flat["observation"].index_select(0, after)
        end = self.flat["end"].index_select(0, positions)
        ended = (end != RUNNING).nonzero().squeeze(1)
        if len(ended):
            self.frames.newest(observation)[ended] = self._ends.get(end[ended])
        return observation

    def observations(self, positions: Tensor) -> Tensor:
        """Return the observations ``[B, ...]`` of the steps at ``positions`` ``[B]``."""
        if self.frames.count == 1:
            return self.flat["observation"].index_select(0, positions)
        return self._stacks(positions, self.flat["age"].index_select(0, positions).long())

    def _stacks(self, positions: Tensor, ages: Tensor) -> Tensor:
        """Return the stacks that end at ``positions``, of episodes ``ages`` steps old there."""
        places = self.frames.places(positions, ages) % self.positions
        frames = self.flat["observation"].index_select(0, places.flatten())
        return frames.view(len(positions), -1, *frames.shape[2:])

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Return the content, without a copy."""
        return {
            "written": self.written,
            "rows": {key: self._row_state(key) for key in self._rings},
            "ends": self._ends.state(),
        }

    def _row_state(self, key: str) -> Sharded:
        # The newest row can still change, by `_end_abandoned`; of the observations, that is the
        # one at the write head.
        stop = self.written + (key == "observation" and self.written > 0)
        before = self.frames.count - 1 if key == "observation" else 0
        start = max(0, self.oldest - before)
        ring = self._rings[key]
        return Sharded.of_ring(
            ring,
            start=start,
            stop=stop,
            sealed=max(start, stop - 1),
            shard_rows=rows_per_shard(ring, at_most=_SHARD_TRANSITIONS // self.num_envs),
            known=self._known[key],
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold what ``state_dict()`` returned, and nothing else.

        Raises:
            ValueError: it is of other observations or actions, or its parts do not fit together.
        """
        self.written = require_counter("written", state["written"])
        for key, ring in self._rings.items():
            rows, expected = state["rows"][key], self._row_state(key)
            if (rows.start, rows.stop) != (expected.start, expected.stop):
                raise ValueError(
                    f"{key} has rows {rows.start} to {rows.stop} where {expected.start} to "
                    f"{expected.stop} belong"
                )
            rows.copy_into(ring)
            self._known[key] = dict(rows.known)
        self._ends.load_state(state["ends"])
        for end in self._row_state("end").pieces():
            numbers = end[end != RUNNING]
            if ((numbers < self._ends.first) | (numbers >= self._ends.next)).any():
                raise ValueError("an episode's end has no terminal observation")
        if self.frames.count > 1 and self.written:
            newest = (self.written - 1) % self.rows
            self.frames.go_on(
                self._rings["age"][newest], ended=self._rings["end"][newest] != RUNNING
            )
