"""What the training loop has done beside learning, as a checkpoint keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rl_training.runtime.checks import require_counter
from rl_training.runtime.training_result import summary


@dataclass
class LoopRecord:
    """Evaluations, log lines and a callback's wish to stop: no part of a run's digest."""

    evaluation: dict[str, Any] | None = None
    """The last one."""
    evaluated_at: int | None = None
    """Environment steps at that moment."""
    evaluation_due: bool = False
    """Whether one was begun and ended by a signal: a resumed run does it first."""
    stopped: str | None = None
    """Why a callback asked training to end; None: none did."""
    last_logged: int | None = None
    """Environment steps at the last line of metrics."""

    def log_due(self, step: int, interval: int | None) -> bool:
        """Whether a line of metrics is due at ``step``, one per ``interval`` steps; None: always.

        The first is.
        """
        if interval is None or self.last_logged is None:
            return True
        return step // interval > self.last_logged // interval

    def state_dict(self) -> dict[str, Any]:
        """Return its part of a checkpoint's state."""
        return {
            "evaluation": {
                "step": self.evaluated_at,
                "record": self.evaluation,
                "due": self.evaluation_due,
            },
            "stopped": self.stopped,
            "last_logged": self.last_logged,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict()``, which may stand among other keys.

        Raises:
            KeyError, TypeError, ValueError: something is missing, or of another kind.
        """
        evaluated = state["evaluation"]
        self.evaluated_at, self.evaluation = evaluated["step"], evaluated["record"]
        self.evaluation_due = bool(evaluated.get("due"))
        self.last_logged, self.stopped = state["last_logged"], state.get("stopped")
        if self.evaluation is not None:
            summary(self.evaluation)
        for step in (self.evaluated_at, self.last_logged):
            if step is not None:
                require_counter("a step", step)
        if not isinstance(self.stopped, str | None):
            raise TypeError(f"the reason to stop is {self.stopped!r}")
