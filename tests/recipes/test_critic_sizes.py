"""A value function, or critics, with hidden layers of their own (`model.critic_hidden_sizes`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from rl_training import UserError
from rl_training.models.actor_critic import MLPActorCritic
from rl_training.models.lstm import LSTMPPGModel
from rl_training.registry import algorithm_class
from rl_training.runtime.state import digest
from tests.recipes.environments import Identity, Tracking
from tests.recipes.masked_environments import Masked
from tests.recipes.runs import make

SIZES: dict[str, Any] = {"hidden_sizes": [8], "critic_hidden_sizes": [16, 24]}
CASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "ppo": ("ppo", Identity, {}),
    "ppo masks": ("ppo", lambda: Masked("info"), {"action_masks": "info"}),
    "ppg": ("ppg", Identity, {}),
    "sac": ("sac", Tracking, {}),
    "sac discrete": ("sac", Identity, {}),
    "td3": ("td3", Tracking, {}),
}


def widths(module: nn.Module) -> set[int]:
    """Return the sizes of a module's biases, of which each layer has one."""
    return {value.shape[-1] for name, value in module.named_parameters() if "bias" in name}


@pytest.mark.parametrize("case", CASES)
def test_critics_have_their_sizes_and_the_policy_its_own(case: str, tmp_path: Path) -> None:
    name, env, options = CASES[case]
    agent = make(name, env, **SIZES, **options).learn(64)
    model = agent.modules["model"]
    policy, critic = (
        (model.encoder, model.value_encoder)
        if name in ("ppo", "ppg")
        else (model.actor.encoder, model.critic)
    )
    assert widths(policy) == {8}
    assert widths(critic) >= {16, 24} and 8 not in widths(critic)
    loaded = algorithm_class(name).load(agent.save(tmp_path / "saved"), env=env)
    assert digest(loaded.modules["model"].state_dict()) == digest(model.state_dict())


def test_null_is_what_the_policy_has() -> None:
    plain, same = (
        make("ppo", Identity, hidden_sizes=[8], critic_hidden_sizes=sizes).learn(64)
        for sizes in (None, [8])
    )
    assert digest(plain.modules["model"].state_dict()) == digest(same.modules["model"].state_dict())


def test_a_model_for_spaces_takes_them() -> None:
    env = Identity()
    model = MLPActorCritic.for_spaces(env.observation_space, env.action_space, **SIZES)
    assert model.value_encoder is not None
    assert widths(model.value_encoder) == {16, 24}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ppo", {"shared_trunk": True}, "must be null with model.shared_trunk"),
        ("ppg", {"architecture": "detach"}, "must be null with architecture detach"),
        ("recurrent_ppo", {}, "must be null with a memory"),
        ("recurrent_ppg", {}, "must be null with a memory"),
        ("dqn", {}, "must be null for dqn"),
        ("sac", {"critic_hidden_sizes": [16, 0]}, r"model.critic_hidden_sizes\[1\]"),
    ],
)
def test_where_they_cannot_be_they_are_refused(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make(name, Identity, **{**SIZES, **options})


class Explicit(MLPActorCritic):
    """Takes what classes took before there was such an encoder."""

    def __init__(
        self, *, make_encoder: Any, make_head: Any, architecture: Any, orthogonal_init: bool
    ) -> None:
        super().__init__(make_encoder=make_encoder, make_head=make_head, architecture=architecture)


def test_classes_that_take_no_such_encoder_are_named() -> None:
    network = f"{__name__}:Explicit"
    with pytest.raises(UserError, match=r"Explicit.* takes no make_value_encoder"):
        make("ppo", Identity, network=network, **SIZES)
    make("ppo", Identity, network=network, hidden_sizes=[8]).learn(64)
    env = Identity()
    cases: list[tuple[Any, dict[str, Any]]] = [
        (LSTMPPGModel, {}),
        (MLPActorCritic, {"architecture": "shared"}),
    ]
    for cls, options in cases:
        with pytest.raises(UserError, match="takes no make_value_encoder"):
            cls.for_spaces(env.observation_space, env.action_space, **SIZES, **options)


@pytest.mark.parametrize("name", ["dqn", "sac", "td3"])
def test_a_shared_trunk_is_told_where_there_is_none(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    make(name, Tracking if name == "td3" else Identity, shared_trunk=True)
    assert f"model.shared_trunk is PPO's, and does nothing for {name}." in caplog.text
