"""Algorithms on images: they train, resume exactly and evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

from rl_training.data.phase_samples import samples_of
from rl_training.envs.video import VideoRequest
from rl_training.errors import UserError
from rl_training.evaluation import evaluate
from rl_training.models.cnn import ImpalaCNN, NatureCNN
from rl_training.recipes import ppg
from rl_training.registry import algorithm_class
from rl_training.runtime.state import digest

BREAKOUT = "BreakoutNoFrameskip-v4"
ON_POLICY: dict[str, Any] = {"num_steps": 16, "minibatch_size": 16}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {**ON_POLICY, "shared_trunk": True, "num_epochs": 1},
    "ppg": {
        **ON_POLICY,
        "policy_iterations": 3,
        "auxiliary_epochs": 2,
        "auxiliary_minibatches": 4,
    },
    "dqn": {
        "train_every": 16,
        "minibatch_size": 8,
        "warm_up": 32,
        "replay_capacity": 100,
        "gradient_steps_per_step": 0.125,
    },
}
SETTINGS["sac"] = {**SETTINGS["dqn"], "learning_rate": 1e-3}
OFF_POLICY = ("dqn", "sac")


def make(name: str, **changes: Any) -> Any:
    atari = {"enabled": True, "screen_size": 36}
    return algorithm_class(name)(
        BREAKOUT, num_envs=2, atari=atari, feature_size=16, **{**SETTINGS[name], **changes}
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_a_saved_run_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    """Far enough for lost lives, an auxiliary phase, and a replay buffer that has come round."""
    straight = make(name).learn(160).learn(32)
    stopped = make(name).learn(160)
    assert stopped.environment.state_dict()["episodes"].max() > 0, "no life was lost"
    stopped.save(tmp_path / "saved")
    resumed = type(stopped).load(tmp_path / "saved").learn(32)
    assert digest(resumed.state_dict()) == digest(straight.state_dict())


# PPG acts as PPO does.
@pytest.mark.parametrize("name", ["ppo", "dqn", "sac"])
def test_evaluation_plays_whole_games(name: str) -> None:
    agent = make(name)
    environment = agent.evaluation_environment(num_envs=1, seed=1)
    pipeline = environment.vector.envs[0].env.env
    assert not pipeline.training
    result = agent.evaluate(episodes=1, deterministic=False)
    assert result["episodes"] == 1 and result["lengths"][0] > 30
    observation = pipeline.observation_space.sample()
    assert agent.predict(observation)[0].shape == ()


def test_the_encoder_is_chosen_by_name_and_survives_saving(tmp_path: Path) -> None:
    agent = make("ppg", encoder="impala", orthogonal_init=False)
    assert isinstance(agent.model.encoder, ImpalaCNN)
    agent.save(tmp_path / "policy", policy_only=True)
    loaded = type(agent).load(tmp_path / "policy")
    assert isinstance(loaded.model.encoder, ImpalaCNN)
    assert loaded.model.encoder.output_size == 16
    assert isinstance(make("dqn").model.encoder, NatureCNN)


def test_observations_are_bytes_up_to_the_encoder() -> None:
    agent = make("ppg")
    batch = next(iter(agent.collector()))
    assert batch["observation"].dtype == torch.uint8
    assert batch["next", "observation"].dtype == torch.uint8
    assert agent.advantages(batch)["observation"].dtype == torch.uint8


@pytest.mark.parametrize(("name", "shared"), [("ppo", True), ("ppo", False), ("ppg", True)])
def test_images_are_encoded_once_while_collecting(name: str, shared: bool) -> None:
    agent = make(name, **({"shared_trunk": shared} if name == "ppo" else {}))
    counts: list[int] = []
    agent.model.encoder.register_forward_hook(lambda _, given, __: counts.append(len(given[0])))
    batch = next(iter(agent.collector()))
    assert sum(counts) == len(counts) * batch.shape[0] <= batch.numel()
    assert "features" not in batch.keys()  # noqa: SIM118  a TensorDict is no dict
    log_probability, _, value = agent.model.evaluate_actions(batch["observation"], batch["action"])
    torch.testing.assert_close(batch["action_log_prob"], log_probability)
    torch.testing.assert_close(batch["state_value"].squeeze(-1), value)


class Painting(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(0, 255, (40, 40, 3), np.uint8)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)


@pytest.mark.parametrize(
    ("name", "message"),
    [("sac", "sac takes with Box actions no images yet"), ("td3", "td3 takes no images yet")],
)
def test_with_box_actions_sac_and_td3_say_that_they_take_no_images(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        algorithm_class(name)(Painting, replay_capacity=1000)


def test_the_critics_of_discrete_sac_have_encoders_of_their_own() -> None:
    model = make("sac", encoder="impala").model
    encoders = [model.actor.encoder, *(critic.encoder for critic in model.critic.critics)]
    assert all(isinstance(each, ImpalaCNN) for each in encoders)
    weights = [each.dense.weight for each in encoders]
    assert not any(torch.equal(weights[0], other) for other in weights[1:])
    assert not torch.equal(weights[1], weights[2])
    with pytest.raises(UserError, match=r"of encoders it is model\.precision"):
        make("sac", **{"algorithm.precision": "bfloat16"})


def test_discrete_sac_learns_from_images(tmp_path: Path) -> None:
    """Critics, policy and alpha move, each by its own loss; targets follow the critics slowly."""
    agent = make("sac")
    before = {name: value.clone() for name, value in agent.model.state_dict().items()}
    target = agent.target.critics[0].head.weight.clone()
    agent.learn(160)
    assert agent.gradient_steps == 16
    after = agent.model.state_dict()
    still = [name for name, value in after.items() if torch.equal(value, before[name])]
    assert still == []
    moved = (agent.target.critics[0].head.weight - target).abs().max()
    assert 0 < moved < 16 * 0.005 * 1e-3 * 16


@pytest.mark.parametrize("name", OFF_POLICY)
def test_replay_keeps_every_frame_once(name: str) -> None:
    agent = make(name).learn(96)
    assert agent.replay.storage["observation"].shape[2:] == (1, 36, 36)
    sample = agent.replay.sample(8, torch.Generator())
    assert sample["observation"].shape == (8, 4, 36, 36)


def test_normalised_images_are_refused() -> None:
    with pytest.raises(UserError, match=r"without env\.normalize_observation"):
        make("ppo", normalize_observation=True)


def test_the_auxiliary_phase_keeps_every_frame_once_and_learns_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Against the same agent told nothing of stacks, which keeps them in full."""
    found = []
    for frames in (4, 1):
        agent = make("ppg", policy_iterations=2)
        if frames == 1:
            monkeypatch.setattr(ppg, "stacked_frames", lambda *_, **__: 1)
            agent._phase = agent._make_phase_data()
        collector = iter(agent.collector())
        observations = []
        for _ in range(4):  # two phases
            batch = next(collector)
            observations.append(batch["observation"].flatten(0, 1).clone())
            metrics = agent.update(batch)
            if len(agent._phase) == 1:
                data = agent._phase.joined()
                everything = torch.arange(len(observations[-1]))
                assert torch.equal(samples_of(data, everything)["observation"], observations[-1])
                held = data.get("frames", observations[-1]).numel()
                assert held == observations[-1].numel() * (19 / 64 if frames == 4 else 1)
        found.append((digest({"model": agent.model.state_dict()}), metrics["aux/value_loss"]))
    assert found[0] == found[1]


def test_frames_on_the_disk_are_learnt_from_alike() -> None:
    found = []
    for storage in ("ram", "disk"):
        latest = {"policy_iterations": 1, "auxiliary_iterations": 2, "auxiliary_epochs": 1}
        agent = make("ppg", auxiliary_storage=storage, **latest)
        collector = iter(agent.collector())
        for _ in range(3):  # the last over the place of the first
            agent.update(next(collector))
        assert agent._phase._rings["frames"].shape == (2, 2, 19, 1, 36, 36)
        found.append(digest({"model": agent.model.state_dict(), "extra": agent.extra_state()}))
    assert found[0] == found[1]


def test_a_video_shows_the_game_s_own_picture(tmp_path: Path) -> None:
    imageio = pytest.importorskip("imageio.v3")
    short = make("ppo", **{"evaluation.max_episode_steps": 40})
    evaluate(short, episodes=1, video=VideoRequest(tmp_path, 1))
    path = tmp_path / "episode_0001.mp4"
    assert imageio.imread(path, index=0).shape == (210, 160, 3)
    assert imageio.immeta(path)["fps"] == 15
