"""Training, evaluating, saving and resuming on another device than the CPU, which is pretended: it
computes as the CPU does, so that every number has to be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training import (
    TrainConfig,
    UserError,
    load_config,
    replace_config,
    resume_checkpoint,
    train,
)
from rl_training.registry import ALGORITHMS
from rl_training.runtime import devices
from rl_training.runtime.checkpoint import load_checkpoint
from rl_training.runtime.state import digest
from rl_training.workflows import evaluate_checkpoint, load_algorithm
from tests.api.runs import SMALL
from tests.pretended_device import PretendedDevice
from tests.recipes.environments import Identity, Tracking
from tests.recipes.image_environments import Catch
from tests.recipes.masked_environments import Masked
from tests.recipes.runs import CELL
from tests.recipes.runs import make as make_small
from tests.recipes.spaces import ACTIONS, Anything

STEPS = 64
"""Four iterations: with two each before and after a resume, every algorithm learns in both."""

_SEEN = spaces.Box(-1.0, 1.0, (3,), np.float32)
_RAINBOW: dict[str, Any] = {"rainbow": True, "num_atoms": 11}
_MASKS: dict[str, Any] = {"action_masks": "info"}
_NORMALIZED: dict[str, Any] = {"normalize_observation": True, "normalize_reward": True}
CASES: dict[str, tuple[str, Callable[[], Any], dict[str, Any]]] = {
    "ppo": ("ppo", Identity, {"target_kl": 0.5, "value_clip_epsilon": 0.2}),
    "ppo squash": ("ppo", Tracking, {"squash": True, **_NORMALIZED}),
    "ppo gsde": ("ppo", Tracking, {"gsde": True, "gsde_resample_interval": 5}),
    "ppo MultiDiscrete": ("ppo", partial(Anything, _SEEN, ACTIONS["MultiDiscrete"]), {}),
    "ppo Dict": ("ppo", partial(Anything, _SEEN, ACTIONS["Dict"]), {}),
    "ppo masks": ("ppo", partial(Masked, "info", "MultiDiscrete"), _MASKS),
    "ppo nature": ("ppo", partial(Catch, 36), {"shared_trunk": True}),
    "ppg": ("ppg", Identity, {"auxiliary_accumulation": 2}),
    "ppg box": ("ppg", Tracking, {"value_epochs": 2, "auxiliary_iterations": 2}),
    "ppg disk": ("ppg", Identity, {"auxiliary_storage": "disk", "architecture": "detach"}),
    "ppg nature": ("ppg", partial(Catch, 36), {"architecture": "shared"}),
    "recurrent_ppo": ("recurrent_ppo", Identity, {"refresh_state": True, "memory": "gru"}),
    "recurrent_ppo box": (
        "recurrent_ppo",
        Tracking,
        {"burn_in": 2, "previous_action": True, "previous_reward": True, "minibatch_size": 12},
    ),
    "recurrent_ppo masks": (
        "recurrent_ppo",
        partial(Masked, "info"),
        {**_MASKS, "previous_action": True, "critic_memory": "none"},
    ),
    "recurrent_ppg": ("recurrent_ppg", Identity, {}),
    "dqn": ("dqn", Identity, {"tau": 0.1}),
    "dqn rainbow": ("dqn", Identity, _RAINBOW),
    "dqn masks": ("dqn", partial(Masked, "info"), {**_MASKS, **_RAINBOW}),
    "dqn nature": ("dqn", partial(Catch, 36), {}),
    "sac": ("sac", Tracking, {}),
    "sac gsde": ("sac", Tracking, {"gsde": True}),
    "sac discrete": ("sac", Identity, {}),
    "td3": ("td3", Tracking, {"exploration_noise": "ornstein_uhlenbeck"}),
}

OTHER_SUMS = ("sac", "td3")
"""Their critics add up in another order on a CPU: the last bits are other ones."""

every_case = pytest.mark.parametrize("case", CASES)
every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedDevice]:
    monkeypatch.setattr(devices, "_require_cuda", lambda device: None)
    with PretendedDevice() as device:
        yield device


def make(case: str, device: str) -> Any:
    name, env, options = CASES[case]
    algorithm = make_small(name, env, **{**CELL[name], **options}, device=device)
    algorithm.schedule_horizon = STEPS  # of a half, the whole one's
    return algorithm


def resumed(algorithm: Any, directory: Path, another: Any) -> Any:
    """Return ``another`` as ``algorithm`` is, by way of a checkpoint: an environment given in
    Python would begin anew in `load`.
    """
    loaded = load_checkpoint(algorithm.save(directory / "half"))
    another.load_state_dict(loaded.state["training"]["algorithm"])
    return another


def whole_and_resumed(case: str, directory: Path, *, on: str) -> tuple[Any, Any]:
    """Return one run on the CPU, and one whose first half is on the device and second half ``on``
    another or the same.
    """
    first = make(case, "cuda").learn(STEPS // 2)
    second = resumed(first, directory, make(case, on)).learn(STEPS // 2)
    return make(case, "cpu").learn(STEPS), second


def answers(algorithm: Any) -> dict[str, Any]:
    """Return what a trained policy does in an evaluation, and to observations of its own."""
    played = algorithm.evaluate(episodes=2, deterministic=False, seed=3)
    env: gymnasium.Env[Any, Any] = algorithm._source()
    observation, info = env.reset(seed=1)
    masks = info["action_mask"] if algorithm.config.env.action_masks == "info" else None
    taken = [
        algorithm.predict(observation, action_masks=masks, deterministic=greedy)[0]
        for greedy in (True, False)
    ]
    return {"returns": played["returns"], "taken": str(taken)}


def require_equal(there: Any, here: Any) -> None:
    if here.name not in OTHER_SUMS:
        assert digest(there.state_dict()) == digest(here.state_dict())
        return
    for name, module in here.modules.items():
        other = {key: each.cpu() for key, each in there.modules[name].state_dict().items()}
        torch.testing.assert_close(other, dict(module.state_dict()), rtol=1e-4, atol=1e-5)


def test_every_algorithm_has_a_case() -> None:
    assert {name for name, _, _ in CASES.values()} == set(ALGORITHMS)


@every_case
def test_a_run_on_a_device_that_is_resumed_there_equals_one_on_the_cpu(
    case: str, pretended: PretendedDevice, tmp_path: Path
) -> None:
    here, there = whole_and_resumed(case, tmp_path, on="cuda")
    networks = there.modules["model"].parameters()
    assert all(pretended.holds(each) for each in networks), "it has to learn on the device"
    require_equal(there, here)
    if there.name in OTHER_SUMS:
        here = make(case, "cuda").learn(STEPS)
        assert digest(there.state_dict()) == digest(here.state_dict())
    assert answers(there) == answers(here)


@every_algorithm
def test_a_run_goes_on_where_there_is_no_device(
    name: str, pretended: PretendedDevice, tmp_path: Path
) -> None:
    here, moved = whole_and_resumed(name, tmp_path, on="cpu")
    assert not any(pretended.holds(each) for each in moved.modules["model"].parameters())
    require_equal(moved, here)


def test_a_run_is_moved_to_another_device_for_good(
    pretended: PretendedDevice, tmp_path: Path
) -> None:
    config = TrainConfig(algo="ppo", env_id="CartPole-v1", output_dir=str(tmp_path))
    quiet: dict[str, Any] = {"tensorboard": False, "checkpoint": {"interval": 64}}
    there = train(replace_config(config, **SMALL, **quiet, device="cuda", total_timesteps=192))
    first = sorted(there.run_dir.glob("checkpoints/step_*"))[0]
    here = resume_checkpoint(first, device="cpu")
    assert here.digest == there.digest
    assert load_config(here.run_dir / "config.yaml").device == "cpu"
    assert load_algorithm(here.run_dir)[0].config.device == "cpu"


def test_a_run_whose_device_is_missing_says_which_to_take(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = TrainConfig(algo="ppo", env_id="CartPole-v1", output_dir=str(tmp_path))
    run = train(replace_config(config, **SMALL, total_timesteps=64)).run_dir
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"no CUDA device here\. Use 'cpu'"):
        resume_checkpoint(run, total_timesteps=128, device="cuda")
    assert resume_checkpoint(run, total_timesteps=128).metrics["global_step"] == 128


@every_algorithm
def test_the_batch_is_on_the_cpu_and_collected_by_the_very_parameters_that_learn(
    name: str, pretended: PretendedDevice
) -> None:
    algorithm = make(name, "cuda")
    collector = algorithm.collector()
    assert collector.policy is algorithm.rollout_policy
    batches = iter(collector)
    for _ in range(3):
        batch = next(batches)
        tensors = batch.flatten_keys(".").values()
        assert not any(pretended.holds(each) for each in tensors)
        algorithm.update(batch)
    if not name.startswith(("ppo", "ppg")):
        return
    # With parameters that all but choose one action, it is the one that is collected.
    with torch.no_grad():
        algorithm.model.action_head.layer.bias.copy_(torch.tensor([0.0, 0.0, 1e6, 0.0]))
    assert bool((next(batches)["action"] == 2).all())


@pytest.mark.parametrize("name", ["ppo", "recurrent_ppo", "dqn"])
def test_a_policy_plays_where_there_is_no_such_device(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with PretendedDevice() as device, monkeypatch.context() as patch:
        patch.setattr(devices, "_require_cuda", lambda device: None)
        trained = make(name, "cuda").learn(STEPS // 2)
        saved = trained.save(tmp_path / "saved")
        expected = answers(trained)["returns"]
        assert any(device.holds(each) for each in trained.modules["model"].parameters())
    env = CASES[name][1]
    record = evaluate_checkpoint(saved, env=env, episodes=2, deterministic=False, seed=3)
    assert record["returns"] == expected
    chosen, _ = load_algorithm(saved, env=env, device="cpu")
    assert chosen.device == torch.device("cpu") and chosen.config.device == "cuda"
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="no CUDA device"):
            load_algorithm(saved, env=env, device="cuda")
