"""NaN and infinity: found once per batch and once per update, and named."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_training.envs.layout import Layout
from rl_training.errors import NonFiniteError

_KEYS: dict[str | tuple[str, str], str] = {
    "observation": "observation",
    "action": "action",
    ("next", "observation"): "next.observation",
    # Raw returns before rewards: one row's infinity spoils the normalised rewards of all rows.
    ("next", "episode_return"): "next.reward",
    ("next", "reward"): "next.reward",
}
"""What is checked, in the order in which it comes about within a step, and what errors call it."""


def check_batch(batch: TensorDictBase, *, step: int, layout: Layout | None = None) -> None:
    """Raise when a batch ``[N, T]`` collected from ``step`` on holds a NaN or an infinity.

    Args:
        batch: as collected.
        step: of all environments, before it.
        layout: of observations, which may be packed as bytes; None: they are not.

    Raises:
        NonFiniteError: names the environment step, the environment's index and the key.
    """
    found = []
    for order, (key, name) in enumerate(_KEYS.items()):
        values = batch.get(key)
        if layout is not None and layout.packed and name.endswith("observation"):
            values = layout.numbers(values)
        if values.is_floating_point() and not bool(torch.isfinite(values).all()):
            wrong = ~torch.isfinite(values).reshape(*batch.shape, -1).all(-1)
            # The first in time, then in the order of environments.
            time_index, environment = wrong.T.nonzero()[0].tolist()
            found.append((time_index, order, environment, name))
    if found:
        time_index, _, environment, name = min(found)
        raise NonFiniteError(
            f"NaN or infinity in {name!r} of environment {environment} at step "
            f"{step + time_index * batch.shape[0] + environment} "
            f"(vector step {time_index} of the rollout)."
        )


class FiniteSteps:
    """Raises `NonFiniteError` when what environments give in an evaluation holds a NaN or an
    infinity.

    Args:
        name: of the environments.
        layout: of observations.
    """

    def __init__(self, name: str, layout: Layout) -> None:
        self._name, self._layout = name, layout
        self._steps = 0

    def observation(self, values: Tensor) -> None:
        """Check observations ``[N, *shape]`` before they are acted on."""
        if self._layout.packed:
            values = self._layout.numbers(values)
        self._check(values, "an observation")

    def returns(self, values: Tensor) -> None:
        """Check the returns so far, ``[N, 1]``, after a step."""
        self._steps += 1
        self._check(values, "a reward")

    def _check(self, values: Tensor, what: str) -> None:
        # A sum tells at once; one of finite numbers that overflows is told apart by the numbers.
        if not values.is_floating_point() or math.isfinite(float(values.sum())):
            return
        wrong = (~torch.isfinite(values)).reshape(len(values), -1).any(1)
        if wrong.any():
            raise NonFiniteError(
                f"{self._name}: {what} of environment {int(wrong.nonzero()[0])} is NaN or infinite "
                f"in the evaluation, after {self._steps} vector steps."
            )


class UpdateCheck:
    """Raises when an update's losses or the parameters after it hold a NaN or an infinity.

    Args:
        modules: by name; their parameters stay where they are in memory.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._modules = modules
        # One sum per storage, not one check per parameter, which costs more than a small update.
        storages: dict[int, Tensor] = {}
        for module in modules.values():
            for parameter in module.parameters():
                storage = parameter.untyped_storage()
                whole = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
                storages.setdefault(storage.data_ptr(), whole.set_(storage))
        self._storages = list(storages.values())

    def __call__(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Check one update.

        Raises:
            NonFiniteError: names the environment step and the metric or the parameter.
        """
        for name, value in metrics.items():
            # Explained variance is NaN by definition while all targets are equal.
            if name != "train/explained_variance" and not math.isfinite(value):
                raise NonFiniteError(
                    f"NaN or infinity in the metric {name!r} of the update at step {step}."
                )
        # Every NaN and infinity shows in the sum; a sum of finite numbers that overflows is told
        # apart by the parameters themselves.
        if not all(math.isfinite(float(storage.sum())) for storage in self._storages):
            self._check_parameters(step)

    def _check_parameters(self, step: int) -> None:
        for module_name, module in self._modules.items():
            for name, parameter in module.named_parameters():
                if not bool(torch.isfinite(parameter).all()):
                    raise NonFiniteError(
                        f"NaN or infinity in the parameter '{module_name}.{name}' "
                        f"after the update at step {step}."
                    )
