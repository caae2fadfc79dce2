"""The tables that the benchmark prints."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table

from tests.benchmarks.measurements import COLLECT_SIDES, COLLECT_WORKLOAD, Results
from tests.benchmarks.process import Result

SPEED = "steps_per_second"
MICROSECONDS = "microseconds_per_vector_step"
OUR_SIDES = ("eager", "compiled", "bfloat16")
PARTS = ("collect", "emulation", "inference", "advantages", "replay", "update")


def make_table(title: str, *columns: str) -> Table:
    """Return an empty table whose first column is text and whose others are numbers."""
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    return table


def with_range(numbers: Sequence[float], median: float) -> str:
    """Return ``median (lowest-highest)``."""
    if not numbers:
        return "-"
    return f"{median:,.0f} ({min(numbers):,.0f}-{max(numbers):,.0f})"


def ratio(numerator: float, denominator: float) -> str:
    """Return the quotient with two decimals, or a dash where one side is missing."""
    quotient = numerator / denominator
    return "-" if math.isnan(quotient) else f"{quotient:.2f}"


def speed_table(results: Results, workloads: Sequence[str], threads: Sequence[int]) -> Table:
    """Steps per second of each side; the last row per workload takes each side's best threads."""
    table = make_table(
        "Training, environment steps per second: median (lowest-highest)",
        *("workload", "threads", "SB3", *OUR_SIDES, *(f"{side}/SB3" for side in OUR_SIDES)),
    )
    sides = ("peer", *OUR_SIDES)
    for workload in workloads:
        best = dict.fromkeys(sides, float("nan"))
        for count in threads:
            medians = {side: results.median(workload, side, count, SPEED) for side in sides}
            best = {side: _larger(best[side], medians[side]) for side in sides}
            cells = [
                with_range(results.numbers(workload, side, count, SPEED), medians[side])
                for side in sides
            ]
            table.add_row(workload, str(count), *cells, *_ratios(medians))
        cells = ["-" if math.isnan(best[side]) else f"{best[side]:,.0f}" for side in sides]
        table.add_row(workload, "best of each", *cells, *_ratios(best), end_section=True)
    return table


def _ratios(speeds: dict[str, float]) -> list[str]:
    return [ratio(speeds[side], speeds["peer"]) for side in OUR_SIDES]


def _larger(first: float, second: float) -> float:
    return second if math.isnan(first) or second > first else first


def split_table(results: Results, workloads: Sequence[str], threads: Sequence[int]) -> Table:
    """Where this library's time goes, in microseconds per environment step."""
    table = make_table(
        "This library, microseconds per environment step (collect holds emulation and inference, "
        "which are told apart for images alone; update holds advantages and replay)",
        *("workload", "threads", "side", *PARTS),
    )
    for workload in workloads:
        for side in OUR_SIDES:
            for count in threads:
                steps = results.median(workload, side, count, "steps")
                if math.isnan(steps):
                    continue
                seconds = [
                    results.median(workload, side, count, f"{part}_seconds") for part in PARTS
                ]
                cells = [f"{1e6 * each / steps:,.1f}" for each in seconds]
                table.add_row(workload, str(count), side, *cells)
    return table


def arithmetic_table(results: Results, workloads: Sequence[str], threads: Sequence[int]) -> Table:
    """How close a gradient step comes to its matrix products alone, at this machine's rate."""
    table = make_table(
        "One gradient step, replay included, and its float32 matrix products alone",
        *("workload", "threads", "side", "GFLOP", "ms", "ms of products", "ratio"),
    )
    for workload in workloads:
        for side in OUR_SIDES:
            for count in threads:
                if not results.numbers(workload, side, count, "gradient_step_seconds"):
                    continue
                step, operations, alone = (
                    results.median(workload, side, count, name)
                    for name in ("gradient_step_seconds", "matrix_operations", "matrix_seconds")
                )
                cells = (f"{operations / 1e9:.3f}", f"{1e3 * step:.2f}", f"{1e3 * alone:.2f}")
                table.add_row(workload, str(count), side, *cells, ratio(step, alone))
    return table


def collection_table(results: Results, threads: Sequence[int]) -> Table:
    """Collection alone at 8 CartPoles against the bare loops."""
    table = make_table(
        "Collection alone, 8 CartPoles, microseconds per vector step: median (lowest-highest)",
        *("threads", "bare, SyncVectorEnv", "bare, list", "Collector", "/vector", "/list"),
    )
    for count in threads:
        medians, cells = [], []
        for side in COLLECT_SIDES:
            medians.append(results.median(COLLECT_WORKLOAD, side, count, MICROSECONDS))
            numbers = results.numbers(COLLECT_WORKLOAD, side, count, MICROSECONDS)
            cells.append(with_range(numbers, medians[-1]))
        ratios = [ratio(medians[2], medians[0]), ratio(medians[2], medians[1])]
        table.add_row(str(count), *cells, *ratios)
    return table


def memory_table(result: Result) -> Table:
    """Resident size along both series."""
    table = make_table("Resident memory, MiB", "series", "first", "last", "growth", "all")
    names = {"learn_calls": "sequential learn() calls", "steps": "one long training"}
    for key, name in names.items():
        sizes = result[key]
        if sizes:
            growth = sizes[-1] - sizes[0]
            listed = " ".join(f"{size:.0f}" for size in sizes)
            table.add_row(name, f"{sizes[0]:.1f}", f"{sizes[-1]:.1f}", f"{growth:+.1f}", listed)
    return table
