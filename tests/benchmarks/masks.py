"""What masks of legal actions cost: CPU time of the same task with masks, and without them but with
observations of the same width; in turns, in one process.

python -m tests.benchmarks.masks --algorithm ppo --rounds 5
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"num_envs": 8, "num_steps": 32, "minibatch_size": 256, "num_epochs": 20},
    "recurrent_ppo": {"num_envs": 8, "num_steps": 32, "minibatch_size": 256, "num_epochs": 20},
    "dqn": {
        "num_envs": 8,
        "train_every": 256,
        "warm_up": 256,
        "gradient_steps_per_step": 0.5,
        "minibatch_size": 64,
        "hidden_sizes": [256, 256],
    },
}
ITERATION = 256
"""Environment steps."""


class _CartPole(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole with ``several`` actions at once, of which the first counts."""

    def __init__(self, several: bool) -> None:
        super().__init__(gymnasium.make("CartPole-v1", disable_env_checker=True))
        self.several = several
        if several:
            self.action_space = spaces.MultiDiscrete([2, 3, 4])
        self.mask = np.ones(9 if several else 2, np.int8)

    def _act(self, action: Any) -> tuple[Any, ...]:
        return tuple(self.env.step(action[0] if self.several else action))


class Masked(_CartPole):
    """Tells a mask in which everything is legal."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        observation, _ = self.env.reset(**options)
        return observation, {"action_mask": self.mask}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step."""
        observation, reward, terminated, truncated, _ = self._act(action)
        return observation, reward, terminated, truncated, {"action_mask": self.mask}


class Plain(_CartPole):
    """Shows as many numbers, and tells no mask."""

    def __init__(self, several: bool) -> None:
        super().__init__(several)
        self.shown = np.ones(4 + len(self.mask), np.float32)
        self.observation_space = spaces.Box(-np.inf, np.inf, self.shown.shape, np.float32)

    def _show(self, observation: Any) -> Any:
        self.shown[-4:] = observation
        return self.shown

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        return self._show(self.env.reset(**options)[0]), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step."""
        observation, reward, terminated, truncated, _ = self._act(action)
        return self._show(observation), reward, terminated, truncated, {}


class Cost(NamedTuple):
    """CPU seconds of one round."""

    collect: float
    update: float

    @property
    def whole(self) -> float:
        """Of both."""
        return self.collect + self.update


def measure(algorithm: str, *, masked: bool, several: bool, iterations: int) -> Cost:
    """Train for some iterations after two others, and return what they cost."""
    from rl_training.registry import algorithm_class

    made = Masked if masked else Plain
    options = {**SETTINGS[algorithm], "action_masks": "info" if masked else "off"}
    trained = algorithm_class(algorithm)(lambda: made(several), torch_threads=1, **options)
    batches = iter(trained.collector())
    collect = update = 0.0
    for number in range(iterations + 2):
        started = time.process_time()
        batch = next(batches)
        collected = time.process_time()
        trained.update(batch)
        if number >= 2:
            collect += collected - started
            update += time.process_time() - collected
    trained.close()
    return Cost(collect, update)


def compare(algorithm: str, *, several: bool, rounds: int, iterations: int) -> dict[str, float]:
    """Return the median cost with masks over the median cost without, of each part."""
    costs: dict[bool, list[Cost]] = {True: [], False: []}
    for _ in range(rounds):
        for masked in (False, True):
            cost = measure(algorithm, masked=masked, several=several, iterations=iterations)
            costs[masked].append(cost)
    return {
        part: statistics.median(getattr(each, part) for each in costs[True])
        / statistics.median(getattr(each, part) for each in costs[False])
        for part in ("collect", "update", "whole")
    }


def main() -> None:
    """Print one line per kind of actions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=[*SETTINGS], default="ppo")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=20)
    arguments = parser.parse_args()
    for several in (False, True):
        if several and arguments.algorithm == "dqn":
            continue
        ratios = compare(
            arguments.algorithm,
            several=several,
            rounds=arguments.rounds,
            iterations=arguments.iterations,
        )
        parts = ", ".join(f"{part} {ratio:.2f}" for part, ratio in ratios.items())
        kind = "MultiDiscrete([2 3 4])" if several else "Discrete(2)"
        print(f"{arguments.algorithm} {kind}: CPU time with masks over without: {parts}")


if __name__ == "__main__":
    main()
