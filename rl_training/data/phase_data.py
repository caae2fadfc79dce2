"""What PPG's auxiliary phase is computed from: observations and value targets of many rollouts.

Of observations that are stacks of frames, each frame is kept once, as in the replay buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_training.data.frame_stacks import FrameStacks
from rl_training.data.recurrent_rollout_buffer import RecurrentRolloutBuffer

Part = dict[str, Tensor]


class PhaseData:
    """Rollouts ``[N, T]`` as samples ``[M, ...]``, in the order in which they were added.

    Args:
        frame_stack: how many frames an observation is a stack of; 1: it is none.
    """

    def __init__(self, frame_stack: int = 1) -> None:
        self.frame_stack = frame_stack
        self.parts: list[Part] = []
        """One per rollout: ``value_target`` ``[N * T, 1]``, and ``observation`` ``[N * T, ...]`` or
        ``frames`` and ``ages``.
        """

    def __len__(self) -> int:
        """Return the number of rollouts."""
        return len(self.parts)

    def add(self, batch: TensorDictBase) -> None:
        """Keep copies of what the phase needs of a rollout."""
        part = {"value_target": batch["value_target"].flatten(0, 1).clone()}
        if self.frame_stack == 1:
            part["observation"] = batch["observation"].flatten(0, 1).clone()
        else:
            part.update(self._frames(batch))
        self.parts.append(part)

    def _frames(self, batch: TensorDictBase) -> Part:
        """Return ``frames`` ``[N, T + stack - 1, channels, ...]``, of each row the older ones of
        its first stack and then one a step, and ``ages`` ``[N, T]``.
        """
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

    def joined(self) -> Part:
        """Return all samples: ``value_target`` ``[M]``, and ``observation`` or what `samples_of`
        puts it together from.
        """
        data = {
            "value_target": torch.cat([part["value_target"] for part in self.parts]).squeeze(-1)
        }
        if self.frame_stack == 1:
            data["observation"] = torch.cat([part["observation"] for part in self.parts])
            return data
        places, first = [], 0
        for part in self.parts:
            frames, ages = part["frames"], part["ages"].long()
            rows = torch.arange(len(frames)).unsqueeze(1) * frames.shape[1]
            newest = first + rows + torch.arange(self.frame_stack - 1, frames.shape[1])
            stacks = FrameStacks(self.frame_stack, 1)
            places.append(stacks.places(newest.flatten(), ages.flatten()))
            first += frames.shape[0] * frames.shape[1]
        data["places"] = torch.cat(places)
        data["frames"] = torch.cat([part["frames"].flatten(0, 1) for part in self.parts])
        return data


class SequencePhaseData(PhaseData):
    """The same as sequences ``[S, length, ...]``, with the states that they were collected from.

    Args:
        length: steps of a sequence.
        keys: what is kept beside observations, states and value targets.
    """

    def __init__(self, length: int, keys: Sequence[str] = ()) -> None:
        super().__init__()
        self._length, self._keys = length, tuple(keys)

    def add(self, batch: TensorDictBase) -> None:
        """Keep copies of what the phase needs of a rollout."""
        sequences = RecurrentRolloutBuffer.of(batch).sequences(self._length, extra_keys=self._keys)
        kept = ("observation", "is_init", "memory", *self._keys)
        part = {key: sequences[key].clone() for key in kept}
        self.parts.append({**part, "value_target": sequences["value_target"].unsqueeze(-1).clone()})

    def joined(self) -> Part:
        """Return all sequences, ``[S, ...]`` each."""
        data = {key: torch.cat([part[key] for part in self.parts]) for key in self.parts[0]}
        return {**data, "value_target": data["value_target"].squeeze(-1)}


def samples_of(data: Mapping[str, Tensor], indices: Tensor) -> Part:
    """Return the samples ``[B, ...]`` of what `PhaseData.joined` gave."""
    samples = {k: v[indices] for k, v in data.items() if k not in ("frames", "places")}
    if "frames" in data:
        samples["observation"] = data["frames"][data["places"][indices]].flatten(1, 2)
    return samples


def minibatch_of(data: Mapping[str, Tensor], indices: Tensor) -> tuple[Part, Tensor]:
    """Return what a gradient step takes: tensors, and which of their rows."""
    if "frames" not in data:
        return dict(data), indices
    return samples_of(data, indices), torch.arange(len(indices), device=indices.device)


def parts_of(state: Sequence[Mapping[str, Tensor]]) -> list[Part]:
    """Return saved `PhaseData.parts` as new dicts."""
    return [dict(part) for part in state]
