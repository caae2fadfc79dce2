"""PPG's phases: when the auxiliary one runs, and that without it PPG is PPO."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch

from rl_training.errors import UserError
from tests.recipes.environments import RandomEnds
from tests.recipes.runs import ENVIRONMENTS, changed, iterate, make_ppg, make_ppo, parameters

SAME: dict[str, Any] = {
    "max_gradient_norm": 0.5,
    "normalize_advantage": "minibatch",
    "adam_epsilon": 1e-5,
    "entropy_coefficient": 0.01,
    "learning_rate_schedule": "linear",
    "clip_schedule": "linear",
    "total_timesteps": 2560,
}


def assert_ppg_is_ppo(env: Any, *, iterations: int = 6, **changes: Any) -> None:
    """Train both, PPG across what would be several auxiliary phases, and compare bits."""
    ppo = make_ppo(env, **SAME, **changes)
    architecture = "shared" if changes.pop("shared_trunk", False) else "dual"
    ppg = make_ppg(env, auxiliary_epochs=0, architecture=architecture, **SAME, **changes)
    _, expected = iterate(ppo, iterations)
    _, found = iterate(ppg, iterations)
    state = ppg.model.state_dict()
    assert {name for name in state if name not in ppo.model.state_dict()} == {
        "auxiliary_head.weight",
        "auxiliary_head.bias",
    }
    assert all(torch.equal(state[name], p) for name, p in ppo.model.state_dict().items())
    for one, other in zip(expected, found, strict=True):
        assert {key for key in other if key not in one} == {"time/policy_phase"}
        assert all(torch.equal(one[key], other[key]) for key in one), one.keys()
    assert expected[0]["train/gradient_norm"] > 0.5, "clipping must matter"


@pytest.mark.parametrize("kind", ENVIRONMENTS)
@pytest.mark.parametrize("shared_trunk", [False, True])
def test_without_an_auxiliary_phase_ppg_is_ppo_bit_for_bit(kind: str, shared_trunk: bool) -> None:
    assert_ppg_is_ppo(ENVIRONMENTS[kind], shared_trunk=shared_trunk)


def test_so_it_is_with_a_divergence_limit_and_state_dependent_noise() -> None:
    assert_ppg_is_ppo(ENVIRONMENTS["box"], target_kl=0.004, gsde=True, gsde_resample_interval=5)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="compiling needs a C++ compiler")
@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_so_it_is_compiled(kind: str) -> None:
    assert_ppg_is_ppo(ENVIRONMENTS[kind], compile=True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="compiling needs a C++ compiler")
@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_compiled_the_first_divergence_is_zero_but_for_rounding(kind: str) -> None:
    algorithm = make_ppg(ENVIRONMENTS[kind], compile=True, auxiliary_learning_rate=3e-3)
    _, metrics = iterate(algorithm, 4)
    for phase in (metrics[1], metrics[3]):
        assert abs(phase["aux/kl_first"].item()) < 1e-6
        assert phase["aux/kl_last"].item() > 1e-5


def test_the_phase_runs_after_every_policy_iterations_and_drops_no_sample_of_the_last() -> None:
    algorithm = make_ppg()
    batches, metrics = iterate(algorithm, 5)
    assert ["aux/kl" in each for each in metrics] == [False, True, False, True, False]
    # The fifth iteration was learnt from like the others, and waits for the next phase.
    assert all(each["train/gradient_steps"].item() == 3 * 4 for each in metrics)
    waiting = algorithm._phase.joined()
    assert torch.equal(waiting["observation"], batches[-1]["observation"].flatten(0, 1))
    assert torch.equal(waiting["value_target"], batches[-1]["value_target"].flatten())
    assert waiting["observation"].shape == (128, 4)
    _, more = iterate(algorithm, 1)
    assert "aux/kl" in more[0]
    assert algorithm.extra_state()["phase"]["rows"] == {}
    assert algorithm.optimizers["auxiliary"].steps.item() == 3 * 2 * 8


def test_whole_sequences_are_the_minibatches_of_both_phases() -> None:
    # 4 environments of 32 steps: 2 rows a minibatch, and 8 rows of a phase in 3 minibatches.
    algorithm = make_ppg(whole_sequences=True, minibatch_size=64, auxiliary_minibatches=3)
    seen: dict[str, list[torch.Tensor]] = {"_step": [], "_auxiliary_step": []}
    for name, kept in seen.items():
        step = getattr(algorithm, name)
        whole = step._step

        def spy(batch: Any, indices: Any, kept: Any = kept, whole: Any = whole) -> Any:
            kept.append(indices.reshape(-1, 32))
            return whole(batch, indices)

        step._step = spy
    iterate(algorithm, 2)
    for name, rows, sizes in (("_step", 4, [2, 2]), ("_auxiliary_step", 8, [3, 3, 2])):
        assert [len(each) for each in seen[name][: len(sizes)]] == sizes
        for each in seen[name]:
            assert torch.equal(each, each[:, :1] + torch.arange(32))
        first = torch.cat(seen[name][: len(sizes)])[:, 0] // 32
        assert sorted(first.tolist()) == list(range(rows))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"minibatch_size": 48}, "minibatch_size must be a multiple of num_steps, 32"),
        ({"auxiliary_minibatches": 9}, "at most the 8 sequences of a phase"),
    ],
)
def test_whole_sequences_that_do_not_come_out_even_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make_ppg(**{"whole_sequences": True, "minibatch_size": 64, **changes})


def test_samples_left_by_one_learn_are_used_by_the_next() -> None:
    algorithm = make_ppg().learn(128)
    assert len(algorithm._phase) == 1
    assert algorithm.optimizers["auxiliary"].steps.item() == 0
    algorithm.learn(128)
    assert algorithm.optimizers["auxiliary"].steps.item() == 16


def test_the_learning_rate_never_rises_over_phases_and_the_auxiliary_one_stays() -> None:
    algorithm = make_ppg(
        learning_rate_schedule="linear", total_timesteps=1024, auxiliary_learning_rate=2e-3
    )
    rates = []
    for _ in range(8):
        _, (metrics,) = iterate(algorithm, 1)
        rates.append(metrics["train/learning_rate"].item())
        assert algorithm.optimizers["auxiliary"].learning_rate.item() == pytest.approx(2e-3)
    assert rates == pytest.approx([3e-3 * (8 - index) / 8 for index in range(8)])


def test_unequal_epochs_train_policy_and_value_by_optimisers_of_their_own() -> None:
    algorithm = make_ppg(RandomEnds, policy_epochs=1, value_epochs=3, auxiliary_epochs=0)
    assert set(algorithm.optimizers) == {"policy", "value", "auxiliary"}
    policy, value = algorithm.optimizers["policy"], algorithm.optimizers["value"]
    own = {id(p) for p in algorithm.model.value_parameters()}
    assert {id(p) for p in value.parameters} == own
    assert {id(p) for p in policy.parameters} == {
        id(p) for p in algorithm.model.policy_parameters()
    }
    before = parameters(algorithm)
    _, (metrics,) = iterate(algorithm, 1)
    assert policy.steps.item() == 4
    assert value.steps.item() == 12
    assert metrics["train/gradient_steps"].item() == 16
    assert metrics["train/value_gradient_norm"] != metrics["train/gradient_norm"]
    assert {name for name in before if "auxiliary" not in name} == changed(
        before, parameters(algorithm)
    )


def test_equal_epochs_share_one_optimiser() -> None:
    assert set(make_ppg().optimizers) == {"policy", "auxiliary"}


def test_the_size_of_the_auxiliary_data_is_announced() -> None:
    # 2 iterations of 4 * 32 samples, of four float32 observations and a target each.
    (line,) = make_ppg().describe()
    assert line == "auxiliary phase: 256 samples every 256 steps, 5.12 kB of memory"
