"""What is given or read, checked: the mistake becomes one line."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any

import torch
from torch import nn

from rl_training.errors import UserError, one_line
from rl_training.runtime.manifest import CheckpointError

logger = logging.getLogger(__name__)

_MISFITS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
_LONGEST = 300


@contextlib.contextmanager
def fitting(what: str) -> Iterator[None]:
    """Turn whatever goes wrong while a saved state is taken over into a `CheckpointError`.

    A checkpoint whose hashes are right may still come from a stranger, or from other code.

    Args:
        what: begins the message, which the error's own words end.
    """
    try:
        yield
    except UserError:
        raise
    except _MISFITS as error:
        words = one_line(error)[:_LONGEST]
        detail = f"{words} is missing" if isinstance(error, KeyError) else words
        raise CheckpointError(f"{what}: {detail or type(error).__name__}.") from error


def require_counter(name: str, value: Any) -> int:
    """Return ``value``, a whole number that is not negative, or raise ``ValueError``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} is {value!r}")
    return value


def require_outline(given: Mapping[str, Any], like: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` unless ``given`` has a tensor of the same shape for each of ``like``.

    Copying would broadcast.
    """
    for name, target in like.items():
        shape = getattr(given[name], "shape", None)
        if shape != target.shape:
            raise ValueError(f"{name} has shape {shape}, not {tuple(target.shape)}")


def require_noise(name: str, value: Any, shape: tuple[int, ...]) -> None:
    """Raise ``ValueError`` unless ``value`` is None, or finite numbers of that shape."""
    if value is None:
        return
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        raise ValueError(f"{name} is no tensor of numbers")
    if value.shape != shape or not bool(torch.isfinite(value).all()):
        raise ValueError(f"{name} has shape {tuple(value.shape)}, or is not finite")


def warn_of_nan(modules: Mapping[str, nn.Module]) -> None:
    """Log a warning that names the first parameter with a NaN or an infinity."""
    for module in modules.values():
        for name, parameter in module.named_parameters():
            if not torch.isfinite(parameter).all():
                logger.warning("the parameters read are not all finite: %s, for one.", name)
                return


def whole_number(name: str, value: Any, *, minimum: int = 1) -> int:
    """Return ``value`` as an int.

    Raises:
        UserError: it is no whole number (text and truth values are none), or below ``minimum``.
    """
    number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not number or int(value) != value:
        raise UserError(f"{name} must be a whole number, not {value!r}.")
    if value < minimum:
        raise UserError(f"{name} must be at least {minimum}, got {value}.")
    return int(value)
