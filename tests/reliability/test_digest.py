"""The digest depends on config and seed alone, not on what happens beside training."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_training import evaluation
from rl_training.config import config_from_dict
from rl_training.envs.video import VideoRequest
from rl_training.runtime.callbacks import Callback, TrainContext
from rl_training.workflows import TrainResult, train
from tests.reliability.settings import FRAMES, setting

NAME = "ppg_cartpole_normalized"


def trained(directory: Path, *, name: str = NAME, **changes: Any) -> TrainResult:
    content = setting(name, output_dir=str(directory / "runs"), total_timesteps=6 * FRAMES)
    progress = changes.pop("progress", False)
    callbacks = changes.pop("callbacks", ())
    content.update(changes)
    config = config_from_dict(content, source=name)
    return train(config, progress=progress, callbacks=callbacks)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainResult]:
    yield trained(tmp_path_factory.mktemp("plain"))


def test_the_same_config_and_seed_give_the_same_digest(tmp_path: Path, plain: TrainResult) -> None:
    assert trained(tmp_path).digest == plain.digest


def test_another_seed_gives_another_digest(tmp_path: Path, plain: TrainResult) -> None:
    assert trained(tmp_path, seed=4).digest != plain.digest


def test_sync_and_async_give_the_same_digest(tmp_path: Path, plain: TrainResult) -> None:
    normalized = {"normalize_observation": True, "normalize_reward": True}
    environments = {"vectorization": "async", **normalized}
    assert trained(tmp_path, env=environments).digest == plain.digest


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluation": {"final": False}},
        {"evaluation": {"interval": 2 * FRAMES, "episodes": 3}},
        {"evaluation": {"interval": FRAMES, "deterministic": False, "seed": 5}},
        {"checkpoint": {"interval": None}},
        {"checkpoint": {"interval": FRAMES, "keep_last": 1, "keep_best": False}},
        {"tracking": {"tensorboard": True}},
        {"tracking": {"tensorboard": False, "log_interval": 10_000}},
        {"progress": True},
        {"tags": ["a", "b"]},
    ],
    ids=str,
)
def test_what_happens_beside_training_leaves_the_digest(
    tmp_path: Path, plain: TrainResult, changes: dict[str, Any]
) -> None:
    assert trained(tmp_path, **changes).digest == plain.digest


class Films(Callback):
    """Records the policy in the middle of training."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def on_iteration(self, context: TrainContext, metrics: Any) -> None:
        if context.global_step == 3 * FRAMES:
            request = VideoRequest(self._directory, 1)
            evaluation.evaluate(context.algorithm, episodes=1, video=request)


def test_a_video_leaves_the_digest(tmp_path: Path, plain: TrainResult) -> None:
    for package in ("imageio", "imageio_ffmpeg", "pygame"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}, of the video extra")
    result = trained(tmp_path, callbacks=[Films(tmp_path / "videos")])
    assert list((tmp_path / "videos").glob("*.mp4"))
    assert result.digest == plain.digest
