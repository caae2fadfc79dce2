from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.stats

from rl_training.experiments.statistics import (
    interquartile_means,
    interval,
    normalise,
    performance_profile,
    summarise,
    summarise_strata,
)


def test_the_interquartile_mean_by_hand() -> None:
    assert summarise([1.0, 2.0, 3.0, 100.0]).iqm == 2.5
    # Of five, each end loses one and a quarter: (0.75 * 2 + 3 + 0.75 * 5) / 2.5.
    assert summarise([1.0, 2.0, 3.0, 5.0, 100.0]).iqm == pytest.approx(8.25 / 2.5)
    assert summarise([7.0]).iqm == 7.0


def test_the_interquartile_mean_is_the_trimmed_mean_that_rliable_takes() -> None:
    values = np.random.default_rng(3).normal(size=(6, 20))
    expected = scipy.stats.trim_mean(values, 0.25, axis=1)
    np.testing.assert_allclose(interquartile_means(values), expected, rtol=1e-12)
    pooled = summarise_strata(values.tolist()).iqm
    assert pooled == pytest.approx(scipy.stats.trim_mean(values, 0.25, axis=None))


def test_mean_and_deviation_by_hand() -> None:
    summary = summarise([1.0, 2.0, 6.0])
    assert (summary.count, summary.mean) == (3, 3.0)
    assert summary.deviation == pytest.approx(7.0**0.5)  # (4 + 1 + 9) / 2


def test_one_run_has_no_interval() -> None:
    summary = summarise([3.0])
    assert (summary.low, summary.high, summary.deviation) == (None, None, None)
    same = summarise([3.0, 3.0])
    assert (same.low, same.high) == (3.0, 3.0)


def test_the_interval_is_that_of_all_resamples() -> None:
    values = [1.0, 2.0, 4.0, 8.0]
    every = np.asarray(list(itertools.product(values, repeat=4)))  # 256 of them
    expected = np.percentile(interquartile_means(every), [2.5, 97.5])
    assert interval([values], interquartile_means, resamples=200_000) == pytest.approx(expected)


def test_the_interval_is_scipy_s_percentile_bootstrap() -> None:
    values = np.random.default_rng(1).normal(size=30)
    low, high = interval([values.tolist()], interquartile_means, resamples=20_000)
    other = scipy.stats.bootstrap(
        (values,),
        lambda sample, axis: interquartile_means(sample),
        method="percentile",
        n_resamples=20_000,
        rng=np.random.default_rng(2),
    ).confidence_interval
    assert (low, high) == pytest.approx(other, abs=0.02)
    assert (low, high) == interval([values.tolist()], interquartile_means, resamples=20_000)


def test_tasks_are_resampled_apart() -> None:
    # Of runs that agree within each task nothing varies; drawn from one pot, the tasks would mix.
    strata = [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]
    summary = summarise_strata(strata)
    assert (summary.low, summary.iqm, summary.high) == pytest.approx((1.0, 1.0, 1.0))
    together = summarise([each for task in strata for each in task])
    assert together.low is not None and together.low < 1.0


def test_scores_on_one_scale() -> None:
    assert normalise([-200.0, -110.0, -65.0], -200.0, -110.0) == [0.0, 1.0, 1.5]


def test_a_performance_profile_by_hand() -> None:
    share, low, high = performance_profile([[0.5, 1.0], [1.5, 2.0]], [0.0, 1.0, 1.75, 3.0])
    assert share.tolist() == [1.0, 0.5, 0.25, 0.0]
    assert (low[0], high[0], low[3], high[3]) == (1.0, 1.0, 0.0, 0.0)
    # Above 1.75 is one run of the second task: drawn never, once or twice of two.
    assert (low[2], high[2]) == (0.0, 0.5)
    # The second task's runs are both above 1, the first one's are not: nothing varies.
    assert (low[1], high[1]) == (0.5, 0.5)
