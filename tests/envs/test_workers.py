"""Environments in processes of their own: failures name the row, closing gives everything back."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import pytest

from rl_training.envs import make_batched_env
from rl_training.errors import UserError
from tests.envs.scripted import Counter, collect, generator, make_config


class FailsInWorker(Counter):
    """Cannot be made in a worker, in one of three ways."""

    how = "error"

    def __init__(self) -> None:
        super().__init__()
        if multiprocessing.parent_process() is not None:
            if self.how == "exit":
                os._exit(3)
            raise UserError("mended by you") if self.how == "user" else KeyError("broken")


class DiesAtStep(Counter):
    def step(self, action: Any) -> Any:
        os._exit(7)


def make(env: Any) -> Any:
    config = make_config()
    config.env.vectorization = "async"
    return make_batched_env(config, env, num_envs=2)


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("error", RuntimeError, "environment [01] could not be made: KeyError: 'broken'"),
        ("exit", RuntimeError, r"environment [01] .*worker process ended \(exit code 3\)"),
        ("user", UserError, "^mended by you$"),
    ],
)
def test_a_constructor_that_fails_in_a_worker_names_its_row(
    how: str, kind: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FailsInWorker, "how", how)
    with pytest.raises(kind, match=message):
        make(FailsInWorker)
    assert not multiprocessing.active_children()


def test_a_worker_that_dies_names_its_row() -> None:
    environment = make(DiesAtStep)
    message = r"DiesAtStep failed in environment [01], step 1 .*ended \(exit code 7\)"
    with pytest.raises(RuntimeError, match=message):
        collect(environment, 1, generator())
    assert not multiprocessing.active_children()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors in /proc")
def test_a_closed_vector_holds_no_descriptors() -> None:
    held, count = [], []
    for _ in range(4):
        environment = make(Counter)
        collect(environment, 2, generator())
        environment.close()
        held.append(environment)  # as a garbage collector that never comes would
        count.append(len(os.listdir("/proc/self/fd")))
    assert count[1] == count[-1]
