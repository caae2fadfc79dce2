"""CartPole whose observation has parts, and the same as one vector: what the parts cost.

python -m tests.benchmarks.parts
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

NAMES = ("CartPoleVector-v1", "CartPoleDict-v1")


class Parted(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Cart and pole apart, as a Dict or, with the same work, as one vector of theirs."""

    def __init__(self, *, parts: bool) -> None:
        super().__init__(gymnasium.make("CartPole-v1", disable_env_checker=True))
        self._parts = parts
        if parts:
            box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
            self.observation_space = spaces.Dict({"cart": box, "pole": box})

    def observation(self, observation: Any) -> Any:
        parts = {"cart": observation[:2], "pole": observation[2:]}
        return parts if self._parts else observation


for name, has_parts in zip(NAMES, (False, True), strict=True):
    if name not in gymnasium.registry:
        make: Any = Parted
        gymnasium.register(name, entry_point=make, kwargs={"parts": has_parts})


def main() -> None:
    """Measure both in turn and print how much more CPU time a step of the Dict takes."""
    from tests.benchmarks.process import measure

    for mode in (["--collect-only"], []):
        seconds: dict[str, list[float]] = {"ppo_cartpole_vector": [], "ppo_cartpole_dict": []}
        for _ in range(3):
            for workload, taken in seconds.items():
                result = measure("ours", "--workload", workload, *mode, threads=1)
                taken.append(1e6 / result["cpu_steps_per_second"])
        plain, parted = (min(taken) for taken in seconds.values())
        what = "collection" if mode else "training"
        print(
            f"{what}: {plain:.1f} and {parted:.1f} microseconds of CPU time a step, "
            f"{100 * (parted / plain - 1):+.0f} %"
        )


if __name__ == "__main__":
    main()
