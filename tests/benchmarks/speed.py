"""Compare this library's speed and memory with Stable-Baselines3's and with a bare loop.

    python -m tests.benchmarks.speed                                      # everything but memory
    python -m tests.benchmarks.speed --only collect --threads 1           # one comparison
    python -m tests.benchmarks.speed --workloads ppo_cartpole --only peer compiled --repeats 5
    python -m tests.benchmarks.speed --only memory
    python -m tests.benchmarks.speed --workloads ppo_breakout --device cuda

Each measurement is a fresh process, and the sides take turns, so that what else the machine does
falls on all of them alike. Compilation and other first-time costs lie before the timed part. Needs
the extras ``peers`` and ``mujoco``. ``--steps`` shortens every measurement: to see that things run,
not to compare.
"""

from __future__ import annotations

import argparse
import sys

from rich.console import Console
from rich.progress import track

from tests.benchmarks.measurements import TRAINING_SIDES, Results, plan
from tests.benchmarks.process import MeasurementError, measure
from tests.benchmarks.tables import (
    OUR_SIDES,
    arithmetic_table,
    collection_table,
    memory_table,
    speed_table,
    split_table,
)
from tests.benchmarks.workloads import WORKLOADS

SIDES = (*TRAINING_SIDES, "collect")


def parse_arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--workloads", nargs="+", choices=tuple(WORKLOADS), default=[*WORKLOADS])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=(*SIDES, "memory"), default=[*SIDES])
    parser.add_argument("--steps", type=int, default=0, help="0: each workload's own")
    parser.add_argument("--device", default="cpu", help="of the networks: cpu, cuda")
    parser.add_argument("--memory-steps", type=int, default=2_000_000, help="0: skip that series")
    return parser.parse_args()


def print_speed(console: Console, arguments: argparse.Namespace) -> Results:
    """Measure speeds, print their tables, and return the results."""
    results = Results()
    measurements = plan(
        arguments.workloads, arguments.only, arguments.threads, arguments.steps, arguments.device
    )
    rounds = measurements * arguments.repeats
    for measurement in track(rounds, "measuring", console=console, transient=True):
        results.take(measurement)
    if set(arguments.only) & set(TRAINING_SIDES):
        console.print(speed_table(results, arguments.workloads, arguments.threads))
    if set(arguments.only) & set(OUR_SIDES):
        console.print(split_table(results, arguments.workloads, arguments.threads))
        console.print(arithmetic_table(results, arguments.workloads, arguments.threads))
    if "collect" in arguments.only:
        console.print(collection_table(results, arguments.threads))
    return results


def print_memory(console: Console, arguments: argparse.Namespace) -> str | None:
    """Measure memory, print its table, and return what went wrong."""
    try:
        result = measure("memory", "--steps", str(arguments.memory_steps), threads=1)
    except MeasurementError as error:
        return str(error)
    console.print(memory_table(result))
    return None


def main() -> int:
    """Measure what was asked for, print tables, and return 1 when any measurement failed."""
    arguments = parse_arguments()
    console = Console(width=None if sys.stdout.isatty() else 140)
    failures = []
    if set(arguments.only) & set(SIDES):
        results = print_speed(console, arguments)
        failures += [f"{key}: {error}" for key, error in results.errors.items()]
    if "memory" in arguments.only:
        error = print_memory(console, arguments)
        failures += [f"memory: {error}"] if error else []
    for failure in failures:
        console.print(f"failed: {failure}", style="red", markup=False)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
