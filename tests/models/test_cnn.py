from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn
from torch.nn import functional

from rl_training.errors import UserError
from rl_training.models.actor_critic import MLPPPGModel
from rl_training.models.build import encoder_factory
from rl_training.models.cnn import ImageEncoder, ImpalaCNN, NatureCNN, is_channels_first
from rl_training.models.mlp import orthogonal_


def images(*shape: int) -> torch.Tensor:
    draws = torch.Generator().manual_seed(0)
    return torch.randint(256, shape, dtype=torch.uint8, generator=draws)


def make(encoder: str, shape: tuple[int, ...], dtype: str = "uint8", **options: Any) -> nn.Module:
    return encoder_factory(
        encoder=encoder,
        observation_shape=shape,
        hidden_sizes=(8,),
        activation="tanh",
        observation_dtype=dtype,
        **options,
    )()


def test_the_nature_network_is_the_paper_s() -> None:
    encoder: Any = NatureCNN(observation_shape=(4, 84, 84))
    first, second, third = encoder.convolutions
    observation = images(2, 4, 84, 84)
    hidden = observation / 255
    for layer, stride in ((first, 4), (second, 2), (third, 1)):
        hidden = functional.conv2d(hidden, layer.weight, layer.bias, stride).relu()
    assert hidden.shape == (2, 64, 7, 7)
    expected = (hidden.flatten(1) @ encoder.dense.weight.T + encoder.dense.bias).relu()
    torch.testing.assert_close(encoder(observation), expected)
    assert encoder.output_size == 512
    assert sum(p.numel() for p in encoder.parameters()) == 1_684_128


def test_the_impala_network_has_the_authors_first_weights_and_size() -> None:
    encoder: Any = ImpalaCNN(observation_shape=(64, 64, 3))
    assert encoder(images(5, 64, 64, 3)).shape == (5, 256)
    each = math.sqrt(1 / math.sqrt(3) / math.sqrt(2))
    assert math.isclose(each, 0.638943, rel_tol=1e-5)
    for block in encoder.blocks:
        norms = [block.first.weight.flatten(1).norm(dim=1)]
        norms += [layer.weight.flatten(1).norm(dim=1) / each for layer in block.residual]
        torch.testing.assert_close(torch.cat(norms), torch.ones(sum(map(len, norms))))
    torch.testing.assert_close(encoder.dense.weight.norm(dim=1), torch.full((256,), 1.4))
    assert encoder.dense.in_features == 32 * 8 * 8


@pytest.mark.parametrize(("encoder", "norm"), [("impala", 0.1), ("nature", None)])
def test_the_impala_network_has_the_authors_first_weights_in_the_heads_too(
    encoder: str, norm: float | None
) -> None:
    images = Box(0, 255, (3, 64, 64), np.uint8)
    model = MLPPPGModel.for_spaces(images, Discrete(15), encoder=encoder, orthogonal_init=False)
    heads = [model.value_head, model.auxiliary_head, *model.action_head.modules()]
    layers = [layer for layer in heads if isinstance(layer, nn.Linear)]
    assert len(layers) == 3
    for layer in layers:
        fixed = torch.full((layer.out_features,), norm or 0.0)
        assert torch.allclose(layer.weight.norm(dim=1), fixed) == (norm is not None)
        assert layer.bias.any() == (norm is None)
    orthogonal = MLPPPGModel.for_spaces(images, Discrete(15), encoder=encoder)
    assert math.isclose(float(orthogonal.value_head.weight.detach().norm()), 1.0, rel_tol=1e-5)


def test_which_memory_layout_is_the_default() -> None:
    for cls, half in ((NatureCNN, torch.contiguous_format), (ImpalaCNN, torch.channels_last)):
        made = cls(observation_shape=(3, 64, 64), precision="bfloat16")
        assert made.memory_format is half
        assert cls(observation_shape=(3, 64, 64)).memory_format is torch.channels_last
        chosen = cls(observation_shape=(3, 64, 64), channels_last=False)
        assert chosen.memory_format is torch.contiguous_format


def test_a_residual_pair_adds_to_what_it_reads() -> None:
    encoder: Any = ImpalaCNN(observation_shape=(3, 16, 16))
    for block in encoder.blocks:
        for layer in block.residual:
            nn.init.zeros_(layer.weight)
    observation = images(2, 3, 16, 16)
    hidden = observation / 255
    for block in encoder.blocks:
        hidden = functional.max_pool2d(block.first(hidden), 3, 2, 1)
    expected = encoder.dense(hidden.relu().flatten(1)).relu()
    torch.testing.assert_close(encoder(observation), expected)


@pytest.mark.parametrize("cls", [NatureCNN, ImpalaCNN])
def test_channels_may_come_last_and_batches_have_any_shape(cls: Any) -> None:
    torch.manual_seed(0)
    first = cls(observation_shape=(3, 40, 48), output_size=16)
    torch.manual_seed(0)
    last = cls(observation_shape=(40, 48, 3), output_size=16)
    observation = images(2, 5, 3, 40, 48)
    features = first(observation)
    assert features.shape == (2, 5, 16)
    torch.testing.assert_close(last(observation.permute(0, 1, 3, 4, 2)), features)
    torch.testing.assert_close(first(observation[0, 0]), features[0, 0])


def test_which_dimension_holds_the_channels() -> None:
    assert is_channels_first((4, 84, 84)) and is_channels_first((3, 64, 64))
    assert is_channels_first((12, 84, 84)) and is_channels_first((1, 3, 3))
    assert not is_channels_first((210, 160, 3)) and not is_channels_first((84, 84, 1))


@pytest.mark.parametrize("cls", [NatureCNN, ImpalaCNN])
def test_half_precision_and_memory_layout_change_rounding_alone(cls: Any) -> None:
    observation = images(8, 4, 84, 84)
    made: dict[str, ImageEncoder] = {}
    variants: dict[str, dict[str, Any]] = {
        "plain": {"channels_last": False},
        "bfloat16": {"precision": "bfloat16"},
        "channels_last": {"channels_last": True},
    }
    for name, options in variants.items():
        torch.manual_seed(1)
        made[name] = cls(observation_shape=(4, 84, 84), **options)
        orthogonal_(made[name], math.sqrt(2))
    expected = made["plain"](observation)
    torch.testing.assert_close(made["channels_last"](observation), expected, atol=1e-3, rtol=1e-3)
    half = made["bfloat16"](observation)
    assert half.dtype == torch.float32 and not torch.equal(half, expected)
    assert (half - expected).abs().max() < 0.03 * expected.abs().max()
    half.sum().backward()
    assert all(
        p.grad is not None and p.grad.dtype == torch.float32 for p in made["bfloat16"].parameters()
    )


def test_without_gradients_many_images_are_encoded_in_pieces() -> None:
    class Counted(NatureCNN):
        counts: ClassVar[list[int]] = []

        def encode(self, images: torch.Tensor) -> torch.Tensor:
            self.counts.append(len(images))
            return super().encode(images)

    encoder = Counted(observation_shape=(1, 36, 36), output_size=8)
    observation = images(2, 1025, 1, 36, 36)
    whole = encoder(observation)
    with torch.no_grad():
        pieces = encoder(observation)
    assert Counted.counts == [2050, 1024, 1024, 2]
    torch.testing.assert_close(pieces, whole)


@pytest.mark.parametrize("count", [0, 1, 16, 35])
@pytest.mark.parametrize("channels_last", [False, True])
def test_every_byte_is_scaled_once(count: int, channels_last: bool) -> None:
    class Seen(NatureCNN):
        def encode(self, images: torch.Tensor) -> torch.Tensor:
            self.images = images
            return super().encode(images)

    encoder = Seen(observation_shape=(4, 36, 44), channels_last=channels_last)
    observation = images(count, 4, 36, 44)
    encoder(observation)
    assert torch.equal(encoder.images, observation.float() * (1 / 255))
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert encoder.images.is_contiguous(memory_format=layout)


def test_orthogonal_weights_of_gain_root_two() -> None:
    encoder: Any = NatureCNN(observation_shape=(4, 84, 84))
    orthogonal_(encoder, math.sqrt(2))
    for layer in (*encoder.convolutions, encoder.dense):
        flat = layer.weight.flatten(1)
        torch.testing.assert_close(flat @ flat.T, 2 * torch.eye(len(flat)), atol=1e-5, rtol=0)
        assert not layer.bias.any()


def test_auto_takes_images_of_uint8_alone() -> None:
    assert isinstance(make("auto", (4, 84, 84)), NatureCNN)
    assert isinstance(make("auto", (3, 32, 40)), ImpalaCNN)
    assert isinstance(make("impala", (64, 64, 3), output_size=32), ImpalaCNN)
    with pytest.raises(UserError, match="takes images of uint8"):
        make("auto", (4, 84, 84), "float32")
    with pytest.raises(UserError, match="no images of three dimensions"):
        make("nature", (4,))
    with pytest.raises(UserError, match=r"shape \(3, 0, 8\) have no pixels"):
        make("auto", (3, 0, 8))
    for small in ((3, 35, 40), (40, 35, 3), (7, 7, 3)):
        assert isinstance(make("auto", small), ImpalaCNN)
    assert isinstance(make("auto", (36, 36, 3)), NatureCNN)
    with pytest.raises(UserError, match="36 x 36"):
        make("nature", (3, 32, 40))
    with pytest.raises(UserError, match="more dimensions than an image"):
        make("auto", (2, 4, 84, 84))
    with pytest.raises(UserError, match="allowed: auto, mlp, nature, impala"):
        make("natur", (4, 84, 84))


def test_numbers_that_pixels_become() -> None:
    class Plain(ImageEncoder):
        output_size = 2

        def encode(self, images: torch.Tensor) -> torch.Tensor:
            return images.flatten(1)

    encoder = Plain(observation_shape=(1, 1, 2))
    assert encoder(torch.tensor([[[[0, 255]]]], dtype=torch.uint8)).tolist() == [[0.0, 1.0]]
