"""Encoders of images: uint8, or floats that are normalised already, in; features out. Scaling to
[0, 1] happens here and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from rl_training.errors import UserError
from rl_training.models.linear import linear

Precision = Literal["float32", "bfloat16"]
_COLOURS = (1, 3, 4)
_FEW_IMAGES = 4
"""Below this many, converting the weights to half the bits costs more than it saves."""
_AT_ONCE = 1024
"""Images encoded together where no gradient is asked for. The layers of a whole rollout of Procgen,
16,384 images, would take 9 GB."""
_TURNED = 16
"""Images turned together from channels first to channels last."""
_NATURE_SIZE, _IMPALA_SIZE = 512, 256
_NATURE_LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Channels, kernel and stride."""
_NATURE_PIXELS = 36
"""What its layers leave one pixel of."""
_IMPALA_CHANNELS = (16, 32, 32)


def is_image(shape: Sequence[int]) -> bool:
    """Return whether observations of this shape are taken for images: three dimensions."""
    return len(shape) == 3


def is_channels_first(shape: Sequence[int]) -> bool:
    """Return whether an image's channels come first: unless only the last dimension can be colours.

    So ``(64, 64, 3)`` has them last, ``(4, 84, 84)`` and ``(3, 64, 64)`` first.
    """
    return not (shape[-1] in _COLOURS and shape[0] > shape[-1])


def natural_encoder(shape: Sequence[int]) -> str:
    """Return the name of the encoder that images of this shape get unless another one is named:
    ``nature``, or of images that are too small for it ``impala``.
    """
    sides = shape[1:] if is_channels_first(shape) else shape[:2]
    return "nature" if min(sides) >= _NATURE_PIXELS else "impala"


class ImageEncoder(nn.Module):
    """Base of the encoders: ``[*batch, *observation_shape]`` to ``[*batch, output_size]``.

    Args:
        observation_shape: of one image, channels first or last; see `is_channels_first`.
        precision: ``bfloat16`` computes convolutions and products of 4 images or more in half the
            bits, by autocast; parameters and features stay float32, and so does what is exported.
        channels_last: lay tensors out pixel by pixel; None: where it is faster on a CPU. In
            float32 the gradients then take two thirds of the time. In bfloat16 those of the nature
            encoder would take more, and those of impala take half.
        scale: what numbers are multiplied by; None: 1/255. 1 leaves floats alone.
    """

    output_size: int
    head_norm: float | None = None
    """Of the first weights of each output that is computed from the features; None: PyTorch's."""
    last_in_bfloat16 = False

    def __init__(
        self,
        *,
        observation_shape: Sequence[int],
        precision: Precision = "float32",
        channels_last: bool | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        if not is_image(observation_shape):
            raise UserError(
                f"model.encoder: observations of shape {tuple(observation_shape)} are no images of "
                "three dimensions; use encoder 'mlp'."
            )
        if 0 in observation_shape:
            raise UserError(f"images of shape {tuple(observation_shape)} have no pixels.")
        self.channels_first = is_channels_first(observation_shape)
        height, width, channels = observation_shape
        if self.channels_first:
            channels, height, width = observation_shape
        self.image_shape = (channels, height, width)
        self.precision = precision
        self.scale = 1.0 / 255.0 if scale is None else scale
        faster = precision == "float32" or self.last_in_bfloat16
        last = faster if channels_last is None else channels_last
        self.memory_format = torch.channels_last if last else torch.contiguous_format

    def forward(self, observation: Tensor) -> Tensor:
        """Return the features, float32."""
        batch = observation.shape[:-3]
        images = observation.reshape(-1, *observation.shape[-3:])
        if not self.channels_first:
            images = images.permute(0, 3, 1, 2)
        whole = torch.is_grad_enabled() or torch.compiler.is_compiling()
        if whole or len(images) <= _AT_ONCE:
            features = self._features(images)
        else:
            features = torch.cat([self._features(part) for part in torch.split(images, _AT_ONCE)])
        return features.reshape(*batch, self.output_size)

    def _features(self, images: Tensor) -> Tensor:
        exact = self.precision == "float32" or torch.compiler.is_exporting()
        if exact or len(images) < _FEW_IMAGES:
            return self.encode(self._scaled(images, torch.float32))
        with torch.autocast(images.device.type, torch.bfloat16):
            return self.encode(self._scaled(images, torch.bfloat16)).float()

    def _scaled(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        turns = self.channels_first and self.memory_format == torch.channels_last
        on_cpu = images.device.type == "cpu" and not torch.compiler.is_compiling()
        if turns and on_cpu and images.dtype == torch.uint8:
            return _turned(images, dtype, self.scale)
        # In one pass: the dtype's own conversion first would touch the memory twice.
        converted = images.to(dtype, memory_format=self.memory_format)
        return converted if self.scale == 1.0 else converted.mul_(self.scale)

    def encode(self, images: Tensor) -> Tensor:
        """Return features ``[B, output_size]`` of images ``[B, C, H, W]`` in [0, 1]."""
        raise NotImplementedError


class NatureCNN(ImageEncoder):
    """Three convolutions and a dense layer, rectified (Mnih et al. 2015).

    Args:
        observation_shape: as `ImageEncoder`.
        output_size: units of the dense layer.
        **options: of `ImageEncoder`.

    Raises:
        UserError: the image is smaller than 36 pixels in one direction.
    """

    def __init__(
        self,
        *,
        observation_shape: Sequence[int],
        output_size: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(observation_shape=observation_shape, **options)
        channels, *size = self.image_shape
        layers = []
        for outputs, kernel, stride in _NATURE_LAYERS:
            layers.append(nn.Conv2d(channels, outputs, kernel, stride))
            channels = outputs
            size = [(side - kernel) // stride + 1 for side in size]
        if min(size) < 1:
            raise UserError(
                f"model.encoder: images of {self.image_shape[1]} x {self.image_shape[2]} pixels "
                f"are too small for the nature encoder, which needs {_NATURE_PIXELS} x "
                f"{_NATURE_PIXELS}; use 'impala' or 'mlp'."
            )
        self.convolutions = nn.ModuleList(layers)
        self.output_size = _NATURE_SIZE if output_size is None else output_size
        self.dense = nn.Linear(channels * math.prod(size), self.output_size)

    def encode(self, images: Tensor) -> Tensor:
        """Return the features ``[B, output_size]``."""
        first, second, last = self.convolutions
        hidden = last(second(first(images).relu_()).relu_())
        # Rectified once it is flat: the gradient then has the layout of the dense layer's.
        return linear(hidden.flatten(1).relu_(), self.dense.weight, self.dense.bias).relu_()


class ImpalaCNN(ImageEncoder):
    """Three blocks of a convolution, pooling and two residual pairs (Espeholt et al. 2018), with
    the first weights of PPG's authors (Cobbe et al. 2020): rows of fixed norm, biases zero.

    Args:
        observation_shape: as `ImageEncoder`.
        output_size: units of the dense layer.
        **options: of `ImageEncoder`.
    """

    head_norm = 0.1
    last_in_bfloat16 = True

    def __init__(
        self,
        *,
        observation_shape: Sequence[int],
        output_size: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(observation_shape=observation_shape, **options)
        channels, *size = self.image_shape
        blocks = []
        for outputs in _IMPALA_CHANNELS:
            blocks.append(_ImpalaBlock(channels, outputs))
            channels = outputs
            size = [-(-side // 2) for side in size]
        self.blocks = nn.ModuleList(blocks)
        self.output_size = _IMPALA_SIZE if output_size is None else output_size
        self.dense = nn.Linear(channels * math.prod(size), self.output_size)
        fix_norm(self.dense, 1.4)

    def encode(self, images: Tensor) -> Tensor:
        """Return the features ``[B, output_size]``."""
        hidden = images
        for block in self.blocks:
            hidden = block(hidden)
        return linear(hidden.relu().flatten(1), self.dense.weight, self.dense.bias).relu_()


class _ImpalaBlock(nn.Module):
    """A convolution, pooling to half the size, and two residual pairs of convolutions."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.residual = nn.ModuleList(nn.Conv2d(outputs, outputs, 3, padding=1) for _ in range(4))
        fix_norm(self.first, 1.0)
        # What the blocks, and the pairs in one, add up to keeps the variance of one layer.
        each = math.sqrt(1 / math.sqrt(len(_IMPALA_CHANNELS)) / math.sqrt(2))
        for layer in self.residual:
            fix_norm(layer, each)

    def forward(self, images: Tensor) -> Tensor:
        hidden = functional.max_pool2d(self.first(images), 3, stride=2, padding=1)
        for index in (0, 2):
            inner = self.residual[index](hidden.relu())
            hidden = hidden + self.residual[index + 1](inner.relu_())
        return hidden


def _turned(images: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """Return uint8 images ``[B, C, H, W]`` scaled, and channels last in memory.

    A few are made numbers and then turned, while they are in the cache: to turn bytes, or numbers
    that no cache holds, takes twice as long. Inductor's loop needs no such help.
    """
    turned = torch.empty(images.shape, dtype=dtype, memory_format=torch.channels_last)
    parts = torch.split(turned, _TURNED), torch.split(images, _TURNED)
    for into, part in zip(*parts, strict=True):
        into.copy_(part.to(dtype).mul_(scale))
    return turned


def fix_norm(layer: nn.Module, norm: float) -> None:
    """Scale the weights of every output of a layer to one Euclidean norm; set biases to zero."""
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    with torch.no_grad():
        flat = layer.weight.flatten(1)
        layer.weight.mul_((norm / flat.norm(dim=1)).view(-1, *[1] * (layer.weight.ndim - 1)))
        assert layer.bias is not None
        layer.bias.zero_()


ENCODERS: dict[str, type[ImageEncoder]] = {"nature": NatureCNN, "impala": ImpalaCNN}
