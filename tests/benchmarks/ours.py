"""Steps per second of this library's PPO on a workload, in the steady state, split by part.

python -m tests.benchmarks.ours --workload ppo_cartpole --threads 1 --compile
python -m tests.benchmarks.ours --workload ppo_cartpole --threads 1 --collect-only
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

from tests.benchmarks.process import Result, run_child
from tests.benchmarks.workloads import WORKLOADS, Workload

WARM_UP_ITERATIONS = 2  # compilation happens in the first
BATCH_KEYS = (
    "observation",
    "action",
    "action_log_prob",
    "is_init",
    *(("next", key) for key in ("observation", "reward", "terminated", "truncated", "done")),
    *(("next", key) for key in ("episode_return", "episode_length")),
)


def make_algorithm(workload: Workload, *, compiled: bool, threads: int) -> Any:
    """Build this library's PPO with the workload's settings and its default 64-64 tanh networks, or
    recurrent PPO.
    """
    from rl_training import PPO, RecurrentPPO

    schedule = "linear" if workload.linear_schedules else "constant"
    memory: dict[str, Any] = {
        "memory_size": workload.memory_size,
        "hidden_sizes": [],
        "output_sizes": [64],
    }
    recurrent = workload.memory_size is not None
    return (RecurrentPPO if recurrent else PPO)(
        workload.env_id,
        seed=1,
        device="cpu",
        compile=compiled,
        torch_threads=threads,
        total_timesteps=workload.steps + (1 + WARM_UP_ITERATIONS) * workload.steps_per_iteration,
        num_envs=workload.num_envs,
        normalize_observation=workload.normalize,
        normalize_reward=workload.normalize,
        num_steps=workload.num_steps,
        minibatch_size=workload.minibatch_size,
        num_epochs=workload.num_epochs,
        learning_rate=workload.learning_rate,
        learning_rate_schedule=schedule,
        clip_epsilon=workload.clip_epsilon,
        clip_schedule=schedule,
        discount=workload.discount,
        gae_lambda=workload.gae_lambda,
        entropy_coefficient=workload.entropy_coefficient,
        value_coefficient=workload.value_coefficient,
        max_gradient_norm=workload.max_gradient_norm,
        normalize_advantage="minibatch",
        **(memory if recurrent else {}),
    )


class Stopwatch:
    """Sums the seconds spent in methods of an object, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def watch(self, owner: Any, method: str) -> None:
        """Time every later call of ``owner.method``."""
        setattr(owner, method, self.timed(method, getattr(owner, method)))

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function``, adding the time of each call to ``name``."""

        def call(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

        return call


def require_complete(batch: Any) -> None:
    """Refuse to time a collection that leaves a key of the batch to a later stage."""
    present = set(batch.keys(include_nested=True))
    missing = [key for key in BATCH_KEYS if key not in present]
    if missing:
        raise RuntimeError(f"the collected batch lacks {missing}")


def collect(algorithm: Any, workload: Workload, steps: int) -> tuple[int, float, float]:
    """Collect only, as the training loop does; return steps, wall and CPU seconds."""
    from rl_training.runtime.garbage import frozen_garbage

    batches = iter(algorithm.collector())
    for _ in range(1 + WARM_UP_ITERATIONS):
        require_complete(next(batches))
    done = 0
    with frozen_garbage():
        wall, cpu = time.perf_counter(), time.process_time()
        while done < steps:
            done += next(batches).numel()
        return done, time.perf_counter() - wall, time.process_time() - cpu


def train(
    algorithm: Any, workload: Workload, steps: int, watch: Stopwatch
) -> tuple[int, float, float]:
    """Call ``learn``; return steps, wall and CPU seconds after the warm-up iterations."""
    from rl_training import Callback

    class Clock(Callback):
        """Starts once everything is compiled."""

        wall = cpu = 0.0
        first_step = 0

        def on_iteration(self, context: Any, metrics: Any) -> None:
            if context.algorithm.updates == WARM_UP_ITERATIONS:
                watch.seconds.clear()
                self.first_step = context.global_step
                self.wall, self.cpu = time.perf_counter(), time.process_time()

    clock = Clock()
    require_complete(next(iter(algorithm.collector())))
    algorithm.learn(steps + WARM_UP_ITERATIONS * workload.steps_per_iteration, callbacks=[clock])
    return (
        algorithm.global_step - clock.first_step,
        time.perf_counter() - clock.wall,
        time.process_time() - clock.cpu,
    )


def run(arguments: argparse.Namespace) -> Result:
    """Warm up, then time the workload's steps; parts are in seconds over the timed steps."""
    workload = WORKLOADS[arguments.workload]
    algorithm = make_algorithm(workload, compiled=arguments.compile, threads=arguments.threads)
    watch = Stopwatch()
    for method in ("update", "advantages", "_optimize"):
        watch.watch(algorithm, method)
    iterations = math.ceil((arguments.steps or workload.steps) / workload.steps_per_iteration)
    asked = iterations * workload.steps_per_iteration
    if arguments.collect_only:
        steps, wall, cpu = collect(algorithm, workload, asked)
    else:
        steps, wall, cpu = train(algorithm, workload, asked, watch)
    parts = watch.seconds
    return {
        "steps": steps,
        "steps_per_second": steps / wall,
        "cpu_steps_per_second": steps / cpu,
        "microseconds_per_vector_step": 1e6 * wall * workload.num_envs / steps,
        "wall_seconds": wall,
        "collect_seconds": wall - parts.get("update", 0.0),
        "advantages_seconds": parts.get("advantages", 0.0),
        "minibatches_seconds": parts.get("_optimize", 0.0),
        "update_seconds": parts.get("update", 0.0),
    }


def main() -> None:
    """Measure once and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", choices=sorted(WORKLOADS), required=True)
    parser.add_argument("--steps", type=int, default=0, help="0: the workload's own")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--collect-only", action="store_true")
    run_child(run, parser)


if __name__ == "__main__":
    main()
