"""Single frames in the replay buffer against a buffer that copies every stack in full."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import Tensor

from rl_training.data.replay_buffer import ReplayBuffer, replay_size_in_bytes
from rl_training.errors import UserError
from rl_training.runtime.checkpoint import digest, load_checkpoint, save_checkpoint

FRAMES, CHANNELS, SIZE = 4, 2, (3, 2)
SHAPE = (FRAMES * CHANNELS, *SIZE)


@dataclass
class Stacks:
    """Environments whose frames are unlike all others, and full copies of what they observed."""

    num_envs: int
    seed: int
    end_probability: float
    observations: list[Tensor] = field(default_factory=list)
    followings: list[Tensor] = field(default_factory=list)
    """Of step t of environment e at ``t * num_envs + e``."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._number = 0
        self._stacks = [self._first() for _ in range(self.num_envs)]
        self._begins = [True] * self.num_envs

    def _frame(self) -> Tensor:
        self._number += 1
        values = torch.arange(CHANNELS * 6) + self._number * 13
        return (values % 251).to(torch.uint8).view(CHANNELS, *SIZE)

    def _first(self) -> Tensor:
        return torch.cat([self._frame()] * FRAMES)

    def abandon(self) -> None:
        """Begin new episodes everywhere without an end of the old ones."""
        self._stacks = [self._first() for _ in range(self.num_envs)]
        self._begins = [True] * self.num_envs

    def batch(self, steps: int, *, told: bool = True) -> TensorDict:
        """Return the next ``steps``; ``told`` says whether the batch has ``is_init``."""
        columns: dict[str, list[Any]] = {key: [] for key in ("o", "f", "init", "done")}
        for _ in range(steps):
            for row in range(self.num_envs):
                done = self._random.random() < self.end_probability
                following = torch.cat([self._stacks[row][CHANNELS:], self._frame()])
                columns["o"].append(self._stacks[row])
                columns["f"].append(following)
                columns["init"].append(self._begins[row])
                columns["done"].append(done)
                self._stacks[row] = self._first() if done else following
                self._begins[row] = done
        self.observations += columns["o"]
        self.followings += columns["f"]
        shape = (self.num_envs, steps)

        def images(values: list[Tensor]) -> Tensor:
            return torch.stack(values).view(steps, self.num_envs, *SHAPE).transpose(0, 1)

        def flags(values: list[bool]) -> Tensor:
            return torch.tensor(values).view(steps, self.num_envs).T.unsqueeze(-1)

        ends = flags(columns["done"])
        next_ = {
            "observation": images(columns["f"]),
            "reward": torch.zeros(*shape, 1),
            "terminated": ends,
            "done": ends,
        }
        root = {"observation": images(columns["o"]), "action": torch.zeros(shape, dtype=torch.long)}
        if told:
            root["is_init"] = flags(columns["init"])
        return TensorDict({**root, "next": TensorDict(next_, shape)}, shape)


def make_buffer(capacity: int, num_envs: int, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(
        capacity,
        num_envs,
        SHAPE,
        torch.uint8,
        (),
        torch.int64,
        discount=0.9,
        **{"frame_stack": FRAMES, **options},
    )


def assert_equals_full_copies(
    buffer: ReplayBuffer, stacks: Stacks, generator: torch.Generator, n_steps: int = 1
) -> None:
    beta = None if buffer.priorities is None else 0.5
    sample = buffer.sample(len(buffer) * 8 + 8, generator, beta=beta)
    oldest = len(stacks.observations) - len(buffer)
    for place, number in enumerate(sample["indices"].tolist()):
        assert number >= oldest
        assert torch.equal(sample["observation"][place], stacks.observations[number])
        if n_steps == 1:
            assert torch.equal(sample["next_observation"][place], stacks.followings[number])
        else:
            assert any(
                torch.equal(sample["next_observation"][place], each)
                for each in stacks.followings[number :: stacks.num_envs][:n_steps]
            )


@settings(max_examples=80, deadline=None)
@given(
    num_envs=st.integers(1, 3),
    steps=st.integers(1, 12),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    end_probability=st.sampled_from([0.0, 0.1, 0.4, 1.0]),
    seed=st.integers(0, 10_000),
    prioritised=st.booleans(),
    told=st.booleans(),
    n_steps=st.sampled_from([1, 3]),
)
def test_every_sample_is_the_full_copy(
    num_envs: int,
    steps: int,
    lengths: list[int],
    end_probability: float,
    seed: int,
    prioritised: bool,
    told: bool,
    n_steps: int,
) -> None:
    stacks = Stacks(num_envs, seed, end_probability)
    buffer = make_buffer(steps * num_envs, num_envs, prioritised=prioritised, n_steps=n_steps)
    draws = torch.Generator().manual_seed(seed)
    for length in lengths:
        buffer.extend(stacks.batch(length, told=told))
        assert_equals_full_copies(buffer, stacks, draws, n_steps)


def test_episodes_abandoned_without_an_end() -> None:
    stacks = Stacks(2, 0, 0.1)
    buffer, draws = make_buffer(20, 2), torch.Generator().manual_seed(0)
    for length in (3, 1, 7, 2):
        buffer.extend(stacks.batch(length))
        stacks.abandon()
        assert_equals_full_copies(buffer, stacks, draws)


@pytest.mark.parametrize("before", [1, 5, 30])
def test_a_loaded_buffer_goes_on(before: int, tmp_path: Path) -> None:
    stacks = Stacks(2, before, 0.1)
    buffer, draws = make_buffer(24, 2), torch.Generator().manual_seed(0)
    for _ in range(before):
        buffer.extend(stacks.batch(1))
    path = save_checkpoint(
        tmp_path,
        step=buffer.written,
        state={"replay": buffer.state_dict()},
        policy={},
        config={},
        keep_last=1,
    )
    loaded = make_buffer(24, 2)
    loaded.load_state_dict(load_checkpoint(path).state["replay"])
    assert_equals_full_copies(loaded, stacks, draws)
    assert digest(loaded.state_dict()) == digest(buffer.state_dict())
    for length in (1, 2, 9):
        batch = stacks.batch(length)
        loaded.extend(batch)
        buffer.extend(batch)
        assert_equals_full_copies(loaded, stacks, draws)
        assert digest(loaded.state_dict()) == digest(buffer.state_dict())


def test_observations_that_are_no_stacks_are_refused() -> None:
    batch = Stacks(1, 0, 0.0).batch(5)
    batch["observation"][0, 2] += 1
    with pytest.raises(UserError, match="are no stacks of the latest 4 frames"):
        make_buffer(10, 1).extend(batch)
    zeros_first = Stacks(1, 0, 0.0).batch(5)
    zeros_first["observation"][0, 0, :-CHANNELS] = 0
    with pytest.raises(UserError, match="are no stacks"):
        make_buffer(10, 1).extend(zeros_first)


def test_a_million_atari_frames_take_seven_gigabytes() -> None:
    size = replay_size_in_bytes(
        1_000_000, 1, (4, 84, 84), torch.uint8, (), torch.int64, frame_stack=4
    )
    assert 7.05e9 < size < 7.1e9
    small = make_buffer(600, 3)
    asked = replay_size_in_bytes(600, 3, SHAPE, torch.uint8, (), torch.int64, frame_stack=FRAMES)
    assert small.size_in_bytes == asked
    assert small.storage["observation"].shape == (200 + FRAMES, 3, CHANNELS, *SIZE)
