"""Trainings in several threads of one process, which share its random generators."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

logger = logging.getLogger(__name__)

_training: list[int] = []
"""Identities of the threads that train, one within another twice."""
_lock = threading.Lock()


@contextlib.contextmanager
def training_thread() -> Iterator[None]:
    """Surround a training; warn where another one goes on in another thread."""
    me = threading.get_ident()
    with _lock:
        beside = any(each != me for each in _training)
        _training.append(me)
    if beside:
        logger.warning(
            "Another training goes on in another thread of this process. Both draw from the "
            "process-wide random generators: neither repeats itself exactly. Processes of their "
            "own do."
        )
    try:
        yield
    finally:
        with _lock:
            _training.remove(me)
