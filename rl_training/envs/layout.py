"""What stands where in an observation as a policy gets it: the parts, and what each is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.envs.flatten import FLOAT_BYTES, Flattening, choices, is_pixels
from rl_training.envs.parts import Path, leaves_of

Kind = Literal["numbers", "bits", "one-hot", "image"]
_PIXEL_SCALE = 1.0 / 255.0


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of an observation that has none itself."""

    name: str
    """Keys and indices that lead to it, ``inside.pair.0``; empty for an observation without
    parts."""
    kind: Kind
    shape: tuple[int, ...]
    """Of its space."""
    dtype: str
    """Of its space, by name."""
    columns: slice
    """Where it stands among the vector's numbers; where ``stored`` says bytes, among its bytes."""
    stored: Literal["numbers", "bytes"] = "numbers"
    counts: tuple[int, ...] = ()
    """Of what is one-hot, how many values each number has."""
    scale: float | None = None
    """Of an image, what its numbers are multiplied by: 1/255 of bytes, 1 of those that are
    normalised already."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The parts of an observation, in order.

    Args:
        parts: at least one.
        floats: how many numbers of float32 the vector begins with.
        packed: whether it is a vector of bytes; see `rl_training.envs.flatten.Flattening`.
        whole: whether the observation is a Box, which stays as it is.
    """

    parts: tuple[Part, ...]
    floats: int
    packed: bool = False
    whole: bool = False

    @property
    def images(self) -> list[Part]:
        """The parts that are images."""
        return [part for part in self.parts if part.kind == "image"]

    def numbers(self, observation: Tensor) -> Tensor:
        """Return the numbers ``[*batch, floats]`` of observations ``[*batch, size]``."""
        if not self.packed:
            return observation
        return observation[..., : self.floats * FLOAT_BYTES].view(torch.float32)

    def split(self, observation: Tensor) -> dict[str, Tensor]:
        """Return the parts of observations ``[*batch, size]`` by name: images ``[*batch, *shape]``,
        all others ``[*batch, columns]``.
        """
        numbers = self.numbers(observation)
        result = {}
        for part in self.parts:
            whole = observation if part.stored == "bytes" else numbers
            columns = whole if self.whole else whole[..., part.columns]
            if part.kind == "image" and not self.whole:
                columns = columns.reshape(*columns.shape[:-1], *part.shape)
            result[part.name] = columns
        return result


def layout_of(space: Any, *, normalized: bool = False) -> Layout:
    """Return the layout of what a policy reads of observations of ``space``.

    Args:
        space: one that `rl_training.envs.flatten.require_observable` accepts.
        normalized: whether running statistics scale it: then a Box is no image any more.
    """
    if isinstance(space, spaces.Box):
        part = _part("", space, slice(0, int(np.prod(space.shape))))
        if normalized and part.kind == "image":
            part = dataclasses.replace(part, kind="numbers", scale=None)
        return Layout(parts=(part,), floats=0, whole=True)
    flattening = Flattening(space)
    parts = tuple(
        _part(name_of(path), each, flattening.columns(path)) for path, each in leaves_of(space)
    )
    return Layout(parts=parts, floats=flattening.floats, packed=flattening.packed)


def observation_kind(space: Any) -> str:
    """Return what `rl_training.registry.OBSERVATION_SPACES` calls an observation space: its class,
    or that it is an image or has images among its parts.
    """
    layout = layout_of(space)
    if layout.images:
        return "image" if layout.whole else "image among parts"
    return type(space).__name__


def name_of(path: Path) -> str:
    """Return the name of a part: the keys and indices that lead to it, with dots between."""
    return ".".join(map(str, path))


def _part(name: str, space: Any, columns: slice) -> Part:
    facts: Mapping[str, Any] = {
        "name": name,
        "shape": tuple(space.shape),
        "dtype": space.dtype.name,
        "columns": columns,
    }
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        counts = tuple(choices(space).reshape(-1).tolist())
        return Part(kind="one-hot", counts=counts, **facts)
    if isinstance(space, spaces.MultiBinary):
        return Part(kind="bits", **facts)
    if is_pixels(space):
        return Part(kind="image", scale=_PIXEL_SCALE, stored="bytes", **facts)
    if is_normalized_image(space):
        return Part(kind="image", scale=1.0, **facts)
    return Part(kind="numbers", **facts)


def is_normalized_image(space: spaces.Box) -> bool:
    """Return whether a Box is an image that needs no scaling: floats, three dimensions, bounds
    within [-1, 1].
    """
    return (
        len(space.shape) == 3
        and space.dtype.kind == "f"
        and bool((space.low >= -1).all() and (space.high <= 1).all())
    )
