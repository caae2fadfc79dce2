"""Recurrent PPO's numbers equal those of sb3-contrib's own rollout and training step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.losses.recurrent_ppo import RecurrentPPOLoss
from rl_training.models.build import encoder_factory, head_factory
from rl_training.models.lstm import LSTMActorCritic
from tests.losses.test_ppo_against_stable_baselines import NUM_ACTIONS, NUM_OBSERVATIONS, Walk

NUM_STEPS, NUM_ENVS, UNITS = 24, 3, 5


def their_algorithm(*, discrete: bool, layers: int, shared: bool) -> Any:
    """Return sb3-contrib's RecurrentPPO with a second rollout, which begins inside episodes."""
    peers = pytest.importorskip("sb3_contrib", reason="needs the extra 'peers'")
    callbacks = pytest.importorskip("stable_baselines3.common.callbacks")
    vectors = pytest.importorskip("stable_baselines3.common.vec_env")
    theirs = peers.RecurrentPPO(
        "MlpLstmPolicy",
        vectors.DummyVecEnv([lambda: Walk(discrete)] * NUM_ENVS),
        n_steps=NUM_STEPS,
        batch_size=NUM_STEPS * NUM_ENVS,
        n_epochs=1,
        ent_coef=0.03,
        vf_coef=0.7,
        max_grad_norm=float("inf"),
        seed=0,
        device="cpu",
        policy_kwargs={
            "net_arch": [7],
            "lstm_hidden_size": UNITS,
            "n_lstm_layers": layers,
            "shared_lstm": shared,
            "enable_critic_lstm": not shared,
        },
    )
    _, callback = theirs._setup_learn(10_000, callbacks.CallbackList([]))
    for _ in range(2):
        theirs.collect_rollouts(theirs.env, callback, theirs.rollout_buffer, NUM_STEPS)
    return theirs


def our_model(*, discrete: bool, layers: int, shared: bool) -> LSTMActorCritic:
    return LSTMActorCritic(
        make_encoder=encoder_factory(
            encoder="mlp",
            observation_shape=(NUM_OBSERVATIONS,),
            hidden_sizes=(),
            activation="tanh",
        ),
        make_head=head_factory(num_actions=NUM_ACTIONS, discrete=discrete),
        # Their shared memory is not trained by the value function.
        architecture="detach" if shared else "dual",
        critic_memory="shared" if shared else "separate",
        memory_size=UNITS,
        memory_layers=layers,
        output_sizes=(7,),
    )


def pairs(theirs: Any, ours: LSTMActorCritic) -> list[tuple[Any, Any]]:
    """Return their parameters and ours that mean the same."""
    output: Any = ours.output.layers[0]
    value_output: Any = ours.value_output.layers[0]
    linears: list[tuple[Any, Any]] = [
        (theirs.action_net, ours.action_head.layer),
        (theirs.value_net, ours.value_head),
        (theirs.mlp_extractor.policy_net[0], output),
        (theirs.mlp_extractor.value_net[0], value_output),
    ]
    found = [(a.weight, b.weight) for a, b in linears] + [(a.bias, b.bias) for a, b in linears]
    modules = [theirs.lstm_actor, theirs.lstm_critic][: ours.memory.count]
    for module, cell in zip(modules, ours.memory.cells, strict=True):
        own = dict(cell.named_parameters())
        found += [(parameter, own[name]) for name, parameter in module.named_parameters()]
    if hasattr(theirs, "log_std"):
        found.append((theirs.log_std, ours.action_head.log_std))
    return found


def our_sequences(theirs: Any, *, discrete: bool) -> dict[str, Tensor]:
    """Return their rollout in our keys and our order, whole rows."""
    buffer = theirs.rollout_buffer

    def rows(array: Any) -> Tensor:
        return torch.from_numpy(np.asarray(array)).transpose(0, 1)

    states = [buffer.hidden_states_pi, buffer.cell_states_pi]
    if theirs.policy.lstm_critic is not None:
        states += [buffer.hidden_states_vf, buffer.cell_states_vf]
    # [memories x 2, L, N, H] of the first step -> [N, memories, L, 2, H]
    first = torch.stack([torch.from_numpy(each[0].copy()) for each in states])
    first = first.reshape(-1, 2, *first.shape[1:]).permute(3, 0, 2, 1, 4)
    action = rows(buffer.actions)
    return {
        "observation": rows(buffer.observations).clone(),
        "action": action.squeeze(-1).long() if discrete else action.clone(),
        "action_log_prob": rows(buffer.log_probs).clone(),
        "advantage": rows(buffer.advantages).clone(),
        "value_target": rows(buffer.returns).clone(),
        "state_value": rows(buffer.values).clone(),
        "is_init": rows(buffer.episode_starts).bool(),
        "memory": first.flatten(1, 3),
    }


CASES: dict[str, dict[str, Any]] = {
    "categorical": {"discrete": True, "layers": 1, "shared": False},
    "two_layers": {"discrete": True, "layers": 2, "shared": False},
    "gaussian": {"discrete": False, "layers": 1, "shared": False},
    "shared": {"discrete": True, "layers": 1, "shared": True},
}


@pytest.mark.parametrize("case", CASES)
def test_rollout_losses_and_gradients_equal_sb3_contrib(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = CASES[case]
    theirs = their_algorithm(**options)
    ours = our_model(**options)
    same = pairs(theirs.policy, ours)
    assert len(same) == len(list(ours.parameters()))
    with torch.no_grad():
        for source, target in same:
            target.copy_(source)
    sequences = our_sequences(theirs, discrete=options["discrete"])
    assert sequences["is_init"][:, 1:].sum() > 5 and sequences["memory"].abs().max() > 0

    with torch.no_grad():
        log_probability, _, value = ours.evaluate_actions(
            sequences["observation"],
            sequences["action"],
            sequences["memory"],
            sequences["is_init"],
        )
    expected_log = sequences["action_log_prob"]
    torch.testing.assert_close(log_probability, expected_log, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(value, sequences["state_value"], rtol=1e-5, atol=1e-5)

    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in theirs.policy.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        for source, target in same:
            target.copy_(source)
    loss = RecurrentPPOLoss(ours, clip_epsilon=0.2, entropy_coefficient=0.03, value_coefficient=0.7)
    terms = loss.terms(sequences)
    total = terms["loss_objective"] + terms["loss_critic"] + terms["loss_entropy"]
    expected = torch.autograd.grad(total, [target for _, target in same])

    # Whole rows: their minibatches otherwise cut one row in two at a random place.
    monkeypatch.setattr(np.random, "randint", lambda *_: 0)
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
