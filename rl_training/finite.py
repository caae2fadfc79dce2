"""NaN and infinity: found once per batch and once per update, and named."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

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


def check_batch(batch: TensorDictBase, *, step: int) -> None:
    """Raise when a batch ``[N, T]`` collected from ``step`` on holds a NaN or an infinity.

    Raises:
        NonFiniteError: names the environment step, the environment's index and the key.
    """
    found = []
    for order, (key, name) in enumerate(_KEYS.items()):
        values = batch.get(key)
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


def check_update(
    metrics: Mapping[str, Tensor], modules: Mapping[str, nn.Module], *, step: int
) -> None:
    """Raise when an update's losses or the parameters after it hold a NaN or an infinity.

    Raises:
        NonFiniteError: names the environment step and the metric or the parameter.
    """
    for name, value in metrics.items():
        # Explained variance is NaN by definition while all targets are equal.
        if name != "train/explained_variance" and not bool(torch.isfinite(value)):
            raise NonFiniteError(
                f"NaN or infinity in the metric {name!r} of the update at step {step}."
            )
    for module_name, module in modules.items():
        for name, parameter in module.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                raise NonFiniteError(
                    f"NaN or infinity in the parameter '{module_name}.{name}' "
                    f"after the update at step {step}."
                )
