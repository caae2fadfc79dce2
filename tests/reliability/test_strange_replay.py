"""Off-policy checkpoints whose hashes are right and whose content is not: one line, no crash of the
process, and the run untouched.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training import UserError, resume_checkpoint, train
from rl_training.config import config_from_dict
from tests.reliability.runs import content
from tests.reliability.settings import FRAMES, setting
from tests.reliability.test_strange_checkpoints import MISSING, rewrite
from tests.reliability.test_strange_checkpoints import setting as put

NAMES = {
    "dqn": "dqn_cartpole_prioritized",
    "sac": "sac_pendulum_gsde",
    "td3": "td3_pendulum",
}
Place = tuple[Any, ...]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def source(name: str) -> Path:
        if name not in made:
            given = setting(
                NAMES[name],
                total_timesteps=4 * FRAMES,
                output_dir=str(tmp_path_factory.mktemp(name)),
                evaluation={"interval": None, "final": False},
            )
            made[name] = train(config_from_dict(given, source="test")).run_dir
        return made[name]

    return source


STRANGE: list[tuple[str, Place, Any]] = [
    ("dqn", (), None),
    ("dqn", ("gradient_steps",), -1),
    ("dqn", ("gradient_steps",), "x"),
    ("dqn", ("target_updates",), 1.5),
    ("dqn", ("target_updates",), MISSING),
    ("dqn", ("replay",), None),
    ("dqn", ("replay", "capacity"), 10**18),
    ("dqn", ("replay", "num_envs"), 0),
    ("dqn", ("replay", "written"), 0),
    ("dqn", ("replay", "written"), 10**18),
    ("dqn", ("replay", "written"), -1),
    ("dqn", ("replay", "rows"), {}),
    ("dqn", ("replay", "rows", "end"), None),
    ("dqn", ("replay", "ends"), MISSING),
    ("dqn", ("replay", "priorities"), None),
    ("dqn", ("replay", "priorities", "maximum"), math.nan),
    ("dqn", ("replay", "priorities", "maximum"), 0.0),
    ("dqn", ("replay", "priorities", "values"), torch.zeros(3)),  # once a crash of the process
    ("dqn", ("replay", "priorities", "values"), lambda values: values[:-1]),
    ("dqn", ("replay", "priorities", "values"), lambda values: -values),
    ("dqn", ("replay", "priorities", "values"), lambda values: values * math.nan),
    ("dqn", ("replay", "priorities", "values"), lambda values: values.double()),
    ("sac", ("matrix",), torch.zeros(3)),
    ("sac", ("matrix",), lambda matrix: matrix * math.nan),
    ("sac", ("matrix_age",), -1),
    ("sac", ("replay", "priorities"), {}),
    ("td3", ("noise", "value"), "x"),
    ("td3", ("noise", "value"), torch.zeros(3, 1)),
    ("td3", ("noise", "value"), lambda value: value / 0),
    ("td3", ("noise",), None),
]


def shown(part: Any) -> str:
    """Return a name that is the same in every process: a function shows its address."""
    return "changed" if callable(part) else str(part)[:50]


@pytest.mark.parametrize(("name", "place", "value"), STRANGE, ids=shown)
def test_strange_replay_is_one_line_and_changes_nothing(
    tmp_path: Path, sources: Callable[[str], Path], name: str, place: Place, value: Any
) -> None:
    run = shutil.copytree(sources(name), tmp_path / "run")
    inside = ("state", "training", "algorithm", "extra", *place)

    def change(parts: dict[str, Any]) -> None:
        new = value
        if callable(value):
            old: Any = parts
            for key in inside:
                old = old[key]
            new = value(old)
        put(inside, new)(parts)

    rewrite(run, change)
    before = content(run)
    with pytest.raises(UserError) as refused:
        resume_checkpoint(run, total_timesteps=5 * FRAMES)
    assert len(str(refused.value).splitlines()) == 1
    assert content(run) == before


@pytest.mark.parametrize("key", ["observation", "reward", "end"])
def test_rows_of_one_kind_that_end_elsewhere_are_refused(
    tmp_path: Path, sources: Callable[[str], Path], key: str
) -> None:
    run = shutil.copytree(sources("td3"), tmp_path / "run")

    def change(parts: dict[str, Any]) -> None:
        rows = parts["state"]["training"]["algorithm"]["extra"]["replay"]["rows"]
        other = "terminated" if key == "observation" else "observation"
        rows[key] = rows[other]

    rewrite(run, change)
    with pytest.raises(UserError, match=rf"{key} has rows|do not fit a ring"):
        resume_checkpoint(run, total_timesteps=5 * FRAMES)


def test_ends_without_their_observation_are_refused(
    tmp_path: Path, sources: Callable[[str], Path]
) -> None:
    run = shutil.copytree(sources("dqn"), tmp_path / "run")

    def change(parts: dict[str, Any]) -> None:
        replay = parts["state"]["training"]["algorithm"]["extra"]["replay"]
        ends = replay["ends"]
        assert ends.stop > 1
        object.__setattr__(ends, "stop", ends.stop - 1)
        object.__setattr__(ends, "sealed", ends.stop)

    rewrite(run, change)
    with pytest.raises(UserError, match="no terminal observation"):
        resume_checkpoint(run, total_timesteps=5 * FRAMES)
