"""Losses on a recorded batch and the first two iterations of training, as they once were.

After a change of the mathematics that is meant: ``pytest tests/recipes/test_golden.py
--update-golden``, with the reason in the commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_training.optim import GradientStep
from tests.recipes.environments import RandomEnds
from tests.recipes.runs import ENVIRONMENTS, iterate, make

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
KINDS = ("discrete", "box")
BATCH_KEYS = (
    "observation",
    "action",
    "action_log_prob",
    "advantage",
    "value_target",
    "state_value",
)
SIZE = 12
CHANGES: dict[str, dict[str, Any]] = {
    "ppo": {},
    # The default epsilon lets Adam's first steps blow gradients up that are zero but for rounding.
    "ppg": {"auxiliary_learning_rate": 5e-3, "adam_epsilon": 1e-5},
    "recurrent_ppg": {"adam_epsilon": 1e-5},
}
"""What makes the first iterations worth recording, and the same on every machine."""
WHOLE_ITERATIONS = [
    ("dqn", "discrete"),
    ("sac", "discrete"),
    ("sac", "box"),
    ("td3", "box"),
    ("recurrent_ppo", "discrete"),
    ("recurrent_ppo", "box"),
    ("recurrent_ppg", "discrete"),
]
"""Their losses are held equal to another implementation's; what is kept are whole iterations."""


def build(name: str, kind: str) -> Any:
    """Return an algorithm with one small layer, whose parameters no random generator has drawn."""
    algorithm = make(
        name,
        lambda: RandomEnds(discrete=kind == "discrete"),
        hidden_sizes=[4],
        entropy_coefficient=0.01,
        max_gradient_norm=0.5,
    )
    with torch.no_grad():
        for index, parameter in enumerate(algorithm.model.parameters()):
            values = torch.arange(parameter.numel(), dtype=torch.float64)
            parameter.copy_((0.5 * (1.7 * values + index).sin()).reshape(parameter.shape))
    return algorithm


def record(kind: str) -> dict[str, Any]:
    """Return a batch to keep: of another policy, so that ratios differ from one."""
    (batch,), _ = iterate(make("ppo", lambda: RandomEnds(discrete=kind == "discrete")), 1)
    return {key: batch[key].flatten(0, 1)[:SIZE].tolist() for key in BATCH_KEYS}


def load(batch: dict[str, Any]) -> dict[str, Tensor]:
    tensors = {key: torch.tensor(value) for key, value in batch.items()}
    for key in ("advantage", "value_target", "state_value"):
        tensors[key] = tensors[key].squeeze(-1)
    return tensors


def stepped(step: GradientStep, batch: dict[str, Tensor]) -> dict[str, float]:
    """Return a gradient step's metrics and the size of what it did to the parameters."""
    before = step.optimizer.flat.clone()
    values = step(batch, torch.arange(SIZE)).tolist()
    metrics = dict(zip(step.metric_names, values, strict=True))
    moved = step.optimizer.flat - before
    weights = torch.linspace(0.0, 1.0, len(moved))
    return {**metrics, "moved": moved.norm().item(), "moved_weighted": (moved @ weights).item()}


def ppo_losses(algorithm: Any, batch: dict[str, Tensor]) -> dict[str, float]:
    return stepped(algorithm._step, batch)


def ppg_losses(algorithm: Any, batch: dict[str, Tensor]) -> dict[str, float]:
    for key in algorithm.auxiliary_loss.old_parameter_keys:
        width = algorithm.model.action_head.num_actions
        values = torch.arange(SIZE * width, dtype=torch.float32)
        batch[key] = (0.3 * (2.3 * values).cos()).reshape(SIZE, width)
    policy = stepped(algorithm._step, batch)
    auxiliary = stepped(algorithm._auxiliary_step, batch)
    return {**policy, **{f"aux/{key}": value for key, value in auxiliary.items()}}


LOSSES: dict[str, Callable[[Any, dict[str, Tensor]], dict[str, float]]] = {
    "ppo": ppo_losses,
    "ppg": ppg_losses,
}


def live(name: str, kind: str) -> list[dict[str, float]]:
    _, metrics = iterate(make(name, ENVIRONMENTS[kind], **CHANGES.get(name, {})), 2)
    return [
        {key: value.item() for key, value in each.items() if not key.startswith("time/")}
        for each in metrics
    ]


def golden(name: str, update: bool) -> dict[str, Any]:
    """Return what the file of an algorithm holds, written anew first when asked to."""
    path = GOLDEN / f"{name}.json"
    if update:
        kept = json.loads(path.read_text()) if path.exists() else {}
        content: dict[str, Any] = {}
        for kind in KINDS:
            if name not in LOSSES:
                content[kind] = (
                    {"live": live(name, kind)} if (name, kind) in WHOLE_ITERATIONS else {}
                )
                continue
            batch = kept.get(kind, {}).get("batch") or record(kind)
            losses = LOSSES[name](build(name, kind), load(batch))
            content[kind] = {"batch": batch, "losses": losses, "live": live(name, kind)}
        path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LOSSES)
def test_losses_on_the_recorded_batch_are_what_they_were(
    name: str, kind: str, update_golden: bool
) -> None:
    expected = golden(name, update_golden)[kind]
    found = LOSSES[name](build(name, kind), load(expected["batch"]))
    assert found == pytest.approx(expected["losses"], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "kind"), [*((name, kind) for name in LOSSES for kind in KINDS), *WHOLE_ITERATIONS]
)
def test_the_first_two_iterations_are_what_they_were(
    name: str, kind: str, update_golden: bool
) -> None:
    expected = golden(name, update_golden)[kind]["live"]
    found = live(name, kind)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        # A single sample at the edge is a step of 1 / 384.
        fractions = (each.pop("train/clip_fraction", 0.0) for each in (one, other))
        assert next(fractions) == pytest.approx(next(fractions), abs=0.01)
        # Divergences of 1e-4 are differences of numbers near one: rounding shows.
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)
