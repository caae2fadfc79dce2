"""PPO's losses and gradients equal those of Stable-Baselines3's own training step."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.losses.ppo import LeanClipPPOLoss
from rl_training.models.actor_critic import ActorCritic, Architecture
from rl_training.models.build import encoder_factory, head_factory

NUM_OBSERVATIONS, NUM_ACTIONS, NUM_STEPS = 4, 3, 96


class Walk(gymnasium.Env[Any, Any]):
    """Random observations, random rewards, episodes of random length."""

    def __init__(self, discrete: bool) -> None:
        self.observation_space = spaces.Box(-9.0, 9.0, (NUM_OBSERVATIONS,), np.float32)
        self.action_space: spaces.Space[Any] = (
            spaces.Discrete(NUM_ACTIONS) if discrete else spaces.Box(-9.0, 9.0, (NUM_ACTIONS,))
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        ended, cut = (self.np_random.random(2) < 0.1).tolist()
        return self._observation(), float(self.np_random.normal()), ended, cut, {}

    def _observation(self) -> Any:
        return self.np_random.normal(size=NUM_OBSERVATIONS).astype(np.float32)


def their_algorithm(
    *, discrete: bool, shared: bool, gsde: bool, normalize: bool, activation: type[nn.Module]
) -> Any:
    """Return Stable-Baselines3's PPO with a rollout collected and the policy moved on since."""
    peers = pytest.importorskip("stable_baselines3", reason="needs the extra 'peers'")
    callbacks = pytest.importorskip("stable_baselines3.common.callbacks")
    layers = pytest.importorskip("stable_baselines3.common.torch_layers")
    # One encoder for both: its "features extractor" is shared, the layers after it are separate.
    extractor = layers.FlattenExtractor if not shared else make_extractor(layers)
    theirs = peers.PPO(
        "MlpPolicy",
        Walk(discrete),
        n_steps=NUM_STEPS,
        batch_size=NUM_STEPS,
        n_epochs=1,
        ent_coef=0.03,
        vf_coef=0.7,
        max_grad_norm=float("inf"),
        normalize_advantage=normalize,
        use_sde=gsde,
        seed=0,
        device="cpu",
        policy_kwargs={
            "net_arch": [] if shared else [8, 6],
            "activation_fn": activation,
            "features_extractor_class": extractor,
            "log_std_init": -0.3,
        },
    )
    _, callback = theirs._setup_learn(NUM_STEPS, callbacks.CallbackList([]))
    theirs.collect_rollouts(theirs.env, callback, theirs.rollout_buffer, NUM_STEPS)
    with torch.no_grad():
        for parameter in theirs.policy.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return theirs


def make_extractor(layers: Any) -> type[Any]:
    class Extractor(layers.BaseFeaturesExtractor):
        def __init__(self, space: Any) -> None:
            super().__init__(space, 6)
            self.net = nn.Sequential(
                nn.Linear(NUM_OBSERVATIONS, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh()
            )

        def forward(self, observation: Tensor) -> Tensor:
            return self.net(observation)

    return Extractor


def pairs(theirs: nn.Module, ours: ActorCritic, *, shared: bool) -> list[tuple[Any, Any]]:
    """Return their parameters and ours that mean the same."""
    policy: Any = theirs
    linears: list[tuple[Any, Any]] = [(policy.action_net, ours.action_head.layer)]
    linears.append((policy.value_net, ours.value_head))
    encoder: Any = ours.encoder
    if shared:
        trunk = policy.features_extractor.net
        linears += [(trunk[0], encoder.layers[0]), (trunk[2], encoder.layers[1])]
    else:
        value_encoder: Any = ours.value_encoder
        for net, own in (
            (policy.mlp_extractor.policy_net, encoder),
            (policy.mlp_extractor.value_net, value_encoder),
        ):
            linears += [(net[0], own.layers[0]), (net[2], own.layers[1])]
    found = [(a.weight, b.weight) for a, b in linears] + [(a.bias, b.bias) for a, b in linears]
    if hasattr(policy, "log_std"):
        found.append((policy.log_std, ours.action_head.log_std))
    return found


def our_model(*, discrete: bool, architecture: Architecture, gsde: bool, activation: str) -> Any:
    return ActorCritic(
        make_encoder=encoder_factory(
            encoder="mlp",
            observation_shape=(NUM_OBSERVATIONS,),
            hidden_sizes=(8, 6),
            activation=activation,
        ),
        make_head=head_factory(num_actions=NUM_ACTIONS, discrete=discrete, gsde=gsde),
        architecture=architecture,
    )


def our_batch(theirs: Any) -> dict[str, Tensor]:
    """Return their rollout in our keys."""
    data = next(theirs.rollout_buffer.get(NUM_STEPS))
    return {
        "observation": data.observations,
        "action": data.actions.long().flatten() if data.actions.shape[1] == 1 else data.actions,
        "action_log_prob": data.old_log_prob,
        "advantage": data.advantages,
        "value_target": data.returns,
        "state_value": data.old_values,
    }


CASES: dict[str, dict[str, Any]] = {
    "categorical": {"discrete": True},
    "gaussian": {"discrete": False},
    "gsde": {"discrete": False, "gsde": True},
    "shared_trunk": {"discrete": True, "shared": True},
    "plain_advantages": {"discrete": True, "normalize": False},
    "relu": {"discrete": False, "activation": "relu"},
}


@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_equal_stable_baselines(case: str) -> None:
    options: dict[str, Any] = {
        "shared": False,
        "gsde": False,
        "normalize": True,
        "activation": "tanh",
        **CASES[case],
    }
    activation, shared = options.pop("activation"), options["shared"]
    theirs = their_algorithm(**options, activation={"tanh": nn.Tanh, "relu": nn.ReLU}[activation])
    ours = our_model(
        discrete=options["discrete"],
        architecture="shared" if shared else "dual",
        gsde=options["gsde"],
        activation=activation,
    )
    same = pairs(theirs.policy, ours, shared=shared)
    assert len(same) == len(list(ours.parameters()))
    with torch.no_grad():
        for source, target in same:
            target.copy_(source)
    batch = our_batch(theirs)
    loss = LeanClipPPOLoss(
        ours,
        clip_epsilon=0.2,
        entropy_coefficient=0.03,
        value_coefficient=0.7,
        normalize_advantage=options["normalize"],
    )
    terms = loss.terms(batch)
    total = terms["loss_objective"] + terms["loss_critic"] + terms["loss_entropy"]
    expected = torch.autograd.grad(total, [target for _, target in same])

    theirs.train()

    logged = theirs.logger.name_to_value
    assert total.item() == pytest.approx(logged["train/loss"], rel=1e-5)
    assert terms["loss_objective"].item() == pytest.approx(
        logged["train/policy_gradient_loss"], rel=1e-4, abs=1e-6
    )
    assert terms["loss_critic"].item() == pytest.approx(0.7 * logged["train/value_loss"], rel=1e-5)
    assert terms["entropy"].item() == pytest.approx(-logged["train/entropy_loss"], rel=1e-5)
    assert terms["approx_kl"].item() == pytest.approx(logged["train/approx_kl"], rel=1e-3)
    assert terms["clip_fraction"].item() == pytest.approx(logged["train/clip_fraction"])
    assert terms["approx_kl"] > 1e-4
    for (source, _), gradient in zip(same, expected, strict=True):
        torch.testing.assert_close(source.grad, gradient, rtol=1e-4, atol=1e-5)
