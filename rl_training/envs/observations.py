"""Raw observations from a user, one or many, as the tensor a policy reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rl_training.envs.flatten import FLOAT_BYTES, flattening_of
from rl_training.envs.normalize import Normalizer
from rl_training.envs.parts import leaves_of, part_of
from rl_training.envs.spaces import observation_dtype
from rl_training.errors import UserError


def as_batch(observation: Any, space: Any, normalizer: Normalizer) -> tuple[torch.Tensor, bool]:
    """Return observations of ``space`` as a normalised batch ``[N, *shape]``, flattened where the
    space is no Box, and whether a single one was given.

    Raises:
        UserError: the shape is neither the space's nor a batch of it, or a number is NaN or
            infinite: what a policy answers then means nothing.
    """
    flattening = flattening_of(space)
    if flattening is not None:
        with np.errstate(over="ignore"):  # what is infinite then is told
            flat, single = flattening.given(observation)
        given = torch.from_numpy(normalizer.normalize_observation(flat))
        if flattening.packed:
            _require_finite(given[:, : flattening.floats * FLOAT_BYTES].view(torch.float32))
        else:
            _require_finite(given)
        return given, single
    try:
        array = np.asarray(observation)
    except ValueError as error:
        raise UserError("the observation is no array: its parts have different lengths.") from error
    if array.dtype.kind not in "fiub":
        raise UserError(f"the observation holds no numbers but {array.dtype}.")
    shape = tuple(space.shape)
    single = array.shape == shape
    if not single and array.shape[1:] != shape:
        raise UserError(
            f"observation of shape {array.shape} fits neither {shape} nor [N, *{shape}]."
        )
    batch = normalizer.normalize_observation(array[None] if single else array)
    dtype = observation_dtype(space, normalized=normalizer.makes_floats)
    with np.errstate(over="ignore"):  # what is infinite then is told
        given = torch.from_numpy(np.array(batch, dtype))
    _require_finite(given)
    return given, single


def _require_finite(batch: torch.Tensor) -> None:
    if batch.is_floating_point() and not bool(torch.isfinite(batch).all()):
        raise UserError("the observation holds a number that is NaN or infinite.")


def leading_shape(observation: Any, space: Any) -> tuple[int, ...] | None:
    """Return the axes that what a user gives has before those of ``space``: none of a single
    observation, ``(N,)`` of a batch; None where it does not fit.
    """
    for path, part in leaves_of(space):  # the first tells
        try:
            shape = np.shape(part_of(observation, path))
        except ValueError:
            return None
        count = len(shape) - len(part.shape)
        return shape[:count] if count >= 0 and shape[count:] == tuple(part.shape) else None
    return None


def observed_dtype(space: Any, normalizer: Normalizer) -> str:
    """Return the name of the dtype in which observations of ``space`` arrive at a policy."""
    return observation_dtype(space, normalized=normalizer.makes_floats).name


def observed_torch_dtype(space: Any, normalizer: Normalizer) -> torch.dtype:
    """Return the same as PyTorch's."""
    dtype: torch.dtype = getattr(torch, observed_dtype(space, normalizer))
    return dtype
