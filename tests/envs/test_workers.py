"""Environments in processes of their own: failures name the row, closing gives everything back."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from rl_training.envs import make_batched_env
from rl_training.errors import EnvironmentFailedError, UserError
from tests.envs.scripted import Counter, collect, generator, make_config
from tests.processes import Process, run_source


class FailsInWorker(Counter):
    """Cannot be made in a worker, in one of four ways."""

    how = "error"

    def __init__(self) -> None:
        super().__init__()
        if multiprocessing.parent_process() is not None:
            if self.how == "exit":
                os._exit(3)
            if self.how == "long":
                raise ValueError("x" * 200_000)
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
        ("long", RuntimeError, "environment [01] could not be made: ValueError: xxx"),
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


class TwoArgumentsError(Exception):
    """Cannot be made anew from what a pickle keeps of it."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


class HoldsALockError(Exception):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


class SeveralError(Exception):
    """As an exception group, which Python 3.10 has not."""

    exceptions = (KeyError("one"), OSError("other"))


class WorseError(Exception):
    """Raises another one when it is asked what it says."""

    def __str__(self) -> str:
        raise TwoArgumentsError(1, 2)


def _with_a_lock() -> ValueError:
    error = ValueError("bad")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    return error


def _with_a_locked_file() -> OSError:
    error = FileNotFoundError(2, "gone", "file")
    error.filename = threading.Lock()
    return error


def _with_a_note() -> ValueError:
    error = ValueError("bad")
    error.__notes__ = ["in the cellar"]  # type: ignore[attr-defined]
    return error


def _with_wrong_members() -> Exception:
    error = SeveralError("odd")
    error.exceptions = 7  # type: ignore[assignment]
    return error


def _with_words_of_its_own() -> ValueError:
    class Words(str):
        __slots__ = ()

    return ValueError(Words("bad words"))


class Raises(Counter):
    error: Exception

    def step(self, action: Any) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TwoArgumentsError(3, 4), "RuntimeError: TwoArgumentsError: 3 and 4"),
        (HoldsALockError(), "RuntimeError: HoldsALockError: locked"),
        (KeyError("missing"), "KeyError: .*missing"),
        (WorseError(), "RuntimeError: WorseError"),
        (_with_a_lock(), "ValueError: bad"),
        (_with_a_locked_file(), "FileNotFoundError: .*gone"),
        (_with_words_of_its_own(), "ValueError: bad words"),
        (_with_a_note(), "ValueError: bad.*in the cellar"),
        (_with_wrong_members(), "SeveralError: odd"),
        (SeveralError("two"), "two .*KeyError: .*OSError:"),
    ],
)
def test_an_exception_of_any_kind_names_its_row(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Raises, "error", error, raising=False)
    environment = make(Raises)
    with pytest.raises(RuntimeError, match=rf"Raises failed in environment [01], step 1 .*{words}"):
        collect(environment, 1, generator())
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    "error",
    [
        OSError("gone"),
        FileNotFoundError(2, "gone", "file"),
        ModuleNotFoundError("gone", name="numbers", path="there"),
        KeyError("gone"),
    ],
)
def test_what_a_pipe_keeps_whole_arrives_as_itself(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Raises, "error", error, raising=False)
    environment = make(Raises)
    with pytest.raises(EnvironmentFailedError) as failure:
        collect(environment, 1, generator())
    cause = failure.value.__cause__
    assert cause is not None
    assert cause.__reduce__() == error.__reduce__()


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


class Answers(Counter):
    """Answers a step with something else than it should, in one of several ways."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        odd: dict[str, Any] = {
            "arrays": (observation, np.array([reward]), np.array([terminated]), truncated, info),
            "shape": (observation[:1], reward, terminated, truncated, info),
            "scalar": (np.float32(3.0), reward, terminated, truncated, info),
            "word": (observation, reward, "no", truncated, info),
            "half": (observation, reward, terminated, 0.5, info),
            "none": (observation, reward, None, truncated, info),
            "two": (observation, reward, np.array([False, False]), truncated, info),
            "pair": (observation, np.array([1.0, 2.0]), terminated, truncated, info),
        }
        return odd[self.what]


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("shape", r"observation of shape \(1,\), its space says \(2,\)"),
        ("scalar", r"observation of shape \(\), its space says \(2,\)"),
        ("word", "terminated must be True or False, not 'no'"),
        ("half", "truncated must be True or False, not 0.5"),
        ("none", "terminated must be True or False, not None"),
        ("two", "terminated must be True or False, not array"),
        ("pair", "a reward must be one number, not array"),
    ],
)
def test_an_odd_answer_is_refused_in_every_process(
    vectorization: Literal["sync", "async"], what: str, message: str
) -> None:
    config = make_config()
    config.env.vectorization = vectorization
    env = make_batched_env(config, functools.partial(Answers, what), num_envs=2)
    with pytest.raises(EnvironmentFailedError, match=f"in environment [01], step .*{message}"):
        collect(env, 3, generator())
    env.close()


def test_arrays_of_one_are_taken_alike_in_every_process() -> None:
    taken = []
    kinds: tuple[Literal["sync"], Literal["async"]] = ("sync", "async")
    for vectorization in kinds:
        config = make_config()
        config.env.vectorization = vectorization
        env = make_batched_env(config, functools.partial(Answers, "arrays"), num_envs=2)
        taken.append(collect(env, 12, generator()))
        env.close()
    sync, worker = taken
    assert (sync == worker).all()
    assert sync["next", "terminated"].any()


def test_an_exit_of_an_environment_is_a_failure() -> None:
    class Leaves(Counter):
        def step(self, action: Any) -> Any:
            raise SystemExit(0)

    env = make_batched_env(make_config(), Leaves, num_envs=2)
    with pytest.raises(EnvironmentFailedError, match="environment 0"):
        collect(env, 1, generator())


IN_A_CHILD = """
import multiprocessing, signal
import gymnasium
from rl_training.envs.workers import release_workers, start_workers
assert multiprocessing.parent_process() is not None
before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
release_workers(start_workers([lambda: gymnasium.make("CartPole-v1")] * 2))
assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
"""


def test_a_trainer_that_another_process_started_still_hears_signals() -> None:
    with Process(run_source, IN_A_CHILD) as process:
        _, error = process.communicate(timeout=100)
        assert process.returncode == 0, error


def test_a_daemonic_process_is_told_that_it_may_start_no_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process: Any = multiprocessing.current_process()
    monkeypatch.setitem(process._config, "daemon", True)
    with pytest.raises(UserError, match="'async' starts processes, which a daemonic process"):
        make_batched_env(make_config("CartPole-v1", vectorization="async"))


UNLIKE = """
import gymnasium
from rl_training.envs.workers import start_workers
names = ["CartPole-v1", "Acrobot-v1"]
try:
    start_workers([lambda name=name: gymnasium.make(name) for name in names])
except RuntimeError as error:
    held = error  # and with it what was made so far
    print(error)
"""


def test_workers_of_unlike_environments_are_ended_and_the_process_ends() -> None:
    with Process(run_source, UNLIKE) as process:
        out, error = process.communicate(timeout=60)
        assert process.returncode == 0, error
    assert "space" in out


STUCK = """
import os, sys, time
import gymnasium
from rl_training.envs.workers import start_workers

class Stuck(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **keywords):
        time.sleep(1000)

vector = start_workers([Stuck] * 3)
print(*[process.pid for process in vector.processes], flush=True)
vector.reset()
"""


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks for processes there")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_that_are_stuck_end_with_a_parent_that_is_killed(number: signal.Signals) -> None:
    with Process(run_source, STUCK) as process:
        workers = [int(pid) for pid in process.wait_for_output().split()]
        assert len(workers) == 3
        assert all(map(runs, workers))
        time.sleep(0.2)  # until the reset is under way
        os.kill(process.pid, number)
        assert process.wait() == -number
        deadline = time.monotonic() + 20
        while any(map(runs, workers)):
            assert time.monotonic() < deadline, "workers are left"
            time.sleep(0.05)


def runs(pid: int) -> bool:
    """Return whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
