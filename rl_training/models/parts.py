"""Observations with parts: an encoder for each by what it is, and hidden layers on all of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rl_training.envs.layout import Layout, Part
from rl_training.errors import UserError, nearest
from rl_training.models.cnn import (
    ENCODERS,
    is_channels_first,
    natural_encoder,
)
from rl_training.models.mlp import MLP
from rl_training.registry import import_object

if TYPE_CHECKING:
    from rl_training.config import ModelConfig

Options = Mapping[str, Any]


class Scaled(nn.Module):
    """Numbers as they are, and an image's pixels in a row, scaled: ``[*batch, *shape]`` to
    ``[*batch, output_size]``.
    """

    def __init__(self, *, dimensions: int, output_size: int, scale: float | None) -> None:
        super().__init__()
        self._dimensions, self._scale = dimensions, scale
        self.output_size = output_size

    def forward(self, observation: Tensor) -> Tensor:
        """Return the numbers, float32."""
        numbers = observation.float()
        if self._dimensions > 1:
            numbers = numbers.flatten(-self._dimensions)
        return numbers if self._scale in (None, 1.0) else numbers * self._scale


class Embedding(nn.Module):
    """A table for each number of a one-hot part: ``[*batch, sum(counts)]`` to ``[*batch,
    output_size]``.

    A one-hot row times a matrix is a row of the matrix. Of a number of n values there are
    ``min(50, (n + 1) // 2)`` columns.

    Args:
        counts: how many values each number has.
    """

    def __init__(self, *, counts: Sequence[int]) -> None:
        super().__init__()
        sizes = [min(50, (count + 1) // 2) for count in counts]
        self._counts = list(counts)
        self.tables = nn.ModuleList(
            nn.Linear(count, size, bias=False) for count, size in zip(counts, sizes, strict=True)
        )
        self.output_size = sum(sizes)

    def forward(self, observation: Tensor) -> Tensor:
        """Return the tables' rows, one after the other."""
        rows = torch.functional.split(observation, self._counts, -1)
        return torch.cat([table(row) for table, row in zip(self.tables, rows, strict=True)], -1)


class PartsEncoder(nn.Module):
    """``[*batch, size]`` to ``[*batch, output_size]``: the features of every part one after the
    other, then hidden layers.

    Args:
        layout: where the parts stand.
        encoders: of the parts that have one, by name; the others go in as they are.
        joint: of all features together, from how many there are to a module with an
            ``output_size``.
    """

    def __init__(
        self,
        *,
        layout: Layout,
        encoders: Mapping[str, nn.Module],
        joint: Callable[[int], nn.Module],
    ) -> None:
        super().__init__()
        self._layout = layout
        self.encoders = nn.ModuleList(encoders.values())
        plain = [part.columns for part in layout.parts if part.name not in encoders]
        self._plain = _merged(plain)
        width = sum(columns.stop - columns.start for columns in self._plain)
        width += sum(_size(encoder, name) for name, encoder in encoders.items())
        self._parts = [part for part in layout.parts if part.name in encoders]
        self.joint = joint(width)
        self.output_size = _size(self.joint, "joint")

    def forward(self, observation: Tensor) -> Tensor:
        """Return the features."""
        numbers = self._layout.numbers(observation)
        features = [numbers[..., columns] for columns in self._plain]
        for part, encoder in zip(self._parts, self.encoders, strict=True):
            columns = (observation if part.stored == "bytes" else numbers)[..., part.columns]
            if part.kind != "one-hot":
                columns = columns.reshape(*columns.shape[:-1], *(part.shape or (1,)))
            features.append(encoder(columns))
        together = features[0] if len(features) == 1 else torch.cat(features, -1)
        joined: Tensor = self.joint(together)
        return joined


def _merged(columns: Sequence[slice]) -> list[slice]:
    """Return slices with neighbours put together."""
    merged: list[slice] = []
    for each in sorted(columns, key=lambda each: each.start):
        if merged and merged[-1].stop == each.start:
            merged[-1] = slice(merged[-1].start, each.stop)
        else:
            merged.append(each)
    return merged


def _size(encoder: nn.Module, name: str) -> int:
    size = getattr(encoder, "output_size", None)
    if not isinstance(size, int):
        raise UserError(
            f"model.encoders.{name}: {type(encoder).__name__} needs an integer attribute "
            "'output_size'."
        )
    return size


def has_own_encoders(layout: Layout, encoders: Mapping[str, str]) -> bool:
    """Return whether observations need a `PartsEncoder`: an image stands among other parts, or an
    encoder is named.

    Raises:
        UserError: an encoder is named for a part that is not there.
    """
    names = [part.name for part in layout.parts]
    for name in encoders:
        if layout.whole:
            raise UserError(
                "model.encoders: this environment's observations have no parts; set model.encoder."
            )
        if name not in names:
            raise UserError(
                f"model.encoders: observations have no part {name!r}.{nearest(name, names)} "
                f"Known: {', '.join(names)}."
            )
    return bool(encoders) or (bool(layout.images) and not layout.whole)


def chosen_encoder(part: Part, encoder: str, encoders: Mapping[str, str]) -> str:
    """Return the name of a part's encoder, ``auto`` resolved.

    Args:
        part: of an observation.
        encoder: ``model.encoder``: of all images; ``mlp`` takes their pixels in a row.
        encoders: ``model.encoders``: of single parts.

    Raises:
        UserError: a part that has no encoder of its own accord, or one that does not fit.
    """
    named = encoders.get(part.name, "auto")
    if named == "auto":
        if part.kind == "image":
            fallback = natural_encoder(part.shape) if encoder == "auto" else encoder
            return "identity" if fallback == "mlp" else fallback
        if len(part.shape) >= 3:
            raise UserError(
                f"the observation's part {part.name!r}, {part.dtype} of shape {part.shape}, is no "
                "image (uint8, or floats with bounds within [-1, 1]): set "
                f"model.encoders.{part.name} to 'identity', 'mlp' or 'module:Class'."
            )
        return "identity"
    if named in ENCODERS and part.kind != "image":
        raise UserError(
            f"model.encoders.{part.name}: {named} takes images, and this part is {part.dtype} of "
            f"shape {part.shape}."
        )
    if named == "embedding" and part.kind != "one-hot":
        raise UserError(
            f"model.encoders.{part.name}: an embedding is for Discrete and MultiDiscrete parts."
        )
    return named


def parts_encoder_factory(
    *,
    layout: Layout,
    encoder: str,
    encoders: Mapping[str, str],
    hidden_sizes: Sequence[int],
    activation: str,
    **image_options: Any,
) -> Callable[[], nn.Module]:
    """Return a function that makes a new `PartsEncoder` at each call.

    Args:
        layout: of the observations.
        encoder: ``model.encoder``, of all images that have none of their own.
        encoders: ``model.encoders``, by name of the part.
        hidden_sizes: of the layers on all features, and of every ``mlp``.
        activation: of those.
        **image_options: of `rl_training.models.cnn.ImageEncoder`, and ``output_size``.

    Raises:
        UserError: an encoder that does not fit its part, or a class that is none.
    """
    if ":" in encoder:
        raise UserError(
            "model.encoder: observations with images among their parts take no class of your own "
            "as a whole; name one for each part in model.encoders."
        )
    layers: Options = {"hidden_sizes": tuple(hidden_sizes), "activation": activation}
    makers: dict[str, Callable[[], nn.Module]] = {}
    for part in layout.parts:
        name = chosen_encoder(part, encoder, encoders)
        if name == "identity" and part.stored == "numbers":
            continue
        makers[part.name] = _maker(part, name, layers, image_options)

    def make() -> nn.Module:
        return PartsEncoder(
            layout=layout,
            encoders={name: maker() for name, maker in makers.items()},
            joint=lambda width: MLP(input_shape=(width,), **layers),
        )

    return make


def _maker(
    part: Part, name: str, layers: Options, image_options: Options
) -> Callable[[], nn.Module]:
    shape = part.shape or (1,)
    if name == "identity":
        size = part.columns.stop - part.columns.start
        return functools.partial(Scaled, dimensions=len(shape), output_size=size, scale=part.scale)
    if name in ENCODERS:
        return functools.partial(
            ENCODERS[name], observation_shape=shape, scale=part.scale, **image_options
        )
    if name == "embedding":
        return functools.partial(Embedding, counts=part.counts)
    if name == "mlp":
        width = part.columns.stop - part.columns.start
        return functools.partial(MLP, input_shape=(width,) if part.counts else shape, **layers)
    cls = import_object(name)
    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        raise UserError(f"model.encoders.{part.name}: {name} must be a torch.nn.Module.")
    width = part.columns.stop - part.columns.start
    return functools.partial(cls, observation_shape=(width,) if part.counts else shape, **layers)


def describe_parts(layout: Layout, model: ModelConfig) -> list[str]:
    """Return a line for every part that has an encoder of its own, and for every image: what it is
    taken for, and what reads it.
    """
    lines = []
    encoder, encoders = model.encoder, model.encoders
    for part in layout.parts:
        name = chosen_encoder(part, encoder, encoders) if not layout.whole else encoder
        if layout.whole and encoder == "auto" and part.kind == "image":
            name = natural_encoder(part.shape)
        # With masks beside it, what the environment observes is the part "observation" itself.
        own = part.name.partition(".")[0] == "observation"
        what = part.name if own else f"observation {part.name}".rstrip()
        if part.kind == "image":
            lines.append(f"{what}: {image_words(part)}, encoder {name}")
        elif part.name in encoders:
            lines.append(f"{what}: {part.kind} of shape {part.shape}, encoder {name}")
    return lines


def image_words(part: Part) -> str:
    """Return what an image is taken for: size, channels and where they stand, scaling."""
    first = is_channels_first(part.shape)
    channels, height, width = part.shape if first else (part.shape[-1], *part.shape[:2])
    plural = "s" if channels > 1 else ""
    values = "0 to 255, scaled to [0, 1]" if part.dtype == "uint8" else "normalised already"
    return (
        f"an image of {height} x {width} pixels, {channels} channel{plural} "
        f"{'first' if first else 'last'}, {values}"
    )
