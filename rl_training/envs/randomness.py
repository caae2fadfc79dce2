"""Environments that draw from the process-wide generators of NumPy or Python are named."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

Result = TypeVar("Result")
logger = logging.getLogger(__name__)

WATCHED_CALLS = 32
_named: set[str] = set()


class GeneratorWatch:
    """Runs the first resets and steps of an environment, and warns when one moves a process-wide
    generator.

    Only the first ones, because a look at the generators costs as much as a small environment's
    step. What happens in worker processes is not seen.
    """

    def __init__(self, name: str) -> None:
        """Watch the environment that errors call ``name``; it is named once per process."""
        self._name = name
        # The registered id alone: evaluation may know the environment without its module.
        self._key = name.rpartition(":")[2]
        self._left = {"resets": 0 if self._key in _named else WATCHED_CALLS}
        self._left["steps"] = self._left["resets"]

    def over(self, kind: str) -> bool:
        """Return whether calls of this kind (``resets`` or ``steps``) need no watching any more."""
        return self._left[kind] == 0

    def call(self, kind: str, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return what ``function`` returns, and warn when it moved a generator."""
        before = _fingerprint()
        result = function(*arguments)
        self._left[kind] -= 1
        if _fingerprint() != before:
            self._warn()
        return result

    def _warn(self) -> None:
        self._left = dict.fromkeys(self._left, 0)
        if self._key in _named:
            return
        _named.add(self._key)
        logger.warning(
            "%s: its reset or step draws from (or seeds) the process-wide random generator of "
            "NumPy or Python. Such draws repeat from run to run only in one process "
            "(vectorization sync) and cannot be replayed at resume; draw from self.np_random.",
            self._name,
        )


def _fingerprint() -> tuple[Any, ...]:
    _, key, *rest = np.random.get_state()
    return (random.getstate(), np.asarray(key).tobytes(), *rest)
