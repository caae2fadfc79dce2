"""Checkpoints whose hashes are right and whose content is not: one line, and the run untouched."""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training import PPO, UserError, replace_config, resume_checkpoint, train
from rl_training.config import config_from_dict
from rl_training.runtime.checkpoint import load_checkpoint, load_policy, save_alone
from rl_training.workflows import evaluate_checkpoint
from tests.api.runs import SMALL
from tests.reliability.runs import content

Place = tuple[Any, ...]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("strange")
    data = {"algo": "ppo", "env_id": "CartPole-v1", "output_dir": str(output)}
    changes = {"normalize_observation": True, "episodes": 2, "tensorboard": False}
    config = replace_config(config_from_dict(data, source="test"), **SMALL, **changes)
    return train(replace_config(config, total_timesteps=128)).run_dir


@pytest.fixture
def run(source: Path, tmp_path: Path) -> Path:
    return shutil.copytree(source, tmp_path / "run")


def rewrite(
    run: Path, change: Callable[[dict[str, Any]], None], *, step: int | None = None
) -> Path:
    """Change the parts of the latest checkpoint, and sign it as if it were ours."""
    path = run / "checkpoints" / (run / "checkpoints" / "latest").read_text().strip()
    loaded, policy = load_checkpoint(path), load_policy(path)
    parts = {"state": loaded.state, "policy": policy.state, "config": loaded.config}
    parts = copy.deepcopy(parts)
    change(parts)
    save_alone(path, step=loaded.manifest["step"] if step is None else step, **parts)
    return path


def setting(place: Place, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(parts: dict[str, Any]) -> None:
        inside: Any = parts
        for key in place[:-1]:
            inside = inside[key]
        if value is MISSING:
            del inside[place[-1]]
        else:
            inside[place[-1]] = value

    return change


MISSING = "nothing at all"
TRAINING = ("state", "training", "algorithm")
COUNTERS = (*TRAINING, "counters")
STRANGE: list[tuple[Place, Any]] = [
    (("state",), None),
    (("state",), []),
    (("state",), {}),
    (("state", "training"), None),
    (("state", "callbacks"), None),
    (("state", "callbacks"), [1]),
    (("state", "callbacks", 0, "state"), {}),
    (("state", "callbacks", 0, "state", "interval"), {"last_step": "x"}),
    (("state", "rng"), {}),
    (("state", "rng", "torch"), torch.zeros(3)),
    (("state", "rng", "python", "words"), [1, 2]),
    (("state", "evaluation"), None),
    (("state", "evaluation", "step"), "x"),
    (("state", "evaluation", "record"), {"return_mean": 1.0}),
    (("state", "last_logged"), -5),
    (("state", "stopped"), 3),
    (("state", "run"), 5),
    (("state", "run", "evaluations", "offset"), -7),
    (("state", "run", "loggers", "metrics", "offset"), -7),
    (("state", "run", "loggers", "metrics", "offset"), "x"),
    (("state", "run", "wall_time_s"), math.nan),
    (("state", "training", "episodes"), {"returns": 1}),
    (("state", "training", "episodes", "returns", 0), [1]),
    (("state", "training", "episodes", "lengths", 0), "x"),
    (("state", "training", "episodes", "lengths"), []),
    (("state", "training", "episodes", "count"), None),
    (TRAINING, MISSING),
    (COUNTERS, None),
    ((*COUNTERS, "global_step"), "128"),
    ((*COUNTERS, "global_step"), 0),
    ((*COUNTERS, "updates"), -1),
    ((*COUNTERS, "schedule_horizon"), "x"),
    ((*TRAINING, "modules"), None),
    ((*TRAINING, "modules", "model"), {}),
    ((*TRAINING, "modules", "model"), [1]),
    ((*TRAINING, "optimizers"), {}),
    ((*TRAINING, "optimizers"), None),
    ((*TRAINING, "generators", "rollout"), torch.zeros(3)),
    ((*TRAINING, "generators", "rollout"), None),
    ((*TRAINING, "normalizer"), None),
    ((*TRAINING, "normalizer", "observation", "mean"), "x"),
    ((*TRAINING, "environment"), None),
    ((*TRAINING, "environment"), {}),
    ((*TRAINING, "environment", "root"), None),
    ((*TRAINING, "environment", "root", "observation"), 1),
    ((*TRAINING, "environment", "root", "is_init"), torch.zeros(2, 2)),
    (("config",), {}),
    (("policy",), None),
]


@pytest.mark.parametrize(("place", "value"), STRANGE, ids=lambda each: str(each)[:60])
def test_a_strange_checkpoint_is_one_line_and_changes_nothing(
    run: Path, place: Place, value: Any
) -> None:
    rewrite(run, setting(place, value))
    before = content(run)
    with pytest.raises(UserError) as refused:
        resume_checkpoint(run, total_timesteps=256)
    assert len(str(refused.value).splitlines()) == 1
    assert content(run) == before


def test_an_optimiser_s_tensors_are_not_broadcast(run: Path) -> None:
    def change(parts: dict[str, Any]) -> None:
        [optimizer] = parts["state"]["training"]["algorithm"]["optimizers"].values()
        optimizer["first_moment"] = torch.zeros(())

    rewrite(run, change)
    with pytest.raises(UserError, match="first_moment has shape"):
        resume_checkpoint(run, total_timesteps=256)


POLICY: list[tuple[Place, Any]] = [
    (("policy",), []),
    (("policy", "modules"), None),
    (("policy", "modules", "model"), {}),
    (("policy", "normalizer"), 3),
    (("policy", "observation_space"), None),
    (("policy", "action_space"), {"type": "Discrete"}),
    (("policy", "global_step"), "x"),
    (("config",), {"algo": 3}),
]


@pytest.mark.parametrize(("place", "value"), POLICY, ids=lambda each: str(each)[:60])
def test_a_strange_policy_is_one_line(run: Path, place: Place, value: Any) -> None:
    path = rewrite(run, setting(place, value))
    for act in (lambda: evaluate_checkpoint(run), lambda: PPO.load(path)):
        with pytest.raises(UserError) as refused:
            act()
        assert len(str(refused.value).splitlines()) == 1


def test_a_policy_of_nan_is_said(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    def change(parts: dict[str, Any]) -> None:
        for each in parts["policy"]["modules"]["model"].values():
            each.fill_(math.nan)

    rewrite(run, change)
    PPO.load(run / "checkpoints").evaluate(1)
    assert "not all finite" in caplog.text
