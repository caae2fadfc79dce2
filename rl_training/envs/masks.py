"""Invalid actions: the mask of legal ones, wherever an environment says it, as a part of the
observation.

So it is stored, replayed, sampled and resumed like any observation, and no row of a batch can meet
another row's mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from rl_training.arguments import environment_name
from rl_training.envs.flatten import FLOAT_BYTES, Flattening, choices
from rl_training.envs.observations import leading_shape
from rl_training.envs.rows import RowError
from rl_training.envs.spaces import require_taken
from rl_training.errors import UserError
from rl_training.registry import ACTION_MASKS

Array = NDArray[Any]
MASK, OBSERVATION = "action_mask", "observation"
"""Keys of the observation that `ActionMasks` makes."""
OTHER_MASK = "action_masks"
"""The other key of an ``info`` that a mask may stand under."""
METHOD = "action_masks"
"""The method that an environment may say its mask by."""
_DISCRETE = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def choice_counts(action_space: Any) -> tuple[int, ...]:
    """Return how many choices each discrete action of ``action_space`` has, in C order: a mask has
    theirs one after the other.

    Raises:
        UserError: actions of another kind.
    """
    if not isinstance(action_space, _DISCRETE):
        raise UserError(
            "env.action_masks needs Discrete, MultiDiscrete or MultiBinary actions, "
            f"not {action_space}."
        )
    return tuple(choices(action_space).ravel().tolist())


class LegalChoices:
    """What a mask ``[..., n]`` leaves of the discrete actions of a space: for each, at least one
    choice has to be legal.
    """

    def __init__(self, action_space: Any) -> None:
        self.counts = choice_counts(action_space)
        self.size = sum(self.counts)
        """Of a mask, n."""
        self._space = action_space
        self._starts = np.array([0, *self.counts[:-1]]).cumsum()

    def missing(self, mask: Array) -> tuple[int, str] | None:
        """Return the first row of masks ``[N, n]`` that leaves some action without a legal choice,
        and what to say of it; None where there is none.
        """
        if len(self.counts) == 1:
            legal = mask.any(-1, keepdims=True)
        else:
            legal = np.logical_or.reduceat(mask, self._starts, axis=-1)
        if legal.all():
            return None
        row, component = (int(each[0]) for each in np.nonzero(~legal))
        if len(self.counts) == 1:
            return row, "no action is legal: the action mask is all zeros"
        return row, (
            f"no action is legal in component {component} of {self._space}: its part of the action "
            "mask is all zeros"
        )

    def first(self, mask: Array) -> Array:
        """Return the first legal choice of every action, counted from 0, ``[N, *space.shape]``, of
        masks ``[N, n]``; 0 where none is.
        """
        parts = np.split(mask > 0, self._starts[1:], axis=-1)
        chosen = np.stack([part.argmax(-1) for part in parts], -1).astype(np.int64)
        return chosen.reshape(len(mask), *self._space.shape)

    def draw(self, mask: Array, generator: np.random.Generator) -> Array:
        """Return a random legal choice of every action, counted from 0, ``[*space.shape]``, of one
        mask ``[n]`` that has one.
        """
        parts = np.split(mask, self._starts[1:])
        chosen = [generator.choice(np.flatnonzero(part)) for part in parts]
        return np.array(chosen, np.int64).reshape(self._space.shape)


def mask_in(information: Mapping[str, Any]) -> Any:
    """Return the mask in an ``info``, under either of its keys; None: there is none."""
    mask = information.get(MASK)
    return information.get(OTHER_MASK) if mask is None else mask


def found_mask(env: Any, observation: Any, information: Mapping[str, Any]) -> Any:
    """Return the mask that an environment gives, by whichever way; None: it gives none."""
    mask = mask_in(information)
    if mask is not None:
        return mask
    if env.has_wrapper_attr(METHOD):
        return env.get_wrapper_attr(METHOD)()
    return observation.get(MASK) if isinstance(observation, dict) else None


class ActionMasks(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gives observations ``{"action_mask": ..., "observation": ...}``.

    Args:
        env: with Discrete, MultiDiscrete or MultiBinary actions; the mask of several is that of
            each, one after the other.
        source: ``info`` (its key ``action_mask`` or ``action_masks``), ``method``
            (``action_masks()``) or ``observation`` (a Dict that has the key ``action_mask``).

    Raises:
        UserError: actions of another kind, or an environment that says nothing of a mask.
    """

    masks_actions = True

    def __init__(self, env: gymnasium.Env[Any, Any], source: str) -> None:
        super().__init__(env)
        self._count = sum(choice_counts(env.action_space))
        self._method: Callable[[], Any] | None = None
        if source == "method":
            if not env.has_wrapper_attr(METHOD):
                raise UserError(
                    f"env.action_masks is 'method', and {environment_name(env)} has no {METHOD}()."
                )
            self._method = env.get_wrapper_attr(METHOD)
        if source == "observation":
            require_mask(env.observation_space, env.action_space)
            # The wrapped method itself: a step costs no extra call.
            self.step = env.step  # type: ignore[method-assign]
            self.reset = env.reset  # type: ignore[method-assign]
            return
        self.observation_space = spaces.Dict(
            {MASK: spaces.MultiBinary(self._count), OBSERVATION: env.observation_space}
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        observation, information = self.env.reset(seed=seed, options=options)
        return self._masked(observation, information, over=False), information

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step."""
        observation, reward, terminated, truncated, information = self.env.step(action)
        seen = self._masked(observation, information, over=terminated or truncated)
        return seen, reward, terminated, truncated, information

    def _masked(self, observation: Any, information: dict[str, Any], *, over: Any) -> Any:
        if self._method is not None:
            mask = self._method()
        else:
            mask = mask_in(information)
            if mask is None:
                mask = self._unsaid(over)
        legal = np.asarray(mask)
        if legal.shape != (self._count,):
            raise UserError(
                f"an action mask of shape {legal.shape}, where {self._count} numbers belong."
            )
        if legal.dtype.char in "?b":  # bool and int8 as they are
            return {MASK: legal, OBSERVATION: observation}
        if legal.dtype.kind not in "fiu" or not np.isfinite(legal).all():
            raise UserError(
                f"an action mask is of numbers, 0 where an action is illegal, not {legal.tolist()}."
            )
        bits = legal != 0
        return {MASK: bits, OBSERVATION: observation}

    def _unsaid(self, over: Any) -> Any:
        if over:
            return np.ones(self._count)  # nobody acts on it
        raise UserError(f"env.action_masks is 'info', and the info has no {MASK!r}.")


def require_masks_taken(name: str, source: str, action_space: Any = None) -> None:
    """Raise where the algorithm ``name`` takes no masks, or none of such actions.

    Raises:
        UserError: says which algorithms do, or of which actions.
    """
    if source == "off":
        return
    if name not in ACTION_MASKS:
        raise UserError(f"env.action_masks: {name} takes none; {', '.join(ACTION_MASKS)} do.")
    if action_space is not None:
        require_taken(action_space, ACTION_MASKS[name], f"{name} with env.action_masks")


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
    count = sum(choice_counts(action_space))
    one_hot = isinstance(part, spaces.Discrete | spaces.MultiDiscrete)
    if getattr(part, "shape", None) != (count,) or one_hot:
        raise UserError(
            f"env.action_masks: observations need a key {MASK!r} of {count} numbers, and "
            f"their space is {observation_space}."
        )


@dataclass(frozen=True)
class MaskColumns:
    """Where the mask stands in observation vectors ``[*batch, size]``.

    Args:
        columns: among the vector's numbers.
        packed: whether it is a vector of bytes; see `rl_training.envs.flatten.Flattening`.
    """

    columns: slice
    packed: bool = False

    @property
    def size(self) -> int:
        """Of a mask, n."""
        return int(self.columns.stop - self.columns.start)

    @property
    def _stored(self) -> slice:
        if not self.packed:
            return self.columns
        return slice(self.columns.start * FLOAT_BYTES, self.columns.stop * FLOAT_BYTES)

    def of(self, observation: Tensor) -> Tensor:
        """Return the masks ``[*batch, n]``, numbers."""
        mask = observation[..., self._stored]
        return mask.view(torch.float32) if self.packed else mask

    def of_array(self, observation: Array) -> Array:
        """Return the same of a NumPy array."""
        mask = observation[..., self._stored]
        return mask.view(np.float32) if self.packed else mask


def mask_columns(observation_space: Any, action_space: Any) -> MaskColumns:
    """Return where the mask stands in the vector that observations are flattened to.

    Raises:
        UserError: there is none.
    """
    require_mask(observation_space, action_space)
    flattening = Flattening(observation_space)
    return MaskColumns(flattening.columns((MASK,)), flattening.packed)


class ObservedMasks:
    """The masks in observations that are flattened already, ``[N, size]``.

    Args:
        observation_space: what they were before.
        action_space: what the masks are of.

    Raises:
        UserError: observations have no mask.
    """

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self._columns = mask_columns(observation_space, action_space)
        self._choices = LegalChoices(action_space)

    def legal_actions(self, observation: Array) -> Array:
        """Return a legal action for every row, counted from 0, ``[N, *act]``."""
        return self._choices.first(self._columns.of_array(observation))

    def require(
        self, observation: Array, rows: Sequence[int], over: Sequence[Sequence[Any]] = ()
    ) -> None:
        """Raise `RowError` where no action is legal in one of the observations, ``[len(rows),
        size]``, of ``rows``, and neither of the flags ``over`` says that its episode is.
        """
        masks = self._columns.of_array(observation)
        if self._choices.missing(masks) is None:
            return
        for index, row in enumerate(rows):
            missing = self._choices.missing(masks[index : index + 1])
            if missing is not None and not any(flags[index] for flags in over):
                raise RowError(row) from ValueError(missing[1])


def without_mask(observation_space: Any, source: str) -> Any:
    """Return the environment's own observation space, of that of `ActionMasks`."""
    return observation_space[OBSERVATION] if source in ("info", "method") else observation_space


def with_mask(
    observation: Any, mask: Any, source: str, observation_space: Any, action_space: Any
) -> Any:
    """Return what a user gives to predict as an observation of `ActionMasks`.

    Args:
        observation: one, or a batch.
        mask: ``[n]`` of one, ``[N, n]`` of N; None where the observation has it.
        source: ``env.action_masks``.
        observation_space: of `ActionMasks`.
        action_space: what the masks are of.

    Raises:
        UserError: a mask that is not asked for, none where one is, one for each observation too
            many or too few, or one without a legal action.
    """
    if source == "off":
        if mask is not None:
            raise UserError("action_masks: this policy takes none, env.action_masks is off.")
        return observation
    if source == "observation":
        if mask is not None:
            raise UserError("action_masks: this policy takes none, they are in the observation.")
        if isinstance(observation, dict):
            own = {key: each for key, each in observation_space.spaces.items() if key != MASK}
            leading = leading_shape(observation, spaces.Dict(own))
            _require_some_legal(observation.get(MASK), leading, action_space, f"[{MASK!r}]")
        return observation
    if mask is None and isinstance(observation, dict) and set(observation) == {MASK, OBSERVATION}:
        observation, mask = observation[OBSERVATION], observation[MASK]
    leading = leading_shape(observation, observation_space[OBSERVATION])
    legal = _require_some_legal(mask, leading, action_space, "action_masks")
    return {MASK: legal != 0, OBSERVATION: observation}


def _require_some_legal(
    mask: Any, leading: tuple[int, ...] | None, action_space: Any, name: str
) -> Array:
    """Return the masks that a user gave for observations of the ``leading`` shape as an array."""
    choices = LegalChoices(action_space)
    size = choices.size
    wanted = f"[{size}] of one observation, [N, {size}] of N"
    if leading is not None and len(leading) < 2:
        given = "one observation was" if not leading else f"{leading[0]} observations were"
        wanted = f"{given} given, so it is {[*leading, size]}"
    if name != "action_masks":
        name = f"the observation's part {name}"
    if mask is None:
        raise UserError(f"this policy needs {name}, numbers that are 0 where illegal: {wanted}.")
    try:
        legal = np.asarray(mask)
    except ValueError as error:
        raise UserError(f"{name}: the masks have different lengths; {wanted}.") from error
    if legal.dtype.kind not in "fiub" or not np.isfinite(legal).all():
        raise UserError(f"{name}: a mask is of numbers, 0 where an action is illegal.")
    fits = legal.ndim in (1, 2) if leading is None else legal.shape[:-1] == leading
    if not (legal.ndim and legal.shape[-1] == size and fits):
        raise UserError(f"{name}: the shape is {list(legal.shape)}, and {wanted}.")
    missing = choices.missing(legal.reshape(-1, size) != 0)
    if missing is not None:
        raise UserError(f"{name}: of observation {missing[0]} {missing[1]}.")
    return legal
