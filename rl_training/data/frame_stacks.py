"""Observations that are stacks of the episode's latest frames: which frames make one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rl_training.errors import UserError

if TYPE_CHECKING:
    from rl_training.config import TrainConfig


def stacked_frames(config: TrainConfig, *, named: bool) -> int:
    """Return how many frames an observation is a stack of; 1 where nothing is known of it.

    Args:
        config: of the run.
        named: the environment was given by its id, and not as an object.
    """
    env = config.env
    # The native pipeline does not begin a life with a new stack.
    known = named and env.atari.enabled and env.vectorization != "native"
    return env.atari.frame_stack if known else 1


class FrameStacks:
    """Stacks of ``count`` frames along the first dimension, the newest last, in ``num_envs`` rows.

    The first observation of an episode is its first frame ``count`` times over; each step pushes
    the oldest out. A step's ``age`` says how many steps of its episode precede it, up to
    ``count - 1``: with it, a stack is known from single frames. ``count`` 1 is no stack.
    """

    def __init__(self, count: int, num_envs: int) -> None:
        self.count = count
        self._next_age = torch.zeros(num_envs, dtype=torch.int64)
        self._steps_back = torch.arange(count - 1, -1, -1)
        self._num_envs = num_envs
        self._unchecked = True

    def newest(self, observations: Tensor) -> Tensor:
        """Return the newest frame of observations ``[..., channels, height, width]``, a view."""
        if self.count == 1:
            return observations
        channels = observations.shape[-3] // self.count
        return observations[..., -channels:, :, :]

    def ages(self, begins: Tensor | None, done: Tensor) -> Tensor:
        """Return the ages ``[N, T]`` of a batch that goes on where the last one ended.

        Args:
            begins: bool ``[N, T, 1]``, where an episode begins; None: after each ``done``.
            done: bool ``[N, T]``.
        """
        steps = torch.arange(done.shape[1])
        if begins is None:
            first = (self._next_age == 0).unsqueeze(1)
            starts = torch.cat([first, done[:, :-1]], 1)
        else:
            starts = begins.squeeze(-1)
        marks = torch.where(starts, steps, -self._next_age.unsqueeze(1))
        ages = (steps - marks.cummax(1).values).clamp_(max=self.count - 1)
        self.go_on(ages[:, -1], ended=done[:, -1])
        return ages.to(torch.uint8)

    def go_on(self, age: Tensor, *, ended: Tensor) -> None:
        """Note age and end, both ``[N]``, of the newest step."""
        following = (age.long() + 1).clamp(max=self.count - 1)
        self._next_age = torch.where(ended, 0, following)

    def places(self, positions: Tensor, ages: Tensor) -> Tensor:
        """Return the positions ``[B, count]`` of the frames of stacks, the oldest first.

        Steps of one environment lie ``num_envs`` positions apart, and may be negative: the caller
        takes the modulus.

        Args:
            positions: of the newest frames, ``[B]``.
            ages: of the steps they belong to, ``[B]``.
        """
        back = torch.minimum(self._steps_back, ages.unsqueeze(1))
        return positions.unsqueeze(1) - back * self._num_envs

    def require_stacked(self, observations: Tensor, ages: Tensor) -> None:
        """Compare the first batch with what its frames would give; later ones are taken on trust.

        Raises:
            UserError: they are no such stacks.
        """
        if not self._unchecked:
            return
        self._unchecked = False
        frames = observations.reshape(*ages.shape, self.count, -1, *observations.shape[3:])
        for back in range(1, self.count):
            older = frames[:, :, -1 - back]
            # What it should be: the frame before it one step ago, or in a first step the newest.
            first = ages == 0
            expected = torch.where(
                first.view(*first.shape, 1, 1, 1),
                frames[:, :, -1],
                torch.roll(frames[:, :, -back], 1, 1),
            )
            known = first.clone()
            known[:, 1:] = True
            if not torch.equal(older[known], expected[known]):
                raise UserError(
                    f"observations of shape {tuple(observations.shape[2:])} are no stacks of the "
                    f"latest {self.count} frames, as which the replay buffer was to store them."
                )
