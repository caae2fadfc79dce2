"""Every iteration's end is a place to go on from: in one process, over the registry."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.config import config_from_dict
from rl_training.registry import algorithm_class, algorithm_names
from rl_training.runtime.callbacks import Callback, TrainContext
from rl_training.runtime.checkpoint import digest
from rl_training.workflows import resume_checkpoint, train
from tests.reliability.runs import assert_same_training, checkpoints
from tests.reliability.settings import NUM_ENVS, SETTINGS, setting

ITERATIONS = 5
NUM_STEPS = 8
FRAMES = NUM_ENVS * NUM_STEPS
# With 2 iterations to a policy phase, boundaries are in the middle, before and after an auxiliary
# phase, each more than once.
SHORT_CYCLE = {"policy_iterations": 2, "auxiliary_epochs": 1, "auxiliary_minibatches": 4}
# The second iteration is the first to learn, and the fourth to overwrite what is oldest.
SHORT_REPLAY = {"train_every": FRAMES, "warm_up": 50, "replay_capacity": 100}


def short(name: str, **changes: Any) -> dict[str, Any]:
    content = setting(name, total_timesteps=ITERATIONS * FRAMES, **changes)
    if content["algo"] in ("dqn", "sac", "td3"):
        content["algorithm"].update(SHORT_REPLAY)
    else:
        content["algorithm"].update(num_steps=NUM_STEPS, minibatch_size=FRAMES // 2)
    if "sequence_length" in content["algorithm"]:
        content["algorithm"]["sequence_length"] = NUM_STEPS // 2
    if content["algo"] in ("ppg", "recurrent_ppg"):
        content["algorithm"].update(SHORT_CYCLE)
    return content


NAMES = [name for name in SETTINGS if not name.endswith(("lunarlander", "async", "compiled"))]


def test_the_settings_cover_every_algorithm() -> None:
    assert {setting(name)["algo"] for name in NAMES} == set(algorithm_names())


@pytest.mark.parametrize("name", NAMES)
def test_a_run_resumed_from_any_checkpoint_ends_the_same(tmp_path: Path, name: str) -> None:
    content = short(
        name,
        output_dir=str(tmp_path / "runs"),
        checkpoint={"interval": FRAMES, "keep_last": ITERATIONS},
        # Of a pendulum's 200 steps the first tell two policies apart as well.
        evaluation={"interval": 2 * FRAMES, "max_episode_steps": 25},
    )
    whole = train(config_from_dict(content, source=name))
    saved = checkpoints(whole.run_dir)
    assert len(saved) == ITERATIONS
    for checkpoint in saved[:-1]:
        copy = tmp_path / "copies" / checkpoint.name
        shutil.copytree(whole.run_dir, copy)
        again = resume_checkpoint(copy / "checkpoints" / checkpoint.name)
        assert again.digest == whole.digest, f"resumed from {checkpoint.name}"
        assert_same_training(copy, whole.run_dir)


@pytest.mark.parametrize("name", NAMES)
def test_a_loaded_algorithm_learns_on_as_the_saved_one(tmp_path: Path, name: str) -> None:
    config = config_from_dict(short(name), source=name)
    cls = algorithm_class(config.algo)
    algorithm = cls.from_config(config)
    digests = []
    for number, batch in enumerate(algorithm.collector()):
        if number == ITERATIONS:
            break
        algorithm.update(batch)
        digests.append(digest(algorithm.state_dict()))
        algorithm.save(tmp_path / str(number))
    assert len(set(digests)) == ITERATIONS
    for number in range(ITERATIONS - 1):
        loaded = cls.load(tmp_path / str(number))
        assert digest(loaded.state_dict()) == digests[number]
        for later, batch in enumerate(loaded.collector(), start=number + 1):
            loaded.update(batch)
            assert digest(loaded.state_dict()) == digests[later], f"{later} from {number}"
            if later == ITERATIONS - 1:
                break


class Draws(Callback):
    """Notes what the process-wide generator gives, as a user's own code might use it."""

    def __init__(self) -> None:
        self.drawn: list[float] = []

    def on_iteration(self, context: TrainContext, metrics: Mapping[str, float]) -> None:
        self.drawn.append(torch.rand(1).item())


def test_the_process_wide_generators_go_on_where_they_were(tmp_path: Path) -> None:
    content = short(
        "ppo_pendulum_gsde_normalized",
        output_dir=str(tmp_path / "runs"),
        checkpoint={"interval": FRAMES, "keep_last": ITERATIONS},
    )
    whole, part = Draws(), Draws()
    result = train(config_from_dict(content, source="test"), callbacks=[whole])
    torch.rand(7)
    resume_checkpoint(checkpoints(result.run_dir)[2], callbacks=[part])
    assert part.drawn == whole.drawn[3:]
