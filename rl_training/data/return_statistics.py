"""What is told of the episodes of an evaluation: means, the interquartile mean, an interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_BOOTSTRAP_RESAMPLES = 2000


def statistics(returns: Sequence[float], lengths: Sequence[int]) -> dict[str, Any]:
    """Return the statistics that an evaluation tells, of at least one episode."""
    values = np.asarray(returns, np.float64)
    return {
        "return_mean": float(values.mean()),
        "return_std": float(values.std()),
        "return_iqm": interquartile_mean(values),
        "return_ci95": _bootstrap_interval(values),
        "length_mean": float(np.mean(lengths)),
        "returns": [float(value) for value in values],
        "lengths": [int(length) for length in lengths],
        "episodes": len(returns),
    }


def interquartile_mean(values: Sequence[float] | np.ndarray[Any, Any]) -> float:
    """Return the mean of the middle half of ``values`` (Agarwal et al. 2021), counting border
    values in part.
    """
    ordered = np.sort(np.asarray(values, np.float64))
    weights = interquartile_weights(len(ordered))
    return float((weights * ordered).sum() / weights.sum())


def interquartile_weights(count: int) -> np.ndarray[Any, Any]:
    """Return how much each of ``count`` ordered values weighs in their interquartile mean."""
    cut = count / 4
    # Each value weighs as much of it as lies between the quartiles: 4 values give the mean of the
    # middle 2.
    left = np.arange(count)
    return np.clip(np.minimum(left + 1, count - cut) - np.maximum(left, cut), 0, 1)


def _bootstrap_interval(values: np.ndarray[Any, Any]) -> list[float]:
    """Return the percentile bootstrap's 95 % interval of the mean, by a fixed seed: equal data,
    equal interval.
    """
    resamples = np.random.default_rng(0).integers(
        len(values), size=(_BOOTSTRAP_RESAMPLES, len(values))
    )
    low, high = np.percentile(values[resamples].mean(1), [2.5, 97.5])
    return [float(low), float(high)]
