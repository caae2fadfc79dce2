"""What an environment's own process needs before it builds the environment."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Callable
from typing import Any


def start_method() -> str | None:
    """Return how to start workers: ``"fork"`` on Linux, else the platform's default (``None``).

    TorchRL sets the process-wide method to ``"spawn"``, which imports torch in every worker and
    asks every script for a ``__main__`` guard. The workers use no torch, so forking is safe.
    """
    return "fork" if sys.platform == "linux" else None


def in_worker(make: Callable[[], Any]) -> Any:
    """Build an environment; in a worker process, first leave signals to the parent.

    Ctrl-C reaches every process of the terminal: the parent finishes its iteration and needs its
    workers for that. And a handler inherited from the parent would keep a worker from being
    terminated.
    """
    if multiprocessing.parent_process() is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return make()
