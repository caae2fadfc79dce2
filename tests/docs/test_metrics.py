"""The tables of metrics name what runs log: all of it, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import (
    EventAccumulator,
)

from rl_training.registry import ALGORITHMS, algorithm_class
from tests.docs.pages import PAGES, named, rows, section

# Settings under which each algorithm logs everything it can; several where one excludes another.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "ppo": [{}],
    "ppg": [
        {"policy_iterations": 2, "auxiliary_minibatches": 4},
        {"policy_iterations": 2, "auxiliary_minibatches": 4, "value_epochs": 2},
    ],
}


def logged(algo: str, output: Path, changes: dict[str, Any]) -> set[str]:
    settings: dict[str, Any] = {
        "output_dir": str(output),
        "num_envs": 2,
        "num_steps": 32,
        "minibatch_size": 32,
        "evaluation.episodes": 1,
        **changes,
    }
    algorithm = algorithm_class(algo)("CartPole-v1", **settings)
    algorithm.learn(128).close()
    [run] = output.iterdir()
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return {*events.Tags()["scalars"], *(name for line in lines for name in json.loads(line))}


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_page_lists_what_is_logged(algo: str, tmp_path: Path) -> None:
    listed = [named(cells[0]) for cells in rows(section(f"docs/{algo}.md", "## Logged metrics"))]
    assert len(listed) == len(set(listed))
    emitted: set[str] = set()
    for number, changes in enumerate(SETTINGS[algo]):
        emitted |= logged(algo, tmp_path / str(number), changes)
    assert set(listed) == emitted


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_metric_is_explained(algo: str) -> None:
    assert f"docs/{algo}.md" in PAGES
    for cells in rows(section(f"docs/{algo}.md", "## Logged metrics")):
        assert len(cells) == 2 and cells[1]
