"""Steps per second of this library on a workload, in the steady state, split by part.

python -m tests.benchmarks.ours --workload ppo_cartpole --threads 1 --compile
python -m tests.benchmarks.ours --workload ppo_cartpole --threads 1 --collect-only
python -m tests.benchmarks.ours --workload sac_pendulum --threads 1 --compile --bfloat16
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from tests.benchmarks.process import Result, run_child
from tests.benchmarks.workloads import WORKLOADS, Workload

BATCH_KEYS = (
    "observation",
    "action",
    "is_init",
    *(("next", key) for key in ("observation", "reward", "terminated", "truncated", "done")),
    *(("next", key) for key in ("episode_return", "episode_length")),
)


def make_algorithm(workload: Workload, arguments: argparse.Namespace) -> Any:
    """Build this library's algorithm with the workload's settings."""
    import rl_training

    schedule = "linear" if workload.linear_schedules else "constant"
    options = {"learning_rate_schedule": schedule, **workload.settings}
    if workload.on_policy:
        options |= {
            "clip_schedule": schedule,
            "normalize_advantage": "minibatch",
            "normalize_observation": workload.normalize,
            "normalize_reward": workload.normalize,
        }
    if workload.atari:
        options["atari"] = {"enabled": True}
        if workload.on_policy:
            options["shared_trunk"] = True  # as the peer's network for images
    if arguments.bfloat16:
        options["precision"] = "bfloat16"
    return getattr(rl_training, workload.algorithm)(
        workload.env_id,
        seed=1,
        device=arguments.device,
        compile=arguments.compile,
        torch_threads=arguments.threads,
        total_timesteps=workload.steps + workload.warm_up_steps,
        num_envs=workload.num_envs,
        **options,
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
    from rl_training.garbage import frozen_garbage

    batches = iter(algorithm.collector())
    require_complete(next(batches))
    done = 0
    while done < workload.warm_up_steps:
        done += next(batches).numel()
    done = 0
    with frozen_garbage():
        wall, cpu = time.perf_counter(), time.process_time()
        while done < steps:
            done += next(batches).numel()
        return done, time.perf_counter() - wall, time.process_time() - cpu


def train(
    algorithm: Any, workload: Workload, steps: int, watch: Stopwatch
) -> tuple[int, float, float]:
    """Call ``learn``; return steps, wall and CPU seconds after the warm-up."""
    from rl_training import Callback

    class Clock(Callback):
        """Starts once everything is compiled."""

        wall = cpu = 0.0
        first_step = 0

        def on_iteration(self, context: Any, metrics: Any) -> None:
            if not self.first_step and context.global_step >= workload.warm_up_steps:
                watch.seconds.clear()
                self.first_step = context.global_step
                self.wall, self.cpu = time.perf_counter(), time.process_time()

    clock = Clock()
    algorithm.learn(steps + workload.warm_up_steps, callbacks=[clock])
    return (
        algorithm.global_step - clock.first_step,
        time.perf_counter() - clock.wall,
        time.process_time() - clock.cpu,
    )


def run(arguments: argparse.Namespace) -> Result:
    """Warm up, then time the workload's steps; parts are in seconds over the timed steps."""
    workload = WORKLOADS[arguments.workload]
    algorithm = make_algorithm(workload, arguments)
    watch = Stopwatch()
    watch.watch(algorithm, "update")
    if workload.atari:  # elsewhere the watching would cost more than the work
        watch.watch(algorithm.environment._steps.episodes.rows, "step")
        watch.watch(algorithm.rollout_policy, "forward")
    if workload.on_policy:
        watch.watch(algorithm, "advantages")
    else:
        for method in ("extend", "sample", "update_priorities"):
            watch.watch(algorithm.replay, method)
    asked = arguments.steps or workload.steps
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
        "replay_seconds": sum(parts.get(name, 0.0) for name in ("extend", "sample")),
        "update_seconds": parts.get("update", 0.0),
        "emulation_seconds": parts.get("step", 0.0),
        "inference_seconds": parts.get("forward", 0.0),
        **(
            {}
            if workload.on_policy or "hidden_sizes" not in workload.settings
            else gradient_step_facts(algorithm, workload, steps, parts)
        ),
    }


def gradient_step_facts(
    algorithm: Any, workload: Workload, steps: int, parts: dict[str, float]
) -> Result:
    """Return what one gradient step takes, and what its matrix products alone would take."""
    ratio = workload.settings.get("gradient_steps_per_step", 1.0)
    operations = matrix_operations(algorithm)
    return {
        "gradient_step_seconds": parts.get("update", 0.0) / (steps * ratio),
        "matrix_operations": operations,
        "matrix_seconds": operations / operations_per_second(workload.settings["hidden_sizes"][0]),
    }


def matrix_operations(algorithm: Any) -> float:
    """Count floating-point operations of the matrix products of one gradient step, the policy's
    share included where it is delayed.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    def product(inputs: Any, weight: Any, *_: Any, **__: Any) -> int:
        return 2 * inputs[0] * inputs[1] * weight[0]

    config = algorithm.config.algorithm
    delay = getattr(config, "policy_delay", 1)
    steps = [algorithm._gradient_step] * (delay - 1)
    steps.append(getattr(algorithm, "_full_step", algorithm._gradient_step))
    batch = algorithm.replay.sample(config.minibatch_size, algorithm.generators["replay"])
    batch.pop("indices")
    algorithm._draw(batch)
    own = {torch.ops.rl_training.linear: product}
    with FlopCounterMode(display=False, custom_mapping=own) as counter:
        for step in steps:
            step(batch)
    return float(counter.get_total_flops()) / delay


def operations_per_second(size: int, seconds: float = 0.3) -> float:
    """Measure the products of float32 matrices of a layer's size, batch 256."""
    import torch

    left, right = torch.randn(256, size), torch.randn(size, size)
    out = left @ right
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        torch.mm(left, right, out=out)
        count += 1
    return count * 2.0 * 256 * size * size / (time.perf_counter() - start)


def main() -> None:
    """Measure once and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", choices=sorted(WORKLOADS), required=True)
    parser.add_argument("--steps", type=int, default=0, help="0: the workload's own")
    parser.add_argument("--device", default="cpu", help="of the networks")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--bfloat16", action="store_true", help="critics in bfloat16")
    parser.add_argument("--collect-only", action="store_true")
    run_child(run, parser)


if __name__ == "__main__":
    main()
