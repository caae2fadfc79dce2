"""What the benchmark measures, and the results of all repetitions."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.benchmarks.process import MeasurementError, Result, measure

TRAINING_SIDES = ("peer", "eager", "compiled", "bfloat16")
BFLOAT16_WORKLOADS = ("sac_pendulum", "td3_pendulum", "ppo_breakout", "dqn_breakout")
COLLECT_WORKLOAD = "ppo_cartpole"  # the bare loop is written for it
COLLECT_SIDES = ("bare vector", "bare list", "collect")


@dataclass(frozen=True)
class Measurement:
    """One side of a comparison: which module to run, with which arguments."""

    workload: str
    side: str
    threads: int
    module: str
    arguments: tuple[str, ...] = ()


@dataclass
class Results:
    """Every repetition of every measurement, and what went wrong."""

    values: dict[tuple[str, str, int], list[Result]] = field(
        default_factory=lambda: defaultdict(list)
    )
    errors: dict[tuple[str, str, int], str] = field(default_factory=dict)

    def take(self, measurement: Measurement) -> None:
        """Run a measurement in a fresh process and keep its result or its error."""
        key = (measurement.workload, measurement.side, measurement.threads)
        try:
            result = measure(
                measurement.module, *measurement.arguments, threads=measurement.threads
            )
        except MeasurementError as error:
            self.errors[key] = str(error)
        else:
            self.values[key].append(result)

    def numbers(self, workload: str, side: str, threads: int, name: str) -> list[float]:
        """Return one number of each repetition; empty when nothing was measured."""
        return [
            result[name]
            for result in self.values.get((workload, side, threads), [])
            if name in result
        ]

    def median(self, workload: str, side: str, threads: int, name: str) -> float:
        """Return the median over the repetitions, or NaN."""
        return statistics.median(self.numbers(workload, side, threads, name) or [float("nan")])


def plan(
    workloads: Sequence[str],
    sides: Iterable[str],
    threads: Sequence[int],
    steps: int,
    device: str = "cpu",
) -> list[Measurement]:
    """Return one repetition's measurements, ordered so that compared sides follow each other."""
    limit = ("--steps", str(steps)) if steps else ()
    chosen, sides = [], set(sides)
    for workload in workloads:
        arguments = ("--workload", workload, "--device", device, *limit)
        for count in threads:
            training = {
                "peer": Measurement(workload, "peer", count, "peers", arguments),
                "eager": Measurement(workload, "eager", count, "ours", arguments),
                "compiled": Measurement(
                    workload, "compiled", count, "ours", (*arguments, "--compile")
                ),
            }
            if workload in BFLOAT16_WORKLOADS:
                options = (*arguments, "--compile", "--bfloat16")
                training["bfloat16"] = Measurement(workload, "bfloat16", count, "ours", options)
            chosen += [training[side] for side in TRAINING_SIDES if side in sides & training.keys()]
    if "collect" in sides:
        chosen += [each for count in threads for each in _collection(count, limit)]
    return chosen


def _collection(threads: int, limit: tuple[str, ...]) -> list[Measurement]:
    workload = COLLECT_WORKLOAD
    ours = ("--workload", workload, "--collect-only", *limit)
    bare = [
        Measurement(
            workload, f"bare {kind}", threads, "bare_loop", ("--environments", kind, *limit)
        )
        for kind in ("vector", "list")
    ]
    return [*bare, Measurement(workload, "collect", threads, "ours", ours)]
