"""The measuring frame compares like with like."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

from tests.benchmarks import bare_loop, masks, measurements, tables
from tests.benchmarks.measurements import Results, plan
from tests.benchmarks.process import MeasurementError, Result, measure


def test_compared_sides_follow_each_other_in_every_repetition() -> None:
    sides = ["peer", "eager", "compiled", "collect"]
    order = [(each.workload, each.side, each.threads) for each in plan(["a"], sides, [1, 2], 0)]
    training = [("a", side, threads) for threads in (1, 2) for side in sides[:3]]
    collection = [
        ("ppo_cartpole", side, threads)
        for threads in (1, 2)
        for side in ("bare vector", "bare list", "collect")
    ]
    assert order == training + collection


def test_both_bare_loops_play_the_same_episodes() -> None:
    rollouts = []
    for environments in (bare_loop.VectorEnvironments(), bare_loop.ListEnvironments()):
        policy, rollout = bare_loop.make_policy(), bare_loop.Rollout()
        torch.manual_seed(0)
        for _ in range(2):
            bare_loop.collect(environments, policy, rollout)
        rollouts.append(rollout)
    assert rollouts[0].terminated.any()
    for name, first in vars(rollouts[0]).items():
        assert torch.equal(first, getattr(rollouts[1], name)), name


def test_ratio_takes_the_best_thread_count_of_each_side(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {("peers", 1): 100.0, ("peers", 2): 200.0, ("ours", 1): 500.0, ("ours", 2): 300.0}

    def pretend(module: str, *arguments: str, threads: int) -> Result:
        if "--compile" in arguments:
            raise MeasurementError("no compiler")
        return {"steps_per_second": speeds[module, threads]}

    monkeypatch.setattr(measurements, "measure", pretend)
    results = Results()
    for measurement in plan(["ppo_pendulum"], ["peer", "eager", "compiled"], [1, 2], 0):
        results.take(measurement)
    console = Console(width=160, file=io.StringIO())
    console.print(tables.speed_table(results, ["ppo_pendulum"], [1, 2]))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    (best,) = [line for line in lines if "best of each" in line]
    cells = [cell.strip() for cell in best.strip("│ ").split("│")]
    assert cells == ["ppo_pendulum", "best of each", "200", "500", "-", "-", "2.50", "-", "-"]
    assert set(results.errors.values()) == {"no compiler"}


def test_a_failed_process_is_named_by_its_last_line() -> None:
    with pytest.raises(MeasurementError, match=r"No module named tests\.benchmarks\.nothing"):
        measure("nothing", threads=1)


def test_the_cost_of_masks_is_a_ratio_of_both_parts() -> None:
    ratios = masks.compare("dqn", several=False, rounds=1, iterations=1)
    assert set(ratios) == {"collect", "update", "whole"}
    assert all(0.1 < ratio < 10 for ratio in ratios.values())
