"""Running normalisation of observations and rewards, in float64 NumPy, with the state a checkpoint
keeps.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.errors import UserError

Array = NDArray[Any]
EPSILON = 1e-8


class RunningMeanStd:
    """Mean and variance of a stream, by the parallel update of Chan, Golub and LeVeque (1979), in
    float64.

    Starts as OpenAI Baselines does: mean 0, variance 1, with the weight of ``1e-4`` samples.
    """

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        """Start with no sample of shape ``shape``."""
        self.mean: Array = np.zeros(shape, np.float64)
        self.var: Array = np.ones(shape, np.float64)
        self.count = 1e-4

    def update(self, batch: Array) -> None:
        """Add the samples ``[M, *shape]``."""
        samples = batch.shape[0]
        before, total = self.count, self.count + samples
        # Ufuncs in place, and none where a single sample needs none: NumPy's mean() and var() cost
        # more than a small environment's step.
        batch_mean = batch[0] if samples == 1 else np.add.reduce(batch, 0, np.float64) / samples
        delta = batch_mean - self.mean
        if not math.isfinite(delta.sum()):
            # One row's NaN would spoil the statistics, and with them every other row.
            return
        self.mean += delta * (samples / total)
        delta *= delta
        delta *= before * samples / total
        if samples > 1:
            centred = batch - batch_mean
            centred *= centred
            delta += np.add.reduce(centred, 0)
        self.var *= before
        self.var += delta
        self.var /= total
        self.count = total

    @property
    def scale(self) -> Array:
        """One over the standard deviation."""
        return 1.0 / np.sqrt(self.var + EPSILON)

    def state_dict(self) -> dict[str, Any]:
        """Return mean, variance and weight."""
        return {"mean": self.mean.copy(), "var": self.var.copy(), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a :meth:`state_dict`.

        Raises:
            UserError: it belongs to data of another shape.
        """
        mean, var = (np.array(state[key], np.float64) for key in ("mean", "var"))
        if mean.shape != self.mean.shape:
            raise UserError(
                f"normaliser statistics of shape {mean.shape} do not fit data of shape "
                f"{self.mean.shape}."
            )
        self.mean, self.var, self.count = mean, var, float(state["count"])


class ObservationNormalizer:
    """``clip((observation - mean) / sqrt(var + 1e-8), -clip, clip)`` with running statistics."""

    keeps_dtype = False
    """Whether normalised observations are of the dtype of raw ones, and not float32."""

    def __init__(
        self, shape: tuple[int, ...], *, clip: float = 10.0, untouched: slice | None = None
    ) -> None:
        """Prepare for observations of shape ``shape``; of vectors, ``untouched`` numbers stay as
        they are.
        """
        self.statistics = RunningMeanStd(shape)
        self.clip = clip
        self._untouched = untouched

    def update(self, observation: Array) -> None:
        """Add the observations ``[M, *shape]`` to the statistics."""
        self.statistics.update(observation)
        if self._untouched is not None:
            self.statistics.mean[self._untouched] = 0.0
            self.statistics.var[self._untouched] = 1.0 - EPSILON

    def __call__(self, observation: Array) -> Array:
        """Return ``observation`` ``[..., *shape]`` normalised, as a new float32 array."""
        statistics = self.statistics
        scaled = (observation - statistics.mean) / np.sqrt(statistics.var + EPSILON)
        return np.asarray(np.minimum(np.maximum(scaled, -self.clip), self.clip), np.float32)


class PackedNormalizer(ObservationNormalizer):
    """The same for vectors of bytes (`rl_training.envs.flatten.Flattening`): their numbers are
    normalised, their images left alone.

    Args:
        floats: how many numbers of float32 a vector begins with.
        clip, untouched: as for the parent.
    """

    keeps_dtype = True

    def __init__(self, floats: int, *, clip: float = 10.0, untouched: slice | None = None) -> None:
        super().__init__((floats,), clip=clip, untouched=untouched)
        self._bytes = 4 * floats

    def _numbers(self, observation: Array) -> Array:
        return np.ascontiguousarray(observation[..., : self._bytes]).view(np.float32)

    def update(self, observation: Array) -> None:
        """Add the numbers of observations ``[M, size]`` to the statistics."""
        super().update(self._numbers(observation))

    def __call__(self, observation: Array) -> Array:
        """Return ``observation`` ``[..., size]`` with its numbers normalised, as a new array."""
        result = observation.copy()
        result[..., : self._bytes] = super().__call__(self._numbers(observation)).view(np.uint8)
        return result


class RewardNormalizer:
    """Divides rewards by the standard deviation of the running discounted return, as OpenAI
    Baselines' ``VecNormalize``.

    Per step: ``return = return * gamma + reward``, statistics updated with it, ``clip(reward /
    sqrt(var + 1e-8))``, then the return of every finished episode set to 0. The mean is never
    subtracted.
    """

    def __init__(self, num_envs: int, *, gamma: float, clip: float = 10.0) -> None:
        """Prepare for ``num_envs`` environments discounted by ``gamma``."""
        self.statistics = RunningMeanStd()
        self.gamma = gamma
        self.clip = clip
        self.returns: Array = np.zeros(num_envs, np.float64)

    def update(self, reward: Array) -> None:
        """Add one vector step's raw rewards ``[N]``; call before normalising them."""
        self.returns *= self.gamma
        self.returns += reward
        self.statistics.update(self.returns)

    def __call__(self, reward: Array) -> Array:
        """Return raw rewards ``[N]`` normalised, in float64."""
        return _clipped(reward * self.statistics.scale, self.clip)

    def forget(self, rows: list[int]) -> None:
        """Set the running return of ``rows`` to 0: their episodes ended."""
        self.returns[rows] = 0.0


def _clipped(values: Array, bound: float) -> Array:
    """Clip in place; `numpy.clip` costs three times as much on small arrays."""
    np.minimum(values, bound, out=values)
    return np.maximum(values, -bound, out=values)


class Normalizer:
    """Observation and reward normalisation of one batched environment; either may be off
    (``None``).

    ``frozen`` stops every update: evaluation and prediction see the statistics, and leave them as
    they are.
    """

    def __init__(
        self,
        *,
        observation: ObservationNormalizer | None = None,
        reward: RewardNormalizer | None = None,
        frozen: bool = False,
    ) -> None:
        """Bundle the given normalisers."""
        self.observation = observation
        self.reward = reward
        self.frozen = frozen

    @property
    def makes_floats(self) -> bool:
        """Whether observations come out as float32, whatever they were."""
        return self.observation is not None and not self.observation.keeps_dtype

    def evaluation_view(self) -> Normalizer:
        """Return a frozen normaliser that shares these observation statistics and leaves rewards
        raw.
        """
        return Normalizer(observation=self.observation, frozen=True)

    def update_observation(self, observation: Array) -> None:
        """Add the observations ``[M, *obs]`` that a policy is about to act on, unless frozen or
        off.
        """
        if self.observation is not None and not self.frozen:
            self.observation.update(observation)

    def normalize_observation(self, observation: Array) -> Array:
        """Return ``observation`` ``[..., *obs]`` normalised to float32, or as it is when
        observations are not normalised.
        """
        return observation if self.observation is None else self.observation(observation)

    def normalize_reward(self, reward: Array) -> Array:
        """Return one vector step's raw rewards ``[N]`` normalised, after adding them to the
        statistics unless frozen.
        """
        if self.reward is None:
            return reward
        if not self.frozen:
            self.reward.update(reward)
        return self.reward(reward)

    def forget(self, rows: list[int]) -> None:
        """Tell that the episodes of ``rows`` ended."""
        if self.reward is not None and not self.frozen:
            self.reward.forget(rows)

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics and the running discounted returns."""
        state: dict[str, Any] = {"observation": None, "reward": None}
        if self.observation is not None:
            state["observation"] = self.observation.statistics.state_dict()
        if self.reward is not None:
            state["reward"] = {
                **self.reward.statistics.state_dict(),
                "returns": self.reward.returns.copy(),
            }
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a :meth:`state_dict`.

        The running returns are taken only for an equal number of environments: the statistics do
        not depend on it.

        Raises:
            UserError: the state normalises something else (observations, rewards, another shape)
                than this does.
        """
        for key, mine in (("observation", self.observation), ("reward", self.reward)):
            if self.frozen and mine is None:
                continue  # An evaluation view needs the observation statistics alone.
            if (state[key] is None) != (mine is None):
                saved, now = ("off", "on") if state[key] is None else ("on", "off")
                raise UserError(
                    f"{key} normalisation was {saved} when the state was saved and is {now} here."
                )
            if mine is not None:
                mine.statistics.load_state_dict(state[key])
        if self.reward is not None:
            returns = np.array(state["reward"]["returns"], np.float64)
            if returns.shape == self.reward.returns.shape:
                self.reward.returns = returns
