"""Resident memory of this library over repeated runs and over many steps; it should be flat.

python -m tests.benchmarks.memory --threads 1 [--learn-calls 10] [--steps 2000000]
"""

from __future__ import annotations

import argparse
import gc
import os
from pathlib import Path
from typing import Any

from tests.benchmarks.process import Result, run_child

STEPS_PER_LEARN = 2048
SAMPLES = 10


def resident_mebibytes() -> float:
    """Return this process's resident set size in MiB (Linux)."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def make_algorithm(total_timesteps: int, threads: int) -> Any:
    """Build a PPO so small that steps are cheap."""
    from rl_training import PPO

    return PPO(
        "CartPole-v1",
        seed=1,
        device="cpu",
        torch_threads=threads,
        total_timesteps=total_timesteps,
        num_envs=8,
        hidden_sizes=[8],
        num_steps=128,
        minibatch_size=1024,
        num_epochs=1,
    )


def over_learn_calls(calls: int, threads: int) -> list[float]:
    """Return the resident size after each of ``calls`` complete trainings in this process."""
    sizes = []
    for _ in range(calls):
        make_algorithm(STEPS_PER_LEARN, threads).learn(STEPS_PER_LEARN)
        sizes.append(resident_mebibytes())
    return sizes


def over_steps(steps: int, threads: int) -> list[float]:
    """Return the resident size at ``SAMPLES`` equal distances along one training of ``steps``."""
    algorithm = make_algorithm(steps, threads)
    distance = steps / SAMPLES
    sizes: list[float] = []
    for batch in algorithm.collector():
        algorithm.update(batch)
        if algorithm.global_step >= distance * (len(sizes) + 1):
            sizes.append(resident_mebibytes())
        if len(sizes) == SAMPLES:
            break
    return sizes


def run(arguments: argparse.Namespace) -> Result:
    """Measure both series, each in MiB."""
    return {
        "learn_calls": over_learn_calls(arguments.learn_calls, arguments.threads),
        "steps": over_steps(arguments.steps, arguments.threads) if arguments.steps else [],
    }


def main() -> None:
    """Measure once and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learn-calls", type=int, default=10)
    parser.add_argument("--steps", type=int, default=2_000_000, help="0: skip the long training")
    run_child(run, parser)


if __name__ == "__main__":
    main()
