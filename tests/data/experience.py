"""Episodes of known numbers, and what a replay buffer should make of them, with plain lists."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDict

from rl_training.data.replay_buffer import ReplayBuffer

DISCOUNT = 0.9


@dataclass
class Transition:
    """One step; observations are unlike all others of the stream."""

    observation: float
    action: int
    reward: float
    following: float
    terminated: bool
    done: bool


@dataclass
class Stream:
    """Environments whose episodes end at random, and every transition they made, in order."""

    num_envs: int
    seed: int
    end_probability: float = 0.3
    transitions: list[Transition] = field(default_factory=list)
    """Step t of environment e at ``t * num_envs + e``."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._names = iter(range(1, 1_000_000))
        self._roots = [float(next(self._names)) for _ in range(self.num_envs)]
        self._begins = [True] * self.num_envs

    def batch(self, steps: int, dtype: torch.dtype = torch.float32) -> TensorDict:
        """Return the next ``steps`` as a collector's batch, observations of shape ``(2,)``."""
        inits: list[bool] = []
        new: list[Transition] = []
        for _ in range(steps):
            inits += self._begins
            new += [self._step(row) for row in range(self.num_envs)]
        self.transitions += new

        def grid(values: list[Any], kind: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=kind).view(steps, self.num_envs).T.contiguous()

        def observations(values: list[float]) -> torch.Tensor:
            column = grid(values, torch.float64)
            return torch.stack([column // 256, column % 256], -1).to(dtype)

        def flags(values: list[bool]) -> torch.Tensor:
            return grid(values, torch.bool).unsqueeze(-1)

        following = {
            "observation": observations([each.following for each in new]),
            "reward": grid([each.reward for each in new], torch.float32).unsqueeze(-1),
            "terminated": flags([each.terminated for each in new]),
            "truncated": flags([each.done and not each.terminated for each in new]),
            "done": flags([each.done for each in new]),
        }
        root = {
            "observation": observations([each.observation for each in new]),
            "action": grid([each.action for each in new], torch.int64),
            "is_init": flags(inits),
        }
        shape = (self.num_envs, steps)
        return TensorDict({**root, "next": TensorDict(following, shape)}, shape)

    def abandon(self) -> None:
        """Begin new episodes everywhere; what was running counts as truncated after its newest
        step.
        """
        for row in range(self.num_envs):
            if self.transitions:
                self.transitions[row - self.num_envs].done = True
            self._roots[row] = float(next(self._names))
            self._begins[row] = True

    def _step(self, row: int) -> Transition:
        done = self._random.random() < self.end_probability
        step = Transition(
            observation=self._roots[row],
            action=self._random.randrange(100),
            reward=self._random.randrange(-8, 8) / 4,
            following=float(next(self._names)),
            terminated=done and self._random.random() < 0.5,
            done=done,
        )
        self._roots[row] = float(next(self._names)) if done else step.following
        self._begins[row] = done
        return step

    def sample(self, number: int, n_steps: int) -> dict[str, Any]:
        """Return what sampling transition ``number`` should give."""
        total, k, current = 0.0, 0, self.transitions[number]
        while True:
            current = self.transitions[number + k * self.num_envs]
            total += DISCOUNT**k * current.reward
            k += 1
            if current.done or k == n_steps or number + k * self.num_envs >= len(self.transitions):
                break
        first = self.transitions[number]
        return {
            "observation": first.observation,
            "action": first.action,
            "reward": total,
            "next_observation": current.following,
            "terminated": current.terminated,
            "discount": DISCOUNT**k,
        }


def make_buffer(capacity: int, num_envs: int, **options: Any) -> ReplayBuffer:
    """Return a buffer for the batches of a `Stream`."""
    dtype = options.pop("dtype", torch.float32)
    return ReplayBuffer(
        capacity, num_envs, (2,), dtype, (), torch.int64, discount=DISCOUNT, **options
    )


def assert_holds_the_latest(
    buffer: ReplayBuffer, stream: Stream, generator: torch.Generator, *, beta: float | None = None
) -> set[int]:
    """Compare many samples with the stream's own, and return the numbers that were drawn."""
    held = min(len(stream.transitions), buffer.capacity)
    assert len(buffer) == held
    assert buffer.written == len(stream.transitions)
    sample = buffer.sample(held * 12 + 16, generator, beta=beta)
    numbers = [int(number) for number in sample["indices"]]
    oldest = len(stream.transitions) - held
    assert all(oldest <= number < len(stream.transitions) for number in numbers)
    expected = [stream.sample(number, buffer.n_steps) for number in numbers]
    for key in ("observation", "next_observation"):
        parts = sample[key].to(torch.float64)
        assert (parts[:, 0] * 256 + parts[:, 1]).tolist() == [each[key] for each in expected], key
    for key in ("action", "terminated"):
        assert sample[key].tolist() == [each[key] for each in expected], key
    for key in ("reward", "discount"):
        wanted = torch.tensor([each[key] for each in expected], dtype=torch.float32)
        torch.testing.assert_close(sample[key], wanted, rtol=1e-6, atol=1e-6)
    return set(numbers)
