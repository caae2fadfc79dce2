"""Invalid actions: the mask of legal ones, wherever an environment says it, as a part of the
observation.

So it is stored, replayed, sampled and resumed like any observation, and no row of a batch can meet
another row's mask.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_training.envs.flatten import Flattening
from rl_training.errors import UserError

Array = NDArray[Any]
MASK, OBSERVATION = "action_mask", "observation"
"""Keys of the observation that `ActionMasks` makes."""


class ActionMasks(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gives observations ``{"action_mask": ..., "observation": ...}`` and sees to it that some
    action is legal wherever a policy has to act.

    Args:
        env: with Discrete actions.
        source: ``info`` (its key ``action_mask``), ``method`` (``action_masks()``) or
            ``observation`` (a Dict that has the key ``action_mask`` already).

    Raises:
        UserError: actions of another kind, or an environment that says nothing of a mask.
    """

    masks_actions = True

    def __init__(self, env: gymnasium.Env[Any, Any], source: str) -> None:
        super().__init__(env)
        self._source = source
        if not isinstance(env.action_space, spaces.Discrete):
            raise UserError(
                f"env.action_masks needs Discrete actions, and {env} has {env.action_space}."
            )
        self._count = int(env.action_space.n)
        if source == "observation":
            require_mask(env.observation_space, env.action_space)
        else:
            self.observation_space = spaces.Dict(
                {MASK: spaces.MultiBinary(self._count), OBSERVATION: env.observation_space}
            )
        if source == "method":
            if not env.has_wrapper_attr("action_masks"):
                raise UserError(f"env.action_masks is 'method', and {env} has no action_masks().")
            self._method = env.get_wrapper_attr("action_masks")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        observation, information = self.env.reset(seed=seed, options=options)
        return self._masked(observation, information, over=False), information

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step."""
        observation, reward, terminated, truncated, information = self.env.step(action)
        over = bool(terminated or truncated)
        seen = self._masked(observation, information, over=over)
        return seen, reward, terminated, truncated, information

    def _masked(self, observation: Any, information: dict[str, Any], *, over: bool) -> Any:
        if self._source == "observation":
            mask = observation[MASK]
        elif self._source == "method":
            mask = self._method()
        elif MASK in information:
            mask = information[MASK]
        elif over:
            mask = np.ones(self._count)  # nobody acts on it
        else:
            raise UserError(f"env.action_masks is 'info', and {self.env}'s info has no {MASK!r}.")
        legal = np.asarray(mask)
        if legal.shape != (self._count,):
            raise UserError(
                f"{self.env}: an action mask of shape {legal.shape}, for {self._count} actions."
            )
        if not over and not legal.any():
            raise ValueError("no action is legal: the action mask is all zeros")
        if self._source == "observation":
            return observation
        return {MASK: legal.astype(bool).astype(np.int8), OBSERVATION: observation}


def masked(env: Any, source: str) -> Any:
    """Return ``env`` with its masks, unless ``source`` is ``off`` or it has them already."""
    if source == "off" or env.has_wrapper_attr("masks_actions"):
        return env
    return ActionMasks(env, source)


def require_mask(observation_space: Any, action_space: Any) -> None:
    """Raise unless observations have a mask of ``action_space``'s size.

    Raises:
        UserError: names the space.
    """
    part = getattr(observation_space, "spaces", {})
    part = part.get(MASK) if isinstance(part, dict) else None
    if getattr(part, "shape", None) != (int(action_space.n),):
        raise UserError(
            f"env.action_masks: observations need a key {MASK!r} of {action_space.n} numbers, and "
            f"their space is {observation_space}."
        )


def mask_columns(observation_space: Any, action_space: Any) -> slice:
    """Return where the mask stands in the vector that observations are flattened to.

    Raises:
        UserError: there is none.
    """
    if not isinstance(action_space, spaces.Discrete):
        raise UserError(f"env.action_masks needs Discrete actions, not {action_space}.")
    require_mask(observation_space, action_space)
    return Flattening(observation_space).columns((MASK,))


def with_mask(observation: Any, mask: Any, source: str) -> Any:
    """Return what a user gives to predict as an observation of `ActionMasks`.

    Raises:
        UserError: a mask that is not asked for, or none where one is.
    """
    if source in ("off", "observation"):
        if mask is not None:
            where = "env.action_masks is off" if source == "off" else "they are in the observation"
            raise UserError(f"action_masks: this policy takes none, {where}.")
        return observation
    if mask is None:
        if isinstance(observation, dict) and set(observation) == {MASK, OBSERVATION}:
            return observation
        raise UserError("this policy needs action_masks, bool [n] or [N, n].")
    legal = np.asarray(mask)
    if legal.dtype.kind not in "fiub" or not legal.ndim or not legal.any(-1).all():
        raise UserError("action_masks: of every observation one action at least must be legal.")
    return {MASK: legal.astype(bool), OBSERVATION: observation}
