"""What hyperparameters of algorithms are checked by: each check names key and value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_training.config.coercion import require


class Hyperparameters:
    """Base of an algorithm's ``Config``, a dataclass; its ``validate`` calls these checks.

    Each raises `ConfigKeyError`, a `UserError`.
    """

    def _require(self, holds: bool, key: str, what: str) -> None:
        require(holds, f"algorithm.{key}", f"must {what}, not {getattr(self, key)}")

    def _require_positive(self, *keys: str) -> None:
        for key in keys:
            self._require(getattr(self, key) > 0, key, "be positive")

    def _require_positive_or_null(self, *keys: str) -> None:
        for key in keys:
            value = getattr(self, key)
            self._require(value is None or value > 0, key, "be positive or null")

    def _require_not_negative(self, *keys: str) -> None:
        for key in keys:
            self._require(getattr(self, key) >= 0, key, "not be negative")

    def _require_at_least_one(self, *keys: str) -> None:
        for key in keys:
            self._require(getattr(self, key) >= 1, key, "be at least 1")

    def _require_share(self, *keys: str) -> None:
        for key in keys:
            self._require(0 <= getattr(self, key) <= 1, key, "lie in [0, 1]")

    def _require_at_most(self, bounds: Mapping[str, float]) -> None:
        """Whatever the sign; of keys that the class does not have, and of null, nothing is said."""
        for key, most in bounds.items():
            value: Any = getattr(self, key, None)
            if value is not None:
                self._require(abs(value) <= most, key, f"be at most {most:,}")
