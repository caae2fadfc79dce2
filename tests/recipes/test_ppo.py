"""PPO's update: advantages, schedules, epochs, the KL stop."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rl_training.data.advantages import generalized_advantage_estimate
from rl_training.errors import UserError
from rl_training.losses.returns import explained_variance
from rl_training.recipes.ppo import PPO
from tests.recipes.environments import Identity, RandomEnds
from tests.recipes.runs import iterate, make_ppo, parameters


@pytest.mark.parametrize("num_envs", [4, 30])
def test_advantages_bootstrap_from_the_true_successor_of_every_step(num_envs: int) -> None:
    algorithm = make_ppo(RandomEnds, num_envs=num_envs, gae_lambda=0.8, discount=0.9)
    (batch,), _ = iterate(algorithm, 1, update=False)
    following = batch["next"]
    done, terminated = following["done"].squeeze(-1), following["terminated"].squeeze(-1)
    assert (done & ~terminated).any()
    assert terminated.any()
    samples = algorithm.advantages(batch)
    with torch.no_grad():
        # One forward over everything, where the algorithm saves most of it.
        value = algorithm.model.value(batch["observation"])
        next_value = algorithm.model.value(following["observation"])
    advantage, target = generalized_advantage_estimate(
        reward=following["reward"].squeeze(-1),
        value=value,
        next_value=next_value,
        terminated=terminated,
        done=done,
        discount=0.9,
        gae_lambda=0.8,
    )
    torch.testing.assert_close(samples["advantage"], advantage.flatten(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(samples["value_target"], target.flatten(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(batch["advantage"].squeeze(-1), advantage, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("discrete", [True, False])
def test_log_probabilities_and_values_are_those_of_the_collecting_parameters(
    discrete: bool,
) -> None:
    algorithm = make_ppo(lambda: RandomEnds(discrete=discrete))
    old = {key: value.clone() for key, value in algorithm.model.state_dict().items()}
    (batch,), _ = iterate(algorithm, 1)
    algorithm.model.load_state_dict(old)
    with torch.no_grad():
        log_probability, _, value = algorithm.model.evaluate_actions(
            batch["observation"], batch["action"]
        )
    torch.testing.assert_close(batch["action_log_prob"], log_probability)
    torch.testing.assert_close(batch["state_value"].squeeze(-1), value)


def test_the_order_of_the_environments_does_not_matter_to_loss_and_gradients() -> None:
    algorithm = make_ppo(RandomEnds, num_envs=5)
    (batch,), _ = iterate(algorithm, 1, update=False)
    order = torch.tensor([3, 0, 4, 1, 2])
    results = []
    for each in (batch, batch[order].clone()):
        samples = algorithm.advantages(each)
        results.append(algorithm._step._gradient(samples, torch.arange(160)))
    torch.testing.assert_close(batch["advantage"][order], each["advantage"])
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-6)
    assert not torch.equal(batch["advantage"], each["advantage"])


def test_the_first_minibatch_of_an_update_has_ratio_one() -> None:
    # A minibatch as large as the batch and one epoch: nothing has moved when it is measured.
    algorithm = make_ppo(RandomEnds, minibatch_size=128, num_epochs=1)
    _, metrics = iterate(algorithm, 3)
    for each in metrics:
        assert abs(each["train/approx_kl"].item()) < 1e-7
        assert each["train/clip_fraction"].item() == 0.0
        assert each["train/gradient_steps"].item() == 1.0
        # The mean of normalised advantages.
        assert abs(each["loss/policy"].item()) < 1e-6


def test_whole_batch_normalisation_gives_mean_zero_and_deviation_one_over_the_batch() -> None:
    algorithm = make_ppo(RandomEnds, normalize_advantage="batch")
    (batch,), _ = iterate(algorithm, 1, update=False)
    advantage = algorithm.advantages(batch)["advantage"]
    assert abs(advantage.mean().item()) < 1e-6
    assert advantage.std().item() == pytest.approx(1.0, abs=1e-5)
    assert not algorithm.loss_module.normalize_advantage
    plain = make_ppo(RandomEnds, normalize_advantage="off")
    (other,), _ = iterate(plain, 1, update=False)
    raw = plain.advantages(other)["advantage"]
    torch.testing.assert_close(advantage, (raw - raw.mean()) / raw.std(), rtol=1e-4, atol=1e-5)
    assert not plain.loss_module.normalize_advantage
    assert make_ppo(RandomEnds).loss_module.normalize_advantage


def test_every_epoch_visits_every_sample_once_in_another_order() -> None:
    algorithm = make_ppo(minibatch_size=48)
    step: Any = algorithm._step
    seen: list[torch.Tensor] = []

    class Watched:
        metric_names, stopped = ("approx_kl",), False

        def __call__(self, samples: Any, indices: torch.Tensor) -> torch.Tensor:
            seen.append(indices)
            step(samples, indices)
            return torch.zeros(1)

    algorithm._step = Watched()  # type: ignore[assignment]
    iterate(algorithm, 1)
    assert [len(indices) for indices in seen] == [48, 48, 32] * 3
    epochs = [torch.cat(seen[e * 3 : e * 3 + 3]) for e in range(3)]
    assert all(torch.equal(epoch.sort().values, torch.arange(128)) for epoch in epochs)
    assert not torch.equal(epochs[0], epochs[1])


def test_linear_schedules_fall_from_the_whole_to_the_last_share() -> None:
    algorithm = make_ppo(
        learning_rate_schedule="linear", clip_schedule="linear", total_timesteps=640
    )
    _, metrics = iterate(algorithm, 5)
    # 640 steps are five iterations; each uses the share that lies ahead of it: 5/5, 4/5, ...
    rates = [each["train/learning_rate"].item() for each in metrics]
    assert rates == pytest.approx([0.003, 0.0024, 0.0018, 0.0012, 0.0006])
    clips = [each["train/clip_epsilon"].item() for each in metrics]
    assert clips == pytest.approx([0.2, 0.16, 0.12, 0.08, 0.04])
    assert algorithm.optimizers["policy"].learning_rate.item() == pytest.approx(0.0006)
    assert algorithm.loss_module.clip_epsilon.item() == pytest.approx(0.04)


def test_constant_schedules_stay() -> None:
    _, metrics = iterate(make_ppo(total_timesteps=256), 4)
    for each in metrics:
        assert each["train/learning_rate"].item() == pytest.approx(0.003)
        assert each["train/clip_epsilon"].item() == pytest.approx(0.2)


def test_learn_sets_the_horizon_of_the_schedules_once() -> None:
    algorithm = make_ppo(learning_rate_schedule="linear").learn(256)
    assert algorithm.schedule_horizon == 256
    before = parameters(algorithm)
    algorithm.learn(128)
    assert algorithm.schedule_horizon == 256
    # At the end of the schedule nothing moves any more.
    assert all(torch.equal(before[name], now) for name, now in parameters(algorithm).items())


def test_a_target_divergence_ends_the_updates_of_an_iteration_early() -> None:
    full = 3 * 4
    _, free = iterate(make_ppo(RandomEnds, target_kl=1e9), 2)
    _, held = iterate(make_ppo(RandomEnds, target_kl=1e-5), 2)
    assert [each["train/gradient_steps"].item() for each in free] == [full, full]
    for each in held:
        assert each["train/gradient_steps"].item() < full
    # The limit leaves alone what it does not stop.
    _, plain = iterate(make_ppo(RandomEnds), 2)
    for one, other in zip(free, plain, strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_the_minibatch_that_went_too_far_changes_nothing() -> None:
    # The first minibatch has no divergence and is stepped on; the second, which shows it, is not.
    algorithm = make_ppo(RandomEnds, target_kl=1e-12, learning_rate=0.05)
    for steps in (1, 2):
        _, (metrics,) = iterate(algorithm, 1)
        assert algorithm.optimizers["policy"].steps.item() == steps
        assert metrics["train/gradient_steps"].item() == 1
        # Metrics are of the steps taken, of which this one had nothing to diverge from.
        assert abs(metrics["train/approx_kl"].item()) < 1e-7


def test_explained_variance_is_of_the_values_at_collection() -> None:
    (batch,), (metrics,) = iterate(make_ppo(RandomEnds), 1)
    expected = explained_variance(batch["state_value"], batch["value_target"])
    torch.testing.assert_close(metrics["train/explained_variance"], expected)


def test_value_clipping_reaches_the_loss() -> None:
    free, clipped = (
        iterate(make_ppo(RandomEnds, value_clip_epsilon=clip), 2)[1] for clip in (None, 1e-3)
    )
    assert free[1]["loss/value"] != clipped[1]["loss/value"]


@pytest.mark.parametrize("option", ["gsde", "squash"])
def test_continuous_options_are_refused_for_discrete_actions(option: str) -> None:
    with pytest.raises(UserError, match=r"need.* Box"):
        make_ppo(Identity, **{option: True})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"minibatch_size": 129}, r"minibatch_size must lie in \[2, 128\]"),
        ({"minibatch_size": 1}, "minibatch_size"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"discount": 1.1}, r"discount must lie in \[0, 1\]"),
        ({"gae_lambda": -0.1}, "gae_lambda"),
        ({"target_kl": 0.0}, "target_kl must be positive or null"),
        ({"num_epochs": 0}, "num_epochs must be at least 1"),
        ({"gsde_resample_interval": 0}, "gsde_resample_interval must be -1 or positive"),
    ],
)
def test_impossible_values_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_ppo(Identity, **changes)


def test_a_loop_of_ones_own_learns_what_learn_does() -> None:
    managed = make_ppo().learn(512)
    own = make_ppo()
    assert isinstance(own, PPO)
    iterate(own, 4)
    assert all(
        torch.equal(value, own.model.state_dict()[name])
        for name, value in managed.model.state_dict().items()
    )
