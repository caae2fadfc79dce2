"""What holds of every registered algorithm: a new one is tested as soon as it is listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from rl_training.registry import ALGORITHMS, algorithm_class
from rl_training.runtime.state import digest
from tests.recipes.environments import RandomEnds
from tests.recipes.runs import BRIEF, ENVIRONMENTS, ON_POLICY, iterate
from tests.recipes.runs import make as make_small

TRAINING_METRICS = {
    "loss/policy",
    "loss/value",
    "loss/entropy",
    "train/entropy",
    "train/approx_kl",
    "train/clip_fraction",
    "train/gradient_norm",
    "train/gradient_steps",
    "train/explained_variance",
    "train/learning_rate",
    "train/clip_epsilon",
}
PHASE_METRICS = {
    "aux/kl",
    "aux/kl_first",
    "aux/kl_last",
    "aux/value_loss",
    "aux/true_value_loss",
    "aux/gradient_norm",
    "time/auxiliary_phase",
}
REPLAY_METRICS = {"train/learning_rate", "train/gradient_steps", "train/replay_size", "train/q"}
CRITIC_METRICS = REPLAY_METRICS | {
    "loss/actor",
    "loss/critic",
    "train/actor_gradient_norm",
    "train/critic_gradient_norm",
}
DQN_METRICS = REPLAY_METRICS | {
    "loss/q",
    "train/gradient_norm",
    "train/epsilon",
    "train/target_updates",
}
SAC_METRICS = CRITIC_METRICS | {
    "loss/temperature",
    "train/entropy",
    "train/entropy_coefficient",
}
PPG_METRICS = [
    TRAINING_METRICS | {"time/policy_phase"},
    TRAINING_METRICS | {"time/policy_phase"} | PHASE_METRICS,
]
METRICS = {
    "dqn": [DQN_METRICS, DQN_METRICS],
    "sac": [SAC_METRICS, SAC_METRICS],
    "td3": [CRITIC_METRICS, CRITIC_METRICS],
    "ppo": [TRAINING_METRICS, TRAINING_METRICS],
    "recurrent_ppo": [TRAINING_METRICS, TRAINING_METRICS],
    "ppg": PPG_METRICS,
    "recurrent_ppg": PPG_METRICS,
}
"""The keys of the first and of the second iteration, which has PPG's auxiliary phase."""

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "rainbow": ("discrete", {"rainbow": True, "num_atoms": 11}),
    "soft_targets": ("discrete", {"tau": 0.01, "target_update_interval": 4, "loss": "l2"}),
    "bfloat16": ("box", {"precision": "bfloat16"}),
    "fixed_entropy_coefficient": ("box", {"entropy_coefficient": 0.1}),
    "ornstein_uhlenbeck": ("box", {"exploration_noise": "ornstein_uhlenbeck"}),
    "ddpg": ("box", {"twin_critics": False, "policy_delay": 1, "target_policy_noise": 0.0}),
    "shared_memory": (
        "discrete",
        {"memory": "gru", "critic_memory": "shared", "architecture": "detach"},
    ),
    "separate_phases": ("box", {"value_epochs": 1, "burn_in": 4, "previous_action": True}),
    "gru": ("discrete", {"memory": "gru", "memory_layers": 2, "critic_memory": "shared"}),
    "burn_in": ("box", {"critic_memory": "none", "burn_in": 8, "output_sizes": [8]}),
    "refreshed": (
        "box",
        {"refresh_state": True, "previous_action": True, "previous_reward": True},
    ),
    "discrete": ("discrete", {}),
    "box": ("box", {}),
    "gsde": ("box", {"gsde": True, "gsde_resample_interval": 5}),
    "squash": ("box", {"squash": True}),
    "normalized": ("box", {"normalize_observation": True, "normalize_reward": True}),
}

_ON_POLICY_KINDS = ("discrete", "box", "gsde", "squash", "normalized")
KINDS_OF = {
    "ppo": _ON_POLICY_KINDS,
    "ppg": _ON_POLICY_KINDS,
    "recurrent_ppg": ("discrete", "box", "shared_memory", "separate_phases"),
    "recurrent_ppo": (*_ON_POLICY_KINDS, "gru", "burn_in", "refreshed"),
    "dqn": ("discrete", "rainbow", "soft_targets"),
    "sac": ("discrete", "box", "gsde", "bfloat16", "fixed_entropy_coefficient"),
    "td3": ("box", "ornstein_uhlenbeck", "ddpg", "bfloat16"),
}
"""What each algorithm takes."""
CONTINUOUS = [name for name, kinds in KINDS_OF.items() if "box" in kinds]
DISCRETE = [name for name, kinds in KINDS_OF.items() if "discrete" in kinds]

every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)
every_kind = pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in ALGORITHMS for kind in KINDS_OF[name]]
)


def make(name: str, env: Any, **changes: Any) -> Any:
    return make_small(name, env, **{**BRIEF[name], **changes})


def build(name: str, kind: str | None = None, **changes: Any) -> Any:
    env, options = KINDS[kind or KINDS_OF[name][0]]
    return make(name, ENVIRONMENTS[env], **options, **changes)


@every_kind
def test_the_same_seed_gives_the_same_digest_run_after_run(name: str, kind: str) -> None:
    digests: list[str] = []
    for seed in (1, 1, 2):
        # What the process drew before must not matter.
        torch.rand(len(digests) + 1)
        np.random.rand(len(digests) + 1)
        digests.append(digest(build(name, kind, seed=seed).learn(64).state_dict()))
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


@every_algorithm
def test_initial_parameters_do_not_depend_on_the_threads_of_the_process(name: str) -> None:
    threads, digests = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            digests.append(digest(build(name).state_dict()["modules"]))
    finally:
        torch.set_num_threads(threads)
    assert digests[0] == digests[1]


@every_kind
def test_a_few_iterations_have_finite_metrics_and_move_the_parameters(name: str, kind: str) -> None:
    algorithm = build(name, kind)
    before = digest(algorithm.policy_state())
    _, metrics = iterate(algorithm, 3)
    for each in metrics:
        assert all(value.ndim == 0 and value.isfinite() for value in each.values())
    assert digest(algorithm.policy_state()) != before


@every_algorithm
def test_metrics_have_the_documented_names(name: str) -> None:
    _, metrics = iterate(build(name), 2)
    assert [set(each) for each in metrics] == METRICS[name]


@pytest.mark.parametrize(
    ("name", "env_id", "options"),
    [
        *((name, "CartPole-v1", {}) for name in DISCRETE),
        *((name, "Pendulum-v1", {}) for name in CONTINUOUS),
        *((name, "Pendulum-v1", {"normalize_observation": True}) for name in ON_POLICY),
        *((name, "Pendulum-v1", {"gsde": True}) for name in KINDS_OF if "gsde" in KINDS_OF[name]),
        ("recurrent_ppo", "Pendulum-v1", {"previous_action": True, "previous_reward": True}),
        ("dqn", "CartPole-v1", {"rainbow": True}),
        ("td3", "Pendulum-v1", {"exploration_noise": "ornstein_uhlenbeck"}),
    ],
)
def test_a_saved_algorithm_predicts_and_goes_on_alike(
    name: str, env_id: str, options: dict[str, Any], tmp_path: Path
) -> None:
    algorithm = make(name, env_id, **options).learn(32)  # in the middle of PPG's cycle
    algorithm.save(tmp_path / "saved")
    loaded = algorithm_class(name).load(tmp_path / "saved")
    space = algorithm.observation_space
    observations = np.random.default_rng(0).normal(size=(32, *space.shape)).astype(space.dtype)
    ours, theirs = (each.predict(observations)[0] for each in (algorithm, loaded))
    np.testing.assert_array_equal(ours, theirs)
    far = int(np.abs(ours).reshape(32, -1).max(-1).argmax())  # next to zero rounding is large
    single, _ = loaded.predict(observations[far])
    np.testing.assert_allclose(single, ours[far], rtol=1e-5)
    assert loaded.global_step == 32
    games: dict[str, Any] = {"episodes": 2, "seed": 5, "max_episode_steps": 40}
    assert loaded.evaluate(**games) == algorithm.evaluate(**games)
    assert digest(loaded.learn(32).state_dict()) == digest(algorithm.learn(32).state_dict())


@pytest.mark.parametrize("name", CONTINUOUS)
def test_a_policy_alone_predicts_alike(name: str, tmp_path: Path) -> None:
    algorithm = make(name, "Pendulum-v1", normalize_observation=name in ON_POLICY).learn(32)
    algorithm.save(tmp_path / "policy", policy_only=True)
    loaded = algorithm_class(name).load(tmp_path / "policy")
    observations = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    np.testing.assert_array_equal(
        loaded.predict(observations)[0], algorithm.predict(observations)[0]
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {"log_std_init": 2.0}) for name in ON_POLICY),
        *((name, {"squash": True, "log_std_init": 2.0}) for name in ON_POLICY),
        *((name, {}) for name in CONTINUOUS if name not in ON_POLICY),
    ],
)
@pytest.mark.parametrize("deterministic", [True, False])
def test_predicted_continuous_actions_stay_within_the_bounds(
    name: str, options: dict[str, Any], deterministic: bool
) -> None:
    algorithm = make(name, "Pendulum-v1", **options)
    with torch.no_grad():
        model = algorithm.model
        head = model.action_head.layer if name in ON_POLICY else model.actor.head
        head.weight.mul_(10_000)
    observations = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    actions, state = algorithm.predict(observations, deterministic=deterministic)
    assert (state is None) == (not name.startswith("recurrent"))
    assert actions.shape == (64, 1)
    assert actions.dtype == np.float32
    assert all(algorithm.action_space.contains(action) for action in actions)
    # They reach for both ends: it is the bounds that hold them.
    assert actions.max() > 1.5
    assert actions.min() < -1.5


@pytest.mark.parametrize("name", DISCRETE)
def test_predicted_discrete_actions_are_numbered_as_the_environment_numbers_them(name: str) -> None:
    class Shifted(RandomEnds):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = gymnasium.spaces.Discrete(3, start=5)

        def step(self, action: Any) -> Any:
            assert self.action_space.contains(np.int64(action))
            return super().step(action)

    algorithm = make(name, Shifted).learn(32)
    observations = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    actions, _ = algorithm.predict(observations, deterministic=False)
    assert set(actions.tolist()) == {5, 6, 7}


@every_algorithm
def test_learning_twice_means_that_much_more(name: str) -> None:
    algorithm = build(name).learn(32)
    assert algorithm.global_step == 32
    algorithm.learn(64)
    assert algorithm.global_step == 96
    assert algorithm.updates == 3
    once = build(name).learn(96)
    assert digest(once.model.state_dict()) == digest(algorithm.model.state_dict())


@every_algorithm
def test_a_budget_that_is_no_multiple_is_rounded_up_to_whole_iterations(name: str) -> None:
    assert build(name).learn(33).global_step == 64


@every_algorithm
def test_evaluation_and_prediction_leave_training_alone(name: str) -> None:
    disturbed, plain = build(name), build(name)
    for _ in range(2):
        disturbed.learn(32)
        plain.learn(32)
        disturbed.evaluate(episodes=3, deterministic=False)
        observation = np.zeros(disturbed.observation_space.shape, np.float32)
        disturbed.predict(observation, deterministic=False)
    assert digest(disturbed.state_dict()) == digest(plain.state_dict())
