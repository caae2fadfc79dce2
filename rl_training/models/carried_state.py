"""What a policy with memory carries from step to step, as others give it: zeroed where an episode
begins, and checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_training.errors import UserError


def zeroed_where(carried: Mapping[str, Tensor], begins: Tensor) -> dict[str, Tensor]:
    """Return what is carried, ``[N, ...]`` each, zeroed in the rows whose episode begins.

    Args:
        carried: by key.
        begins: bool ``[N]``, on the same device.
    """
    kept = torch.logical_not(begins)
    return {key: each * kept.reshape(-1, *[1] * (each.ndim - 1)) for key, each in carried.items()}


def checked_state(state: Any, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the ``state`` that a caller passes on, as tensors like those of a first step.

    Args:
        state: a dict of arrays ``[N, ...]``.
        like: keys, shapes, dtypes and device.

    Raises:
        UserError: other keys, or another shape.
    """
    if not isinstance(state, Mapping) or set(state) != set(like):
        raise UserError(f"state must be what predict returned, a dict of {sorted(like)}.")
    checked = {}
    for key, initial in like.items():
        given = torch.as_tensor(state[key], dtype=initial.dtype, device=initial.device)
        if given.shape != initial.shape:
            raise UserError(
                f"state[{key!r}] has the shape {tuple(given.shape)}, and this policy's for "
                f"{len(initial)} observations is {tuple(initial.shape)}."
            )
        checked[key] = given
    return checked


def checked_starts(episode_start: Any, count: int) -> Tensor:
    """Return whose episode begins, bool ``[count]``, of one truth value or one for each.

    Raises:
        UserError: another number of them.
    """
    starts = torch.as_tensor(episode_start)
    if starts.ndim == 0:
        starts = starts.expand(count)
    if starts.shape != (count,):
        raise UserError(
            f"episode_start is of shape {tuple(starts.shape)}, but there are {count} observations."
        )
    return starts.bool()
