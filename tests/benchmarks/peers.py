"""Steps per second of Stable-Baselines3's PPO on a workload, in the steady state.

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


def linear(initial: float) -> Callable[[float], float]:
    """Return a schedule from ``initial`` to 0, of the share of the run that remains."""
    return lambda remaining: initial * remaining


def make_model(workload: Workload) -> Any:
    """Build the peer's model with the workload's settings and its default 64-64 tanh networks, or
    sb3-contrib's recurrent one.
    """
    from sb3_contrib import RecurrentPPO
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    importlib.import_module("rl_training.envs")  # registers the environments without velocities
    env: Any = make_vec_env(workload.env_id, workload.num_envs, seed=1)
    if workload.normalize:
        env = VecNormalize(env, gamma=workload.discount)
    schedule = linear if workload.linear_schedules else float
    recurrent = workload.memory_size is not None
    policy: dict[str, Any] = {"lstm_hidden_size": workload.memory_size, "net_arch": [64]}
    return (RecurrentPPO if recurrent else PPO)(
        "MlpLstmPolicy" if recurrent else "MlpPolicy",
        env,
        n_steps=workload.num_steps,
        batch_size=workload.minibatch_size,
        n_epochs=workload.num_epochs,
        learning_rate=schedule(workload.learning_rate),
        clip_range=schedule(workload.clip_epsilon),
        gamma=workload.discount,
        gae_lambda=workload.gae_lambda,
        ent_coef=workload.entropy_coefficient,
        vf_coef=workload.value_coefficient,
        max_grad_norm=workload.max_gradient_norm,
        policy_kwargs=policy if recurrent else None,
        device="cpu",
        seed=1,
    )


def run(arguments: argparse.Namespace) -> Result:
    """Train for one iteration to warm up, then time the workload's steps."""
    workload = WORKLOADS[arguments.workload]
    model = make_model(workload)
    model.learn(workload.steps_per_iteration)
    wall, cpu = time.perf_counter(), time.process_time()
    model.learn(arguments.steps or workload.steps)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    steps = model.num_timesteps
    return {"steps": steps, "steps_per_second": steps / wall, "cpu_steps_per_second": steps / cpu}


def main() -> None:
    """Measure once and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", choices=sorted(WORKLOADS), required=True)
    parser.add_argument("--steps", type=int, default=0, help="0: the workload's own")
    run_child(run, parser)


if __name__ == "__main__":
    main()
