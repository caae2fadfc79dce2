"""Statistics over few runs: interquartile mean, stratified bootstrap, performance profiles.

Source: Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice",
https://arxiv.org/abs/2108.13264.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.return_statistics import interquartile_mean, interquartile_weights

RESAMPLES = 2000
Scores = NDArray[np.float64]
Statistic = Callable[[Scores], Scores]
"""``[resamples, runs]`` to ``[resamples, ...]``."""


@dataclass(frozen=True)
class Summary:
    """Of the scores of some runs."""

    count: int
    mean: float
    iqm: float
    """Interquartile mean."""
    low: float | None
    """Lower end of the interquartile mean's 95 % interval; None for a single run."""
    high: float | None
    deviation: float | None
    """Standard deviation over the runs (n - 1); None for a single run."""


def summarise(scores: Sequence[float]) -> Summary:
    """Return the statistics of one score per run, at least one."""
    return summarise_strata([scores])


def summarise_strata(strata: Sequence[Sequence[float]]) -> Summary:
    """Return the statistics of runs on several tasks, on one scale.

    Args:
        strata: for each task the scores of its runs, each at least one.
    """
    pooled = np.concatenate([np.asarray(each, np.float64) for each in strata])
    few = len(pooled) < 2
    low, high = (None, None) if few else interval(strata, interquartile_means)
    return Summary(
        count=len(pooled),
        mean=float(pooled.mean()),
        iqm=interquartile_mean(pooled),
        low=None if low is None else float(low),
        high=None if high is None else float(high),
        deviation=None if few else float(pooled.std(ddof=1)),
    )


def interquartile_means(samples: Scores) -> Scores:
    """Return the interquartile mean of each row."""
    weights = interquartile_weights(samples.shape[-1])
    return np.asarray((np.sort(samples, axis=-1) * weights).sum(-1) / weights.sum())


def interval(
    strata: Sequence[Sequence[float]], statistic: Statistic, *, resamples: int = RESAMPLES
) -> tuple[Any, Any]:
    """Return the ends of the stratified percentile bootstrap's 95 % interval.

    Runs are drawn with replacement within their task, so that every resample has as many runs of
    each task as there are. The draws are seeded: equal data, equal interval.
    """
    generator = np.random.default_rng(0)
    drawn = []
    for each in strata:
        values = np.asarray(each, np.float64)
        drawn.append(values[generator.integers(len(values), size=(resamples, len(values)))])
    low, high = np.percentile(statistic(np.concatenate(drawn, axis=1)), [2.5, 97.5], axis=0)
    return low, high


def curve_interval(values: Scores, *, resamples: int = RESAMPLES) -> tuple[Scores, Scores]:
    """Return the 95 % interval of the runs' interquartile mean at each step, each ``[steps]``:
    whole runs are drawn with replacement.

    Args:
        values: ``[runs, steps]``.
    """
    generator = np.random.default_rng(0)
    drawn = values[generator.integers(len(values), size=(resamples, len(values)))]
    means = interquartile_means(np.moveaxis(drawn, 1, -1))
    low, high = np.percentile(means, [2.5, 97.5], axis=0)
    return low, high


def normalise(scores: Sequence[float], low: float, high: float) -> list[float]:
    """Return scores on the scale on which ``low`` is 0 and ``high`` is 1."""
    return [(score - low) / (high - low) for score in scores]


def performance_profile(
    strata: Sequence[Sequence[float]], thresholds: Sequence[float]
) -> tuple[Scores, Scores, Scores]:
    """Return the share of runs above each threshold, and its 95 % interval's lower and upper end,
    each ``[thresholds]``.
    """
    limits = np.asarray(thresholds, np.float64)

    def share(samples: Scores) -> Scores:
        return np.asarray((samples[..., None] > limits).mean(axis=-2))

    pooled = np.concatenate([np.asarray(each, np.float64) for each in strata])
    low, high = interval(strata, share)
    return share(pooled), low, high
