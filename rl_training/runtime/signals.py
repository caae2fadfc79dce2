"""SIGINT and SIGTERM: the first asks the loop to finish its iteration, the second stops at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

HANDLED = (signal.SIGINT, signal.SIGTERM)
_active: list[StopSignals] = []


def stop_requested() -> bool:
    """Whether a signal asked the training that is going on, if any, to stop.

    What may take long inside an iteration asks now and then.
    """
    return bool(_active) and _active[-1].received is not None


class StopSignals:
    """Context manager around a training loop, which reads `received` between iterations.

    Outside the main thread Python allows no handlers: nothing is installed and `received` stays
    None.
    """

    def __init__(self) -> None:
        """Start without a signal."""
        self.received: int | None = None
        """Number of the first signal, None before it."""
        self._previous: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """128 + the signal's number (130 for SIGINT, 143 for SIGTERM); 0 when none came."""
        return 0 if self.received is None else 128 + self.received

    def __enter__(self) -> StopSignals:
        """Install the handlers."""
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in HANDLED}
            _active.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give the handlers back to whoever had them."""
        if self in _active:
            _active.remove(self)
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received = int(number)
        # The next one meets the handler from before: KeyboardInterrupt for SIGINT, the end for
        # SIGTERM. Where signals were ignored (a job started in the background by a script), the
        # second still has to stop.
        for handled, handler in self._previous.items():
            signal.signal(handled, signal.SIG_DFL if handler in (None, signal.SIG_IGN) else handler)
