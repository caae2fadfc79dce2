"""Returns and lengths of the episodes that end while training goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensordict import TensorDictBase

from rl_training.runtime.checks import require_counter

RECENT_EPISODES = 100
"""How many episodes the logged mean return is over."""


@dataclass
class EpisodeStatistics:
    """Returns and lengths of the newest episodes, and how many there were in all."""

    returns: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))
    count: int = 0

    def add(self, batch: TensorDictBase) -> None:
        """Count the episodes that ended in a batch ``[N, T]``, in the order of time."""
        following = batch.get("next")
        # Of a game with several lives, the whole game is the episode that is reported.
        done = following.get("game_over", following.get("done")).squeeze(-1).T
        if done.any():
            self.returns.extend(following.get("episode_return").squeeze(-1).T[done].tolist())
            self.lengths.extend(following.get("episode_length").squeeze(-1).T[done].tolist())
            self.count += int(done.sum())

    def metrics(self) -> dict[str, float]:
        """Return the means; nothing before the first episode's end."""
        if not self.returns:
            return {"train/episodes": 0.0}
        return {
            "train/episodes": float(self.count),
            "train/return_mean": sum(self.returns) / len(self.returns),
            "train/length_mean": sum(self.lengths) / len(self.lengths),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return all of it."""
        return {"returns": list(self.returns), "lengths": list(self.lengths), "count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict()``.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        self.returns.extend(_numbers(state["returns"]))
        self.lengths.extend(_numbers(state["lengths"]))
        self.count = require_counter("count", state["count"])
        if len(self.returns) != len(self.lengths):
            raise ValueError(f"{len(self.returns)} returns and {len(self.lengths)} lengths")


def _numbers(values: Sequence[Any]) -> Sequence[Any]:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"a return or length is {value!r}")
    return values
