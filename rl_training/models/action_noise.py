"""Noise of deterministic policies: independent, or an Ornstein-Uhlenbeck process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class NormalNoise:
    """Independent Gaussian noise of one standard deviation."""

    def __init__(self, *, deviation: float) -> None:
        self.deviation = deviation

    def draw(self, steps: int, num_envs: int, size: int, generator: torch.Generator) -> Tensor:
        """Return the noise of ``steps`` steps, ``[steps, num_envs, size]``."""
        return torch.randn(steps, num_envs, size, generator=generator) * self.deviation

    def restart(self, ended: Tensor) -> None:
        """Forget the past of the environments whose episode ended, bool ``[num_envs]``."""

    def state_dict(self) -> dict[str, Any]:
        """Return what lives on between rollouts."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict()``."""


class OrnsteinUhlenbeckNoise(NormalNoise):
    """Noise that is pulled back to zero (Uhlenbeck and Ornstein 1930; Lillicrap et al. 2016,
    section 7): ``x' = x - theta x dt + sigma sqrt(dt) n``, from zero.

    A process each for environment and dimension. It begins anew at the first rollout after an
    episode's end.
    """

    THETA, TIME_STEP = 0.15, 0.01

    def __init__(self, *, deviation: float) -> None:
        super().__init__(deviation=deviation)
        self._value: Tensor | None = None

    def draw(self, steps: int, num_envs: int, size: int, generator: torch.Generator) -> Tensor:
        """Return the noise of ``steps`` steps, ``[steps, num_envs, size]``."""
        normal = torch.randn(steps, num_envs, size, generator=generator)
        value = torch.zeros(num_envs, size) if self._value is None else self._value
        values = []
        for each in normal.unbind(0):
            pull = self.THETA * self.TIME_STEP * value
            value = value - pull + self.deviation * self.TIME_STEP**0.5 * each
            values.append(value)
        self._value = value
        return torch.stack(values) if values else normal

    def restart(self, ended: Tensor) -> None:
        """Set the processes of the environments whose episode ended to zero."""
        if self._value is not None:
            self._value = torch.where(ended.unsqueeze(-1), 0.0, self._value)

    def state_dict(self) -> dict[str, Any]:
        """Return the processes' values."""
        return {"value": self._value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        self._value = state["value"]


NOISES: dict[str, type[NormalNoise]] = {
    "normal": NormalNoise,
    "ornstein_uhlenbeck": OrnsteinUhlenbeckNoise,
}
