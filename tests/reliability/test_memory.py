"""Training again and again in one process does not grow it."""

from __future__ import annotations

import pytest

from tests.processes import Process, run_source
from tests.reliability.runs import PATIENCE, environment

pytest.importorskip("psutil")

REPEATED = """
import gc, psutil
from rl_training import PPG

def megabytes():
    gc.collect()
    return psutil.Process().memory_info().rss / 1e6

algorithm = PPG("CartPole-v1", num_envs=4, num_steps=64, minibatch_size=64, policy_iterations=4,
                auxiliary_minibatches=8)
sizes = []
for _ in range(7):
    algorithm.learn(2048)
    sizes.append(megabytes())
print(sizes[-1] - sizes[1])
"""

NEW_OBJECTS = REPEATED.replace(
    "    algorithm.learn(2048)", "    make().learn(2048).close()"
).replace("algorithm = PPG(", "make = lambda: PPG(")


@pytest.mark.parametrize("program", [REPEATED, NEW_OBJECTS], ids=["same object", "new objects"])
def test_five_more_trainings_take_no_more_memory(program: str) -> None:
    with Process(run_source, program, environment=environment()) as process:
        out, err = process.communicate(timeout=3 * PATIENCE)
        assert process.returncode == 0, err
    assert float(out) < 8.0
