"""Steps per second of Stable-Baselines3 on a workload, in the steady state.

python -m tests.benchmarks.peers --workload ppo_cartpole --threads 1
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from typing import Any

from tests.benchmarks.process import Result, run_child
from tests.benchmarks.workloads import WORKLOADS, Workload

PEER_NAMES = {
    "learning_rate": "learning_rate",
    "minibatch_size": "batch_size",
    "discount": "gamma",
    "num_steps": "n_steps",
    "num_epochs": "n_epochs",
    "gae_lambda": "gae_lambda",
    "clip_epsilon": "clip_range",
    "value_coefficient": "vf_coef",
    "entropy_coefficient": "ent_coef",
    "max_gradient_norm": "max_grad_norm",
    "replay_capacity": "buffer_size",
    "warm_up": "learning_starts",
    "train_every": "train_freq",
    "target_update_interval": "target_update_interval",
    "exploration_fraction": "exploration_fraction",
    "exploration_final": "exploration_final_eps",
}
"""Names of this library's settings there; the others are translated in `peer_settings`."""


def linear(initial: float) -> Callable[[float], float]:
    """Return a schedule from ``initial`` to 0, of the share of the run that remains."""
    return lambda remaining: initial * remaining


def peer_settings(workload: Workload) -> dict[str, Any]:
    """Return the workload's settings as arguments of the peer's algorithm."""
    ours = dict(workload.settings)
    settings: dict[str, Any] = {}
    hidden_sizes, output_sizes = ours.pop("hidden_sizes", None), ours.pop("output_sizes", None)
    if "memory_size" in ours:
        sizes = {"lstm_hidden_size": ours.pop("memory_size"), "net_arch": output_sizes}
        settings["policy_kwargs"] = sizes
    elif hidden_sizes is not None:
        settings["policy_kwargs"] = {"net_arch": hidden_sizes}
    ratio = ours.pop("gradient_steps_per_step", 1.0)
    if not workload.on_policy:
        interval = ours.setdefault("train_every", 1)
        settings["gradient_steps"] = round(interval * ratio)
    settings |= {PEER_NAMES[name]: value for name, value in ours.items()}
    if workload.linear_schedules:
        for name in ("learning_rate", "clip_range"):
            settings[name] = linear(settings[name])
    return settings


def make_model(workload: Workload, device: str) -> Any:
    """Build the peer's model with the workload's settings."""
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

    importlib.import_module("rl_training.envs")  # registers the environments without velocities
    settings = peer_settings(workload)
    recurrent = workload.algorithm.startswith("Recurrent")
    package = importlib.import_module("sb3_contrib" if recurrent else "stable_baselines3")
    algorithm = getattr(package, workload.algorithm)
    env: Any
    if workload.atari:
        import ale_py
        import gymnasium

        gymnasium.register_envs(ale_py)
        env = VecFrameStack(make_atari_env(workload.env_id, workload.num_envs, seed=1), 4)
        return algorithm("CnnPolicy", env, **settings, device=device, seed=1)
    env = make_vec_env(workload.env_id, workload.num_envs, seed=1)
    if workload.normalize:
        env = VecNormalize(env, gamma=settings["gamma"])
    policy = "MlpLstmPolicy" if recurrent else "MlpPolicy"
    return algorithm(policy, env, **settings, device=device, seed=1)


def run(arguments: argparse.Namespace) -> Result:
    """Train to warm up, then time the workload's steps."""
    workload = WORKLOADS[arguments.workload]
    model = make_model(workload, arguments.device)
    model.learn(workload.warm_up_steps)
    first = model.num_timesteps
    wall, cpu = time.perf_counter(), time.process_time()
    model.learn(arguments.steps or workload.steps, reset_num_timesteps=False)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    steps = model.num_timesteps - first
    return {"steps": steps, "steps_per_second": steps / wall, "cpu_steps_per_second": steps / cpu}


def main() -> None:
    """Measure once and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", choices=sorted(WORKLOADS), required=True)
    parser.add_argument("--steps", type=int, default=0, help="0: the workload's own")
    parser.add_argument("--device", default="cpu", help="of the networks")
    run_child(run, parser)


if __name__ == "__main__":
    main()
