"""Environments in processes of their own: how they start, fail and end."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing import connection
from typing import Any, NoReturn

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState

from rl_training.errors import UserError

_PLAIN = (str, int, float, bool, type(None))
_LONGEST = 10_000
"""Characters of what a worker says when it cannot begin: nobody reads the pipe before it ends, and
some 64 kB fill one."""
_LAST_WORDS = 5.0
"""Seconds that a worker gets to be seen to have ended."""


def start_method() -> str | None:
    """Return how to start workers: ``"fork"`` on Linux, else the platform's default (``None``).

    TorchRL sets the process-wide method to ``"spawn"``, which imports torch in every worker and
    asks every script for a ``__main__`` guard. The workers use no torch, so forking is safe.
    """
    return "fork" if sys.platform == "linux" else None


def start_workers(makers: Sequence[Callable[[], Any]]) -> AsyncVectorEnv[Any, Any]:
    """Return an ``AsyncVectorEnv``, autoreset DISABLED, of the environments that ``makers`` make.

    Raises:
        UserError: what a maker raised as one.
        RuntimeError: an environment could not be made in its worker; names its row.
    """
    if multiprocessing.current_process().daemon:
        raise UserError(
            "env.vectorization 'async' starts processes, which a daemonic process may not do: use "
            "'sync', or start this process with daemon=False."
        )
    failures = multiprocessing.get_context(start_method()).SimpleQueue()
    workers = [
        functools.partial(in_worker, row, maker, failures, os.getpid())
        for row, maker in enumerate(makers)
    ]
    # Apart from __init__: the object is needed where that fails half-way.
    vector: Any = AsyncVectorEnv.__new__(AsyncVectorEnv)
    try:
        vector.__init__(workers, autoreset_mode=AutoresetMode.DISABLED, context=start_method())
        for process in vector.processes:
            # Deaf to SIGTERM, they are ended by SIGKILL; at this process's exit, too.
            process._popen.terminate = process._popen.kill
    except (EOFError, OSError) as error:
        row, cause = dead_worker(vector)
        kind, text = "", f"environment {row} could not be made: {cause}."
        if not failures.empty():
            kind, text = failures.get()
        release_workers(vector)
        raise (UserError if kind == "UserError" else RuntimeError)(text) from error
    except BaseException:
        release_workers(vector)  # gymnasium would end them by SIGTERM, and wait
        raise
    finally:
        failures.close()
    return vector


def in_worker(row: int, make: Callable[[], Any], failures: Any, parent: int) -> Any:
    """Build environment number ``row``; outside the process ``parent``, which may itself be one
    that another started, first leave signals to it.

    Ctrl-C reaches every process of the terminal, and SIGTERM of ``timeout`` or a cluster every
    process of the group: the parent finishes its iteration and needs its workers for that. When the
    parent is gone, they end. What ``make`` raises there goes into ``failures``: gymnasium's worker
    would take it to its grave.
    """
    if os.getpid() == parent:
        return make()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        return _Audible(make())
    except UserError as error:
        failures.put(("UserError", str(error)[:_LONGEST]))
    except Exception as error:
        text = f"environment {row} could not be made: {type(error).__name__}: {error}"
        failures.put(("RuntimeError", text[:_LONGEST]))
    raise SystemExit(1)


class _Audible(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises only what reaches the parent. Gymnasium sends exceptions pickled: of one that cannot
    be pickled nothing arrives, and one that cannot be made anew hides which worker failed.
    """

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        try:
            return self.env.reset(**options)
        except Exception as error:
            _raise_sendable(error)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        try:
            return self.env.step(action)
        except Exception as error:
            _raise_sendable(error)


def _raise_sendable(error: Exception) -> NoReturn:
    """Raise ``error`` where it surely comes out of a pipe as itself, else what it says."""
    known = type(error).__module__.partition(".")[0] in ("builtins", "rl_training")
    if known and _is_plain(error):
        raise error
    raise RuntimeError(_told(error)) from error


def _is_plain(error: Exception) -> bool:
    """Return whether all that is sent of ``error`` can be: a file's name is in an `OSError`'s
    reduction, and neither in its ``args`` nor in its ``vars``.
    """
    reduced: Any = error.__reduce__()
    _, arguments, *rest = reduced
    state = rest[0] if rest else {}
    return all(type(each) in _PLAIN for each in (*arguments, *state.values()))


def _told(error: Exception) -> str:
    """Return what ``error`` says, with its notes and with the errors that a group of them holds, as
    far as it can be had.
    """
    text, more = "(it could not say more)", ""
    with contextlib.suppress(Exception):
        text = str(error)
    with contextlib.suppress(Exception):
        members = [f"{type(each).__name__}: {each}" for each in getattr(error, "exceptions", ())]
        more = "".join(f"\n{each}" for each in (*getattr(error, "__notes__", ()), *members))
    return f"{type(error).__name__}: {text}{more}"


def _end_with_parent() -> None:
    """End this worker as soon as its parent has ended: an environment that is stuck would never
    find out that its pipe is gone.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def dead_worker(vector: Any) -> tuple[int | None, str]:
    """Return the row of a worker of ``vector`` that ended on its own, and what to say about it."""
    processes = getattr(vector, "processes", [])
    # The pipe may break a little before the process can be seen to have ended.
    ended = connection.wait([process.sentinel for process in processes], timeout=_LAST_WORDS)
    for row, process in enumerate(processes):
        if process.sentinel in ended:
            process.join(_LAST_WORDS)
            return row, f"its worker process ended (exit code {process.exitcode})"
    return None, "a worker process does not answer"


def as_raised(error: Exception) -> Exception:
    """Return what a worker raised: gymnasium makes another of its kind around it."""
    inner = error.args[0] if error.args else None
    return inner if type(inner) is type(error) else error


def release_workers(vector: Any) -> None:
    """End what is left of an ``AsyncVectorEnv``'s workers, and give back its descriptors.

    Gymnasium leaves those to the garbage collector, for which a training of many evaluations is too
    long.
    """
    for process in getattr(vector, "processes", []):
        if process.is_alive():
            process.kill()
        process.join()
        process.close()
    for pipe in getattr(vector, "parent_pipes", []):
        if pipe is not None:
            pipe.close()
    vector.processes, vector.parent_pipes = [], []
    vector.error_queue = vector.observations = None
    vector.closed = True


def _forget_replies(vector: Any) -> None:
    """Let a vector environment whose step or reset failed half-way close like another: it would
    wait for replies that it has read.
    """
    if vector._state == AsyncState.DEFAULT:
        return
    for pipe in vector.parent_pipes:
        while pipe is not None and pipe.poll():
            pipe.recv()
    vector._state = AsyncState.DEFAULT


def close_vector(vector: Any) -> None:
    """Close a vector environment of any kind, with whatever its workers hold."""
    inner = getattr(vector, "unwrapped", vector)
    if not isinstance(inner, AsyncVectorEnv):
        vector.close()
        return
    try:
        if all(process.is_alive() for process in inner.processes):
            _forget_replies(inner)
            vector.close()
    finally:
        release_workers(inner)
