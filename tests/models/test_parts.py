"""An encoder for each part of an observation: by what it is, or by name."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from rl_training.config import ModelConfig, config_from_dict
from rl_training.envs.flatten import Flattening
from rl_training.envs.layout import layout_of
from rl_training.errors import UserError
from rl_training.models.build import configured_encoder
from rl_training.models.cnn import ImpalaCNN, NatureCNN
from rl_training.models.mlp import MLP
from rl_training.models.parts import Embedding, Scaled, describe_parts

SPACE = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (36, 40, 3), np.uint8),
        "depth": spaces.Box(0.0, 1.0, (1, 8, 8), np.float32),
        "goal": spaces.MultiDiscrete([5, 3]),
        "state": spaces.Box(-9.0, 9.0, (2, 2), np.float64),
        "switch": spaces.MultiBinary(2),
    }
)


class Half(nn.Module):
    """Half of every number."""

    def __init__(self, *, observation_shape: Any, hidden_sizes: Any, activation: str) -> None:
        super().__init__()
        self.output_size = math.prod(observation_shape)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return observation.flatten(-2) / 2


def build(space: Any = SPACE, **model: Any) -> Any:
    layout = layout_of(space)
    flat = Flattening(space).space
    return configured_encoder(
        ModelConfig(**{"hidden_sizes": [], "feature_size": 4, **model}),
        flat.shape,
        flat.dtype.name,
        layout,
    )()


def observed(count: int = 3) -> tuple[list[Any], torch.Tensor]:
    SPACE.seed(0)
    samples = [SPACE.sample() for _ in range(count)]
    return samples, torch.from_numpy(Flattening(SPACE).rows(samples))


def test_by_default_images_get_networks_and_everything_else_goes_in_as_it_is() -> None:
    encoder = build()
    assert [type(each) for each in encoder.encoders] == [NatureCNN, ImpalaCNN]
    samples, batch = observed()
    features = encoder(batch)
    assert features.shape == (3, 4 + 4 + 8 + 4 + 2) == (3, encoder.output_size)
    # What goes in as it is comes first: goal, state, switch.
    assert features[0, 8:12].tolist() == samples[0]["state"].astype(np.float32).ravel().tolist()
    assert features[0, 12:14].tolist() == samples[0]["switch"].tolist()
    camera = torch.from_numpy(np.stack([each["camera"] for each in samples]))
    torch.testing.assert_close(features[:, 14:18], encoder.encoders[0](camera))
    depth = torch.from_numpy(np.stack([each["depth"] for each in samples]))
    before = depth.clone()
    expected = encoder.encoders[1](depth)
    torch.testing.assert_close(features[:, 18:], expected)
    assert torch.equal(depth, before)
    assert encoder.encoders[1].scale == 1.0 and encoder.encoders[0].scale == 1 / 255


def test_hidden_layers_stand_on_all_features() -> None:
    encoder = build(hidden_sizes=[7], activation="relu")
    assert isinstance(encoder.joint, MLP) and encoder.output_size == 7
    _, batch = observed()
    assert encoder(batch.reshape(1, 3, -1)).shape == (1, 3, 7)
    torch.testing.assert_close(encoder(batch.reshape(1, 3, -1))[0, 2], encoder(batch[2]))


def test_an_encoder_is_named_for_each_part() -> None:
    encoder = build(
        encoders={
            "camera": "impala",
            "depth": "identity",
            "goal": "embedding",
            "state": f"{__name__}:Half",
            "switch": "mlp",
        },
        hidden_sizes=[6],
    )
    kinds = [type(each) for each in encoder.encoders]
    assert kinds == [ImpalaCNN, Embedding, Half, MLP]
    assert encoder.joint.layers[0].in_features == 4 + 64 + (3 + 2) + 4 + 6
    samples, batch = observed()
    goal = layout_of(SPACE).split(batch)["goal"]
    first, second = encoder.encoders[1].tables
    rows = [
        torch.cat([first.weight[:, each["goal"][0]], second.weight[:, each["goal"][1]]])
        for each in samples
    ]
    torch.testing.assert_close(encoder.encoders[1](goal), torch.stack(rows))
    assert encoder(batch).shape == (3, 6)


def test_mlp_takes_the_pixels_of_all_images_in_a_row() -> None:
    encoder = build(encoder="mlp")
    assert [type(each) for each in encoder.encoders] == [Scaled]
    samples, batch = observed()
    features = encoder(batch)
    expected = torch.from_numpy(samples[1]["camera"]).flatten() / 255
    torch.testing.assert_close(features[1, -expected.numel() :], expected)


def test_vectors_alone_have_no_encoders_of_their_own() -> None:
    space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1.0, 1.0, (2,))})
    assert isinstance(build(space, hidden_sizes=[5]), MLP)
    named = build(space, hidden_sizes=[5], encoders={"a": "embedding"})
    assert named(torch.tensor([[0.0, 1.0, 0.0, 0.5, 0.5]])).shape == (1, 5)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"encoders": {"camra": "impala"}}, "no part 'camra'. Did you mean 'camera'"),
        ({"encoders": {"goal": "impala"}}, "model.encoders.goal: impala takes images"),
        ({"encoders": {"state": "embedding"}}, "state: an embedding is for Discrete"),
        ({"encoders": {"state": "math:sqrt"}}, r"state: math:sqrt must be a torch.nn.Module"),
        ({"encoders": {"state": "torch.nn:Identity"}}, "state: Identity needs .* 'output_size'"),
        ({"encoder": f"{__name__}:Half"}, "no class of your own as a whole"),
        ({"encoder": "nature"}, "depth.*36 x 36|36 x 36"),
    ],
    ids=str,
)
def test_an_encoder_that_does_not_fit_is_named(model: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(**model)


def test_what_is_no_image_needs_a_name() -> None:
    space = spaces.Dict({"voxels": spaces.Box(0, 9, (2, 2, 2), np.int64)})
    cube = spaces.Dict({"voxels": space["voxels"], "eye": spaces.Box(0, 255, (4, 4, 1), np.uint8)})
    with pytest.raises(UserError, match=r"'voxels', int64 of shape .*is no image"):
        build(cube)
    assert build(cube, encoders={"voxels": "identity"}).output_size == 4 + 8
    alone = spaces.Box(0, 255, (4, 4, 1), np.uint8)
    with pytest.raises(UserError, match=r"observations have no parts; set model.encoder"):
        configured_encoder(
            ModelConfig(encoders={"x": "mlp"}), alone.shape, "uint8", layout_of(alone)
        )
    with pytest.raises(UserError, match=r"encoders.camera: expected auto, .*'impalla'"):
        config_from_dict(
            {"algo": "ppo", "env_id": "X", "model": {"encoders": {"camera": "impalla"}}}, source="y"
        )


def test_the_log_says_what_is_taken_for_what() -> None:
    assert describe_parts(layout_of(SPACE), ModelConfig(encoders={"goal": "embedding"})) == [
        "observation camera: an image of 36 x 40 pixels, 3 channels last, 0 to 255, scaled to "
        "[0, 1], encoder nature",
        "observation depth: an image of 8 x 8 pixels, 1 channel first, normalised already, encoder "
        "impala",
        "observation goal: one-hot of shape (2,), encoder embedding",
    ]
    alone = layout_of(spaces.Box(0, 255, (4, 84, 84), np.uint8))
    [line] = describe_parts(alone, ModelConfig())
    assert line.startswith("observation: an image of 84 x 84 pixels, 4 channels first")
    assert not describe_parts(layout_of(spaces.Discrete(3)), ModelConfig())
    mask = spaces.MultiBinary(3)
    for seen, what in ((SPACE["camera"], "observation"), (SPACE, "observation.camera")):
        space = spaces.Dict({"action_mask": mask, "observation": seen})  # as masks are kept
        first, *_ = describe_parts(layout_of(space), ModelConfig())
        assert first.startswith(f"{what}: an image of 36 x 40 pixels")
