"""Observation and action spaces: what is supported, as JSON, as TorchRL specs, and actions on their
way to the environment.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torchrl.data import Bounded, Categorical, MultiCategorical, TensorSpec, Unbounded

from rl_training.envs.flatten import choices, require_observable
from rl_training.envs.parts import leaves_of, named
from rl_training.errors import UserError

Array = NDArray[Any]

Discrete = spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
ActionSpace = spaces.Box | Discrete
_HELD_AS = {"uint16": np.int32, "uint32": np.int64, "uint64": np.float32}
DISCRETE = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def require_supported(observation_space: Any, action_space: Any, name: str) -> None:
    """Raise unless observations are what `require_observable` takes, and actions Discrete,
    MultiDiscrete, MultiBinary, a Box of floats or integers, or a Dict or Tuple of these.

    Raises:
        UserError: names the environment ``name``, the space and what is supported.
    """
    require_observable(observation_space, name)
    parts = list(leaves_of(action_space))
    if not parts:
        raise UserError(f"{name}: action space {action_space} has no parts.")
    for path, each in parts:
        where = f" (the action's part {named(path)})" if path else ""
        if isinstance(each, spaces.Box):
            if each.dtype.kind not in "fiu":
                raise UserError(
                    f"{name}: a Box of {each.dtype} actions{where} is not supported; supported: "
                    "floating-point and integer dtypes."
                )
        elif not isinstance(each, DISCRETE):
            raise UserError(
                f"{name}: action space {each}{where} is not supported; supported: Discrete, "
                "MultiDiscrete, MultiBinary, Box, and Dict and Tuple of these."
            )


def action_kind(space: Any) -> str:
    """Return what `rl_training.registry.ACTION_SPACES` calls an action space: its class, and of
    Boxes whether they are of integers or lack a finite bound.
    """
    if isinstance(space, spaces.Box):
        if not space.is_bounded("both"):
            return "unbounded Box"
        return "Box" if space.dtype.kind == "f" else "integer Box"
    return type(space).__name__


def require_taken(action_space: Any, kinds: Sequence[str], name: str) -> None:
    """Raise unless ``action_space`` is of one of the ``kinds`` that the algorithm ``name`` takes.

    Raises:
        UserError: names the algorithm, the space and what it takes.
    """
    kind = action_kind(action_space)
    if kind not in kinds:
        article = "an" if kind[0] in "aeiou" else "a"
        bounds = f": {name} needs finite bounds" if "unbounded" in kind and "Box" in kinds else ""
        taken = " or ".join(kinds)
        raise UserError(
            f"{name} needs {taken} actions, and {action_space} is {article} {kind}{bounds}."
        )


def space_outline(space: Any) -> list[Any]:
    """Return what has to be equal for a policy to fit: kind, shape and number; not the bounds."""
    described = space_to_dict(space)
    if "spaces" in described:
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        named = zip(
            described.get("keys", range(len(parts))), map(space_outline, parts), strict=True
        )
        return [described["type"], *sorted(named)]
    return [described.get(key) for key in ("type", "shape", "n", "nvec", "start")]


def require_same_spaces(policy: tuple[Any, Any], environment: tuple[Any, Any]) -> None:
    """Raise unless a policy's observation and action space fit an environment's.

    Raises:
        UserError: names the two that do not.
    """
    for kind, mine, theirs in zip(("observation", "action"), policy, environment, strict=True):
        if space_outline(mine) != space_outline(theirs):
            raise UserError(f"its {kind} space is {theirs}, and this policy was made for {mine}.")


def space_to_dict(space: Any) -> dict[str, Any]:
    """Return ``space`` as JSON-ready values; :func:`space_from_dict` is the exact inverse.

    Raises:
        UserError: the space, or a part of it, is of another kind than Box, Discrete, MultiDiscrete,
            MultiBinary, Dict, Tuple.
    """
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {
            "type": "MultiDiscrete",
            "dtype": space.dtype.name,
            "shape": list(space.shape),
            "nvec": space.nvec.ravel().tolist(),
            "start": space.start.ravel().tolist(),
        }
    if isinstance(space, spaces.MultiBinary):
        # ``n`` is a number or a shape, and the two make unequal spaces.
        count = list(space.n) if isinstance(space.n, tuple) else int(space.n)
        return {"type": "MultiBinary", "shape": list(space.shape), "n": count}
    if isinstance(space, spaces.Box):
        return {
            "type": "Box",
            "dtype": space.dtype.name,
            "shape": list(space.shape),
            "low": _bound_to_json(space.low),
            "high": _bound_to_json(space.high),
        }
    if isinstance(space, spaces.Dict):
        parts = [space_to_dict(part) for part in space.spaces.values()]
        return {"type": "Dict", "keys": list(space.spaces), "spaces": parts}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_dict(part) for part in space.spaces]}
    raise UserError(f"space {space} cannot be stored; supported: {_STORED}.")


_STORED = "Box, Discrete, MultiDiscrete, MultiBinary, Dict, Tuple"


def space_from_dict(data: dict[str, Any]) -> Any:
    """Rebuild the space that :func:`space_to_dict` described.

    Raises:
        UserError: the description names another kind of space.
    """
    kind = data.get("type")
    if kind == "Discrete":
        return spaces.Discrete(int(data["n"]), start=int(data["start"]))
    if kind == "MultiDiscrete":
        counts, start = (np.array(data[key]).reshape(data["shape"]) for key in ("nvec", "start"))
        return spaces.MultiDiscrete(counts, dtype=np.dtype(data["dtype"]).type, start=start)
    if kind == "MultiBinary":
        return spaces.MultiBinary(data["n"])
    if kind == "Box":
        shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
        low, high = (_bound_from_json(data[key], shape, dtype) for key in ("low", "high"))
        return spaces.Box(low, high, shape=shape, dtype=dtype.type)
    if kind in ("Dict", "Tuple"):
        parts = [space_from_dict(part) for part in data["spaces"]]
        if kind == "Tuple":
            return spaces.Tuple(parts)
        return spaces.Dict(OrderedDict(zip(data["keys"], parts, strict=True)))
    raise UserError(f"unknown space type {kind!r}; supported: {_STORED}.")


def _bound_to_json(bound: Array) -> Any:
    # One number when all are equal (an image has 28,224 bounds); JSON has no infinity, text has.
    values = [value if np.isfinite(value) else str(value) for value in bound.ravel().tolist()]
    return values[0] if values and all(value == values[0] for value in values) else values


def _bound_from_json(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if not isinstance(value, list):
        return np.full(shape, float(value) if isinstance(value, str) else value, dtype)
    return np.array([float(v) if isinstance(v, str) else v for v in value], dtype).reshape(shape)


def observation_dtype(space: spaces.Box, *, normalized: bool = False) -> np.dtype[Any]:
    """Return the dtype of observations in the batch.

    Integers keep the environment's dtype (uint8 stays uint8), but those that PyTorch has no kernels
    for become ones that hold them: uint16 int32, uint32 int64, and uint64, which no integer holds,
    float32. Every floating-point dtype becomes float32, float64 included, and so does whatever is
    normalised.
    """
    if normalized or space.dtype.kind == "f":
        return np.dtype(np.float32)
    return np.dtype(_HELD_AS.get(space.dtype.name, space.dtype))


def observation_spec(space: spaces.Box, num_envs: int, *, normalized: bool = False) -> TensorSpec:
    """Return the TorchRL spec of observations ``[num_envs, *space.shape]``.

    It has no bounds: environments do return values outside the ones they declare.
    """
    dtype = torch.from_numpy(np.empty(0, observation_dtype(space, normalized=normalized))).dtype
    return Unbounded(shape=(num_envs, *space.shape), dtype=dtype, device="cpu")


def action_spec(
    space: ActionSpace, num_envs: int, *, squash: bool = False, scale: bool = False
) -> TensorSpec:
    """Return the TorchRL spec of the actions a policy gives: int64 ``[num_envs]`` (Discrete) or
    ``[num_envs, *space.shape]`` (MultiDiscrete, MultiBinary), or float32 of that shape.

    Discrete actions count from 0 whatever the space's start is. Box actions are unbounded where
    they are squashed or the space has an infinite bound, and within [-1, 1] where they are scaled.
    """
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n), shape=(num_envs,), dtype=torch.int64, device="cpu")
    shape = (num_envs, *space.shape)
    if isinstance(space, DISCRETE):
        counts = torch.from_numpy(np.broadcast_to(choices(space), shape).copy())
        return MultiCategorical(
            counts, shape=shape, dtype=torch.int64, device="cpu", remove_singleton=False
        )
    if scale:
        return Bounded(-1.0, 1.0, shape=shape, dtype=torch.float32, device="cpu")
    if squash or not space.is_bounded("both"):
        return Unbounded(shape=shape, dtype=torch.float32, device="cpu")
    low, high = (
        torch.from_numpy(np.asarray(bound, np.float32)).expand(shape)
        for bound in (space.low, space.high)
    )
    return Bounded(low, high, shape=shape, dtype=torch.float32, device="cpu")


class ActionMap:
    """Turns a policy's actions into the environment's.

    Discrete actions get the space's ``start`` added, MultiDiscrete ones too, each its own. Box
    actions are clipped to the bounds, or, when ``squash`` is set, taken through tanh and scaled
    onto them: the policy then samples the unbounded argument of the tanh. With ``scale`` the policy
    gives numbers in [-1, 1], which are scaled onto the bounds, each dimension by its own.

    A Box of integers: numbers that are clipped are first rounded to the nearest integer (halves to
    the even one); those that are scaled give every integer an equal share of [-1, 1].
    """

    def __init__(self, space: ActionSpace, *, squash: bool = False, scale: bool = False) -> None:
        """Prepare the map.

        Raises:
            UserError: ``squash`` or ``scale`` with an infinite bound, or ``squash`` with
                discrete actions.
        """
        self.space = space
        self.squash = squash
        self.dtype: np.dtype[Any] = np.dtype(space.dtype)
        self.shape: tuple[int, ...] = tuple(space.shape or ())
        """Of one of a policy's actions."""
        if isinstance(space, DISCRETE):
            if squash:
                kind = type(space).__name__
                raise UserError(f"squashed actions need a Box action space, not {kind}.")
            self._convert = self._shift_each
            self._start: Any = getattr(space, "start", 0)  # MultiBinary has none
            if isinstance(space, spaces.Discrete):
                self._convert, self._start = self._shift, int(space.start)
            return
        if (squash or scale) and not space.is_bounded("both"):
            kind = "squashed" if squash else "scaled"
            raise UserError(f"{kind} actions need finite bounds, and {space} has infinite ones.")
        self._low, self._high = space.low, space.high
        integers = self.dtype.kind != "f"
        # float64: the span of finite float32 bounds may overflow float32.
        self._offset = space.low.astype(np.float64)
        self._span = space.high.astype(np.float64) - self._offset + integers
        self._bounded = bool(np.isfinite(space.low).any() or np.isfinite(space.high).any())
        clip = self._round if integers else self._clip
        scaled = self._scale_integers if integers else self._scale
        self._scaled = scaled
        self._convert = self._squash if squash else scaled if scale else clip

    def to_env(self, action: Array) -> Array:
        """Return ``action`` ``[N, *act]`` as a new array of the space's dtype, within its bounds.

        Raises:
            ValueError: the actions have another shape than ``[N, *act]``.
        """
        if action.shape[1:] != self.shape:
            raise ValueError(f"actions of shape {action.shape} do not fit [N, *{self.shape}].")
        return self._convert(action)

    def taken(self, action: Array, *, single: bool) -> Any:
        """Return a policy's actions ``[N, *act]`` as an environment takes them; of a single one,
        the first.
        """
        converted = self.to_env(action)
        return converted[0] if single else converted

    def zeros(self, count: int) -> Array:
        """Return what ``count`` zeros of a policy become: actions within the space, without a draw
        from its generator.
        """
        kind = np.int64 if isinstance(self.space, DISCRETE) else np.float32
        return self.to_env(np.zeros((count, *self.shape), kind))

    def _shift(self, action: Array) -> Array:
        return action + self._start

    def _shift_each(self, action: Array) -> Array:
        return (action + self._start).astype(self.dtype)

    def _clip(self, action: Array) -> Array:
        converted = action.astype(self.dtype)
        return converted.clip(self._low, self._high, out=converted) if self._bounded else converted

    def _squash(self, action: Array) -> Array:
        return self._scaled(np.tanh(action, dtype=np.float64))

    def _scale(self, action: Array) -> Array:
        unit = (action.astype(np.float64) + 1.0) * 0.5
        # Rounding to the space's dtype can step over a bound by one unit.
        return (self._offset + unit * self._span).astype(self.dtype).clip(self._low, self._high)

    def _scale_integers(self, action: Array) -> Array:
        unit = (action.astype(np.float64) + 1.0) * 0.5
        return self._integers(np.floor(self._offset + unit * self._span))

    def _round(self, action: Array) -> Array:
        return self._integers(np.rint(action.astype(np.float64)))

    def _integers(self, whole: Array) -> Array:
        low, high = self._low, self._high
        with np.errstate(invalid="ignore"):  # what the cast cannot hold is outside the bounds
            inside = whole.astype(self.dtype).clip(low, high)
        # Compared before the cast, so that no number wraps around.
        return np.where(whole >= high, high, np.where(whole <= low, low, inside))
