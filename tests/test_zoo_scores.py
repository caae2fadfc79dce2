"""Presets reach their goals: the learning checks, minutes each (`make test-slow`)."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

import pytest

from rl_training.config import load_config, replace_config
from rl_training.workflows import evaluate_checkpoint, train

# Preset, seeds, goal, and whether every seed must reach it or their mean.
GOALS = [
    ("ppo_cartpole", range(1, 6), 475.0, "every seed"),
    ("ppg_cartpole", range(1, 6), 475.0, "every seed"),
    ("ppo_pendulum", range(1, 4), -200.0, "mean"),
    ("ppo_acrobot", range(1, 4), -90.0, "mean"),
    ("ppo_mountaincarcontinuous", range(1, 4), 85.0, "mean"),
    ("ppo_lunarlander", range(1, 4), 220.0, "mean"),
    ("dqn_cartpole", range(1, 6), 475.0, "every seed"),
    ("dqn_lunarlander", range(1, 6), 100.0, "mean"),
    ("dqn_mountaincar", range(1, 4), -110.0, "every seed"),
    ("sac_pendulum", range(1, 6), -180.0, "mean"),
    ("sac_mountaincarcontinuous", range(1, 6), 90.0, "mean"),
    ("td3_pendulum", range(1, 6), -180.0, "mean"),
    ("td3_mountaincarcontinuous", range(1, 4), 90.0, "mean"),
    ("recurrent_ppo_cartpole_novel", range(1, 6), 475.0, "every seed"),
    ("recurrent_ppo_pendulum_novel", range(1, 6), -250.0, "mean"),
    ("recurrent_ppo_mountaincarcontinuous_novel", range(1, 4), 85.0, "mean"),
    ("recurrent_ppg_cartpole_novel", range(1, 6), 475.0, "every seed"),
    ("recurrent_ppo_repeat_previous", range(1, 6), 0.9, "every seed"),
    ("recurrent_ppo_tmaze", range(1, 6), 0.95, "every seed"),
    # The shortest ways there, found by search, are worth 0.969 on average.
    ("ppo_minigrid_empty", range(1, 4), 0.95, "every seed"),
    ("ppg_minigrid_empty", range(1, 4), 0.95, "every seed"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "seeds", "goal", "over"), GOALS, ids=lambda value: str(value))
def test_the_preset_reaches_its_goal(
    preset: str, seeds: range, goal: float, over: str, tmp_path: Path
) -> None:
    scores = []
    for seed in seeds:
        config = replace_config(load_config(preset), seed=seed, output_dir=os.fspath(tmp_path))
        result = train(config)
        scores.append(evaluate_checkpoint(result.run_dir, episodes=100)["return_mean"])
    reached = min(scores) if over == "every seed" else statistics.mean(scores)
    assert reached >= goal, scores


@pytest.mark.slow
def test_a_tenth_of_the_budget_makes_the_cheetah_run(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    config = replace_config(
        load_config("mujoco/sac_halfcheetah"), total_timesteps=100_000, output_dir=str(tmp_path)
    )
    result = train(config)
    assert evaluate_checkpoint(result.run_dir, episodes=100)["return_mean"] > 3000


@pytest.mark.slow
def test_ppo_without_memory_does_not_balance_what_it_cannot_see_moving() -> None:
    from rl_training import PPO

    config = replace_config(load_config("ppo_cartpole"), env_id="CartPoleNoVel-v1")
    agent = PPO.from_config(config).learn()
    assert agent.evaluate(episodes=100)["return_mean"] < 60
