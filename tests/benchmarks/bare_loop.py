"""Microseconds per vector step of a bare rollout loop, written by hand for 8 CartPoles.

    python -m tests.benchmarks.bare_loop --threads 1 [--environments list]

The floor that collection is compared with: what a careful engineer writes when nothing must be
general. Policy forward (64-64 tanh), sample, log-probability, environment step, the rollout kept
in preallocated tensors with the true next observation, reward and both ends; no value function, no
TensorDict, no episode statistics. ``vector`` steps gymnasium's SyncVectorEnv, ``list`` a plain
Python list of the same environments.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, Protocol

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.benchmarks.process import Result, run_child

ENV_ID = "CartPole-v1"
NUM_ENVS = 8
NUM_STEPS = 32
WARM_UP_ROLLOUTS = 20
Array = NDArray[Any]


class Environments(Protocol):
    """Some environments that step together."""

    observation: Array

    def step(self, action: Array) -> tuple[Array, Array, Array, Array]:
        """Step all, reset the finished; return the true next observation, reward, and both ends."""


class VectorEnvironments:
    """Gymnasium's own synchronous vector environment, finished rows reset by mask."""

    def __init__(self) -> None:
        makers = [lambda: gymnasium.make(ENV_ID)] * NUM_ENVS
        self.vector = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED)
        self.observation, _ = self.vector.reset(seed=1)

    def step(self, action: Array) -> tuple[Array, Array, Array, Array]:
        """Step all, reset the finished."""
        following, reward, terminated, truncated, _ = self.vector.step(action)
        done = terminated | truncated
        self.observation = following
        if done.any():
            self.observation, _ = self.vector.reset(options={"reset_mask": done})
        return following, reward, terminated, truncated


class ListEnvironments:
    """A plain list of environments and a Python loop."""

    def __init__(self) -> None:
        self.environments = [gymnasium.make(ENV_ID) for _ in range(NUM_ENVS)]
        starts = [each.reset(seed=1 + row)[0] for row, each in enumerate(self.environments)]
        self.observation = np.stack(starts)

    def step(self, action: Array) -> tuple[Array, Array, Array, Array]:
        """Step all, reset the finished."""
        following = np.empty_like(self.observation)
        self.observation = np.empty_like(self.observation)
        reward = np.empty(NUM_ENVS, dtype=np.float32)
        terminated = np.empty(NUM_ENVS, dtype=np.bool_)
        truncated = np.empty(NUM_ENVS, dtype=np.bool_)
        for row, choice in enumerate(action.tolist()):
            environment = self.environments[row]
            following[row], reward[row], terminated[row], truncated[row], _ = environment.step(
                choice
            )
            if terminated[row] or truncated[row]:
                self.observation[row] = environment.reset()[0]
            else:
                self.observation[row] = following[row]
        return following, reward, terminated, truncated


class Rollout:
    """Preallocated tensors ``[NUM_STEPS, NUM_ENVS, ...]``."""

    def __init__(self) -> None:
        shape = (NUM_STEPS, NUM_ENVS)
        self.observation, self.next_observation = torch.zeros(2, *shape, 4)
        self.action = torch.zeros(shape, dtype=torch.int64)
        self.log_probability, self.reward = torch.zeros(2, *shape)
        self.terminated, self.truncated = torch.zeros(2, *shape, dtype=torch.bool)


def make_policy() -> nn.Module:
    """Build the 64-64 tanh policy network."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)
    )


@torch.inference_mode()
def collect(environments: Environments, policy: nn.Module, rollout: Rollout) -> None:
    """Fill one rollout."""
    for step in range(NUM_STEPS):
        observation = torch.from_numpy(environments.observation)
        log_probabilities: Tensor = policy(observation).log_softmax(-1)
        action = torch.multinomial(log_probabilities.exp(), 1)
        rollout.observation[step] = observation
        rollout.action[step] = action.squeeze(-1)
        rollout.log_probability[step] = log_probabilities.gather(-1, action).squeeze(-1)
        following, reward, terminated, truncated = environments.step(rollout.action[step].numpy())
        rollout.next_observation[step] = torch.from_numpy(following)
        rollout.reward[step] = torch.from_numpy(reward)
        rollout.terminated[step] = torch.from_numpy(terminated)
        rollout.truncated[step] = torch.from_numpy(truncated)


def run(arguments: argparse.Namespace) -> Result:
    """Warm up, then time the rollouts."""
    in_list = arguments.environments == "list"
    environments: Environments = ListEnvironments() if in_list else VectorEnvironments()
    policy, rollout = make_policy(), Rollout()
    for _ in range(WARM_UP_ROLLOUTS):
        collect(environments, policy, rollout)
    rollouts = max(1, arguments.steps // (NUM_STEPS * NUM_ENVS))
    wall = time.perf_counter()
    for _ in range(rollouts):
        collect(environments, policy, rollout)
    wall = time.perf_counter() - wall
    return {"microseconds_per_vector_step": 1e6 * wall / (rollouts * NUM_STEPS)}


def main() -> None:
    """Measure once and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environments", choices=("vector", "list"), default="vector")
    parser.add_argument("--steps", type=int, default=51_200)
    run_child(run, parser)


if __name__ == "__main__":
    main()
