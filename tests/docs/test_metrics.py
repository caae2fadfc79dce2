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
_PHASES = {"num_steps": 32, "policy_iterations": 2, "auxiliary_minibatches": 4}
_REPLAY = {"warm_up": 32, "train_every": 32, "replay_capacity": 1000, "hidden_sizes": [8]}
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "ppo": [{"num_steps": 32}],
    "recurrent_ppg": [_PHASES, {**_PHASES, "value_epochs": 2}],
    "recurrent_ppo": [{"num_steps": 32}],
    "ppg": [_PHASES, {**_PHASES, "value_epochs": 2}],
    "dqn": [_REPLAY],
    "sac": [_REPLAY, {**_REPLAY, "entropy_coefficient": 0.1}],
    "td3": [_REPLAY],
}


def logged(algo: str, output: Path, changes: dict[str, Any]) -> set[str]:
    settings: dict[str, Any] = {
        "output_dir": str(output),
        "num_envs": 2,
        "minibatch_size": 32,
        "evaluation.episodes": 1,
        **changes,
    }
    environment = "CartPole-v1"
    if algo == "td3":  # Box actions alone; episodes that end within the few steps
        environment = "Pendulum-v1"
        settings["env_kwargs"] = {"max_episode_steps": 20}
    algorithm = algorithm_class(algo)(environment, **settings)
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
