"""The Python interface: learn, predict, evaluate, save, load, and loops of one's own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray
from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule
from torch import Tensor, nn

from rl_training import PPG, PPO, Callback, evaluation
from rl_training.errors import UserError
from rl_training.models import MLP, MLPActorCritic
from rl_training.registry import algorithm_class
from rl_training.runtime.callbacks import StopOnReturn, TrainContext
from tests.recipes.environments import Identity, Tracking
from tests.recipes.runs import PHASES

SMALL: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 32,
    "minibatch_size": 32,
    "seed": 3,
    "hidden_sizes": [16],
}
CHECKPOINTS = {"final": False, "tensorboard": False}


def make(name: str = "ppo", env: Any = "CartPole-v1", **changes: Any) -> Any:
    return algorithm_class(name)(env, **{**SMALL, **PHASES[name], **changes})


def parameters(algorithm: Any) -> Tensor:
    return torch.cat([p.detach().flatten() for p in algorithm.modules["model"].parameters()])


def observations(count: int = 5, size: int = 4) -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=(count, size)).astype(np.float32)


# ---- learn


@pytest.mark.parametrize("name", ["ppo", "ppg"])
def test_learn_adds_steps_and_writes_nothing_unless_told_where(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    algorithm = make(name)
    before = parameters(algorithm).clone()
    assert algorithm.learn(100) is algorithm
    assert algorithm.global_step == 128, "a budget is rounded up to whole iterations"
    assert not torch.equal(parameters(algorithm), before)
    algorithm.learn(64)
    assert algorithm.global_step == 192
    assert list(tmp_path.iterdir()) == []


def test_learning_twice_is_learning_once() -> None:
    twice, once = make().learn(128).learn(128), make().learn(256)
    assert torch.equal(parameters(twice), parameters(once))


def test_with_an_output_directory_each_learn_is_a_run(tmp_path: Path) -> None:
    algorithm = make(output_dir=str(tmp_path), **CHECKPOINTS).learn(64).learn(64)
    first, second = sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    results = [json.loads((run / "result.json").read_text()) for run in (first, second)]
    assert sorted(result["global_step"] for result in results) == [64, 128]
    assert algorithm.global_step == 128


@pytest.mark.parametrize("steps", [0, -5])
def test_a_budget_of_nothing_is_refused(steps: int) -> None:
    with pytest.raises(UserError, match="total_timesteps must be positive"):
        make().learn(steps)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"num_env": 2}, "Did you mean 'num_envs'"),
        ({"learning_rates": 1.0}, "Did you mean"),
        ({"num_envs": 0}, "num_envs must be at least 1"),
        ({"minibatch_size": 65}, "minibatch_size"),
        ({"squash": True}, "continuous actions"),
    ],
)
def test_a_mistake_in_the_constructor_is_named(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        make(**changes)


# ---- predict


@pytest.mark.parametrize("name", ["ppo", "ppg"])
def test_predict_takes_one_observation_or_many(name: str) -> None:
    algorithm = make(name)
    many, state = algorithm.predict(observations())
    assert (many.shape, many.dtype.kind, state) == ((5,), "i", None)
    singles = [algorithm.predict(each)[0] for each in observations()]
    assert all(np.ndim(single) == 0 for single in singles)
    assert many.tolist() == [int(single) for single in singles]
    assert algorithm.predict(observations().tolist())[0].tolist() == many.tolist()
    with torch.no_grad():
        best = algorithm.policy.get_dist  # the same policy as a TorchRL module
        from tensordict import TensorDict

        given = TensorDict({"observation": torch.from_numpy(observations())}, [5])
        assert best(given).probs.argmax(-1).tolist() == many.tolist()


def test_samples_differ_and_do_not_touch_training() -> None:
    one, other = make(), make()
    one.learn(64)
    drawn = [one.predict(observations(1)[0], deterministic=False)[0] for _ in range(40)]
    assert {int(action) for action in drawn} == {0, 1}
    assert len({int(one.predict(observations(1)[0])[0]) for _ in range(5)}) == 1
    one.evaluate(episodes=2)
    assert torch.equal(parameters(one.learn(64)), parameters(other.learn(128)))


@pytest.mark.parametrize("shape", [(3,), (5, 3), (), (2, 5, 4), (4, 1)])
def test_an_observation_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"observation of shape .* fits neither \(4,\) nor"):
        make().predict(np.zeros(shape, np.float32))


def test_masks_are_refused() -> None:
    with pytest.raises(UserError, match="no action masks"):
        make().predict(observations(), action_masks=np.ones((5, 2), bool))


# ---- save and load


@pytest.mark.parametrize("name", ["ppo", "ppg"])
def test_a_saved_algorithm_goes_on_exactly(name: str, tmp_path: Path) -> None:
    settings = {"normalize_observation": True, "total_timesteps": 320}
    settings["learning_rate_schedule"] = "linear"
    algorithm = make(name, **settings).learn(192)
    path = algorithm.save(tmp_path / "saved")
    loaded = type(algorithm).load(path)
    assert (loaded.global_step, loaded.updates) == (192, 3)
    expected, _ = algorithm.predict(observations())
    assert np.array_equal(loaded.predict(observations())[0], expected)
    assert torch.equal(parameters(loaded.learn(128)), parameters(algorithm.learn(128)))


def test_a_saved_policy_predicts_and_evaluates_and_may_learn_on(tmp_path: Path) -> None:
    algorithm = make(normalize_observation=True).learn(64)
    path = algorithm.save(tmp_path / "policy", policy_only=True)
    names = {file.name for file in path.rglob("*") if file.is_file()}
    assert "state.json" not in names
    loaded = PPO.load(path)
    assert np.array_equal(
        loaded.predict(100 * observations())[0], algorithm.predict(100 * observations())[0]
    )
    assert loaded.evaluate(episodes=3, seed=1) == algorithm.evaluate(episodes=3, seed=1)
    assert loaded.learn(64).global_step == 128


def test_loading_with_another_environment_keeps_what_was_learnt(tmp_path: Path) -> None:
    algorithm = make(env=Identity).learn(64)
    path = algorithm.save(tmp_path / "saved")
    loaded = PPO.load(path, env=Identity, num_envs=2, learning_rate=1e-9)
    assert torch.equal(parameters(loaded), parameters(algorithm))
    loaded.learn(64)
    assert loaded.global_step == 128
    torch.testing.assert_close(parameters(loaded), parameters(algorithm), atol=1e-6, rtol=0)


def test_saving_never_overwrites_and_loading_tells_algorithms_apart(tmp_path: Path) -> None:
    algorithm = make()
    path = algorithm.save(tmp_path / "saved")
    with pytest.raises(UserError, match="exists already"):
        algorithm.save(path)
    with pytest.raises(UserError, match="holds a 'ppo' policy, not a 'ppg' one"):
        PPG.load(path)
    with pytest.raises(UserError):
        PPO.load(tmp_path / "nowhere")
    algorithm.learn(64)
    with pytest.raises(UserError, match="has begun to train"):
        algorithm.load_state_dict(algorithm.state_dict())


def test_a_warm_start_takes_the_weights_and_begins_at_zero(tmp_path: Path) -> None:
    from rl_training import TrainConfig, train_ppo

    source = make(normalize_observation=True).learn(128).save(tmp_path / "source")
    expected = PPO.load(source)
    config = TrainConfig(algo="ppo", env_id="CartPole-v1", output_dir=str(tmp_path / "runs"))
    settings = {**SMALL, **CHECKPOINTS, "num_epochs": 1, "learning_rate": 1e-9}
    result = train_ppo(
        config, total_timesteps=64, init_from=str(source), normalize_observation=True, **settings
    )
    assert result.metrics["global_step"] == 64
    warm = PPO.load(result.run_dir)
    torch.testing.assert_close(parameters(warm), parameters(expected), atol=1e-6, rtol=0)
    assert warm.normalizer.observation is not None
    assert expected.normalizer.observation is not None
    seen = warm.normalizer.observation.state_dict()["count"]
    assert seen > expected.normalizer.observation.state_dict()["count"], "statistics go on"
    with pytest.raises(UserError, match="init_from: .* holds a 'ppo' policy"):
        from rl_training import train_ppg

        train_ppg(TrainConfig(algo="ppg", env_id="CartPole-v1"), init_from=str(source))


# ---- loops of one's own


@pytest.mark.parametrize("name", ["ppo", "ppg"])
def test_collector_and_update_are_what_learn_does(name: str) -> None:
    managed = make(name).learn(192)
    own = make(name)
    for batch in own.collector():
        metrics = own.update(batch)
        assert all(value.ndim == 0 for value in metrics.values())
        if own.global_step >= 192:
            break
    assert batch.shape == (2, 32)
    assert torch.equal(parameters(own), parameters(managed))


def test_a_loop_of_one_s_own_may_use_the_parts_alone() -> None:
    algorithm = make()
    batch = next(iter(algorithm.collector()))
    algorithm.advantages(batch)
    samples = batch.reshape(-1)
    losses = algorithm.loss_module(
        samples.select("observation", "action", "action_log_prob").update(
            {key: samples[key].squeeze(-1) for key in ("advantage", "value_target", "state_value")}
        )
    )
    (losses["loss_objective"] + losses["loss_critic"]).backward()
    before = parameters(algorithm).clone()
    algorithm.optimizers["policy"].step()
    assert not torch.equal(parameters(algorithm), before)


# ---- networks of one's own


def discrete_networks() -> tuple[Any, Any]:
    policy = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    value = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return (
        TensorDictModule(policy, in_keys=["observation"], out_keys=["logits"]),
        TensorDictModule(value, in_keys=["observation"], out_keys=["state_value"]),
    )


def box_networks() -> tuple[Any, Any]:
    policy = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
    scaled = nn.Sequential(policy, AddStateIndependentNormalScale(2, scale_mapping="exp"))
    value = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    return (
        TensorDictModule(scaled, in_keys=["observation"], out_keys=["loc", "scale"]),
        TensorDictModule(value, in_keys=["observation"], out_keys=["state_value"]),
    )


@pytest.mark.parametrize(
    ("env", "networks"), [(Identity, discrete_networks), (Tracking, box_networks)]
)
def test_networks_given_in_python_learn_and_must_be_given_again(
    tmp_path: Path, env: Any, networks: Any
) -> None:
    torch.manual_seed(0)
    given = networks()
    before = [p.detach().clone() for module in given for p in module.parameters()]
    algorithm = make(env=env, networks=given, num_epochs=10, learning_rate=1e-2, num_steps=64)
    start = algorithm.evaluate(episodes=20)["return_mean"]
    algorithm.learn(4000)
    assert algorithm.evaluate(episodes=20)["return_mean"] > start + 2
    after = [p for module in given for p in module.parameters()]
    assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))

    path = algorithm.save(tmp_path / "saved")
    with pytest.raises(UserError, match=r"load\(path, networks=\(policy, value\)\)"):
        PPO.load(path, env=env)
    loaded = PPO.load(path, env=env, networks=networks())
    seen = np.stack([env().reset(seed=seed)[0] for seed in range(20)])
    assert np.array_equal(loaded.predict(seen)[0], algorithm.predict(seen)[0])
    assert torch.equal(parameters(loaded), parameters(algorithm))
    with pytest.raises(UserError, match="does not fit"):
        wrong = box_networks() if env is Identity else discrete_networks()
        PPO.load(path, env=env, networks=(wrong[0] if env is None else networks()[0], wrong[1]))


def test_networks_that_write_other_keys_are_refused() -> None:
    policy, value = discrete_networks()
    with pytest.raises(UserError, match="must write"):
        make(env=Tracking, networks=(policy, value))
    with pytest.raises(UserError, match="must write 'state_value'"):
        make(env=Identity, networks=(policy, policy))
    with pytest.raises(UserError, match=r"give model\.network"):
        make("ppg", env=Identity, networks=(policy, value))


class Wide(MLPActorCritic):
    """A network by name: bounded values."""

    def _value(self, observation: Tensor, features: Tensor | None) -> Tensor:
        return 10 * torch.tanh(super()._value(observation, features))


class Squares(MLP):
    """An encoder by name: sees the squares too."""

    def __init__(
        self, *, observation_shape: tuple[int, ...], hidden_sizes: Any, activation: str
    ) -> None:
        (size,) = observation_shape
        super().__init__(input_shape=(2 * size,), hidden_sizes=hidden_sizes, activation=activation)

    def forward(self, observation: Tensor) -> Tensor:
        return super().forward(torch.cat([observation, observation.square()], -1))


@pytest.mark.parametrize("name", ["ppo", "ppg"])
def test_an_encoder_by_name_from_the_config(name: str, tmp_path: Path) -> None:
    algorithm = make(name, encoder="tests.test_api:Squares").learn(64)
    assert isinstance(algorithm.model.encoder, Squares)
    assert algorithm.model.encoder.layers[0].in_features == 8
    loaded = type(algorithm).load(algorithm.save(tmp_path / "saved"))
    assert isinstance(loaded.model.value_encoder, Squares)
    assert torch.equal(parameters(loaded), parameters(algorithm))


def test_a_network_by_name_from_the_config(tmp_path: Path) -> None:
    algorithm = make(network="tests.test_api:Wide").learn(64)
    assert type(algorithm.model) is Wide
    value = algorithm.model.value(1e3 * torch.randn(64, 4))
    assert value.abs().max() <= 10
    assert type(PPO.load(algorithm.save(tmp_path / "saved")).model) is Wide


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"network": "tests.test_api:Narrow"}, "has no 'Narrow'"),
        ({"network": "tests.nowhere:Wide"}, "no module 'tests.nowhere'"),
        ({"network": "Wide"}, "module:Class"),
        ({"encoder": "mpl"}, "Did you mean 'mlp'"),
        ({"network": "tests.test_api:Wide", "algo": "ppg"}, "must make a MLPPPGModel"),
        ({"network": "tests.test_api:Identity"}, "network"),
        ({"encoder": "tests.test_api:Identity"}, "encoder"),
    ],
)
def test_a_wrong_name_is_a_clear_mistake(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        make(changes.pop("algo", "ppo"), **changes)


# ---- environments of one's own


def test_callables_instances_and_vectors_are_environments() -> None:
    vector = SyncVectorEnv([Identity] * 3, autoreset_mode=AutoresetMode.DISABLED)
    for env, count in ((Identity, 2), (lambda: Identity(), 2), (Identity(), 1), (vector, 3)):
        changes = {} if count == 2 else {"num_envs": count}
        algorithm = make(env=env, **changes).learn(32 * count)
        assert algorithm.environment.num_envs == count
        assert algorithm.predict(np.eye(4, dtype=np.float32))[0].shape == (4,)
        if not isinstance(env, Identity):
            assert algorithm.evaluate(episodes=3)["lengths"] == [16, 16, 16]
        algorithm.close()


def test_an_instance_says_how_many_it_is_and_needs_another_to_be_evaluated_in() -> None:
    algorithm = PPO(Identity(), num_steps=32, minibatch_size=32)
    assert algorithm.config.num_envs == 1
    with pytest.raises(UserError, match=r"evaluate\(env=\.\.\.\)"):
        algorithm.evaluate(episodes=2)
    assert algorithm.evaluate(episodes=2, env=Identity)["lengths"] == [16, 16]
    with pytest.raises(UserError, match="num_envs is 2"):
        PPO(Identity(), num_envs=2, num_steps=32, minibatch_size=32)
    made = PPO(gymnasium.make("CartPole-v1"), num_steps=32, minibatch_size=32)
    assert made.evaluate(episodes=2)["episodes"] == 2


def test_no_environment_is_a_mistake() -> None:
    with pytest.raises(UserError, match="an environment is missing"):
        PPO()
    with pytest.raises(UserError, match="is not an environment"):
        PPO(3)


class Counted(gymnasium.Env[Any, Any]):
    """Discrete actions from 5 to 7; notes every action that arrives. Seven earns 1."""

    received: list[int] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3, start=5)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.received.append(int(action))
        self.time += 1
        return np.zeros(2, np.float32), float(action == 7), self.time == 8, False, {}


def test_discrete_actions_that_start_at_five_arrive_as_such() -> None:
    Counted.received.clear()
    algorithm = make(env=Counted, num_epochs=10, learning_rate=1e-2)
    batch = next(iter(algorithm.collector()))
    assert set(batch["action"].unique().tolist()) == {0, 1, 2}, "policies count from 0"
    assert Counted.received == (5 + batch["action"]).T.flatten().tolist()
    algorithm.update(batch)
    algorithm.learn(1500)
    Counted.received.clear()
    record = algorithm.evaluate(episodes=4)
    assert record["returns"] == [8.0] * 4
    assert set(Counted.received) == {7}
    assert int(algorithm.predict(np.zeros(2, np.float32))[0]) == 7
    several, _ = algorithm.predict(np.zeros((50, 2), np.float32), deterministic=False)
    assert set(several.tolist()) <= {5, 6, 7}


class Lopsided(gymnasium.Env[Any, Any]):
    """Two float64 actions, in [-1, 3] and [10, 10.5]; notes what arrives."""

    low, high = np.array([-1.0, 10.0]), np.array([3.0, 10.5])
    received: list[NDArray[np.float64]] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = gymnasium.spaces.Box(self.low, self.high, dtype=np.float64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self.np_random.normal(size=3), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action.dtype == np.float64
        assert self.action_space.contains(action)
        self.received.append(action.copy())
        self.time += 1
        return self.np_random.normal(size=3), float(action[0]), False, self.time == 8, {}


@pytest.mark.parametrize("squash", [False, True])
def test_continuous_actions_reach_lopsided_float64_bounds(squash: bool) -> None:
    Lopsided.received.clear()
    algorithm = make(env=Lopsided, squash=squash, log_std_init=1.0)
    batch = next(iter(algorithm.collector()))
    assert batch["observation"].dtype == torch.float32
    sampled = batch["action"].transpose(0, 1).reshape(-1, 2).double().numpy()
    assert np.abs(sampled).max() > 3, "actions are stored as sampled"
    span = Lopsided.high - Lopsided.low
    expected = (
        Lopsided.low + (np.tanh(sampled) + 1) / 2 * span
        if squash
        else sampled.clip(Lopsided.low, Lopsided.high)
    )
    np.testing.assert_allclose(np.stack(Lopsided.received), expected, rtol=1e-12)
    algorithm.update(batch)
    Lopsided.received.clear()
    record = algorithm.evaluate(episodes=2, seed=0)
    total = sum(float(action[0]) for action in Lopsided.received[:16])
    assert sum(record["returns"]) == pytest.approx(total, rel=1e-6)
    for deterministic in (True, False):
        action, _ = algorithm.predict(observations(7, 3), deterministic=deterministic)
        assert (action.shape, action.dtype) == ((7, 2), np.float64)
        assert ((Lopsided.low <= action) & (action <= Lopsided.high)).all()


# ---- callbacks


class StopWhenLucky(Callback):
    """Stops at the third iteration; notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_train_start(self, context: TrainContext) -> None:
        self.calls.append(f"start {context.global_step}/{context.total_timesteps}")

    def on_iteration(self, context: TrainContext, metrics: Mapping[str, float]) -> None:
        assert metrics["loss/policy"] == context.metrics["loss/policy"]
        self.calls.append(f"iteration {context.global_step}")
        if context.global_step == 128:
            assert context.evaluate()["episodes"] == 2
        if context.global_step == 192:
            context.stop("lucky")

    def on_evaluation(self, context: TrainContext, record: Mapping[str, Any]) -> None:
        self.calls.append(f"evaluation of {record['episodes']}")

    def on_train_end(self, context: TrainContext) -> None:
        self.calls.append(f"end {context.global_step}")


def test_a_callback_of_one_s_own_sees_everything_and_stops_training() -> None:
    callback = StopWhenLucky()
    algorithm = make(episodes=2).learn(10_000, callbacks=[callback])
    assert algorithm.global_step == 192
    assert callback.calls == [
        "start 0/10000",
        "iteration 64",
        "iteration 128",
        "evaluation of 2",
        "iteration 192",
        "end 192",
    ]


class Remembers(Callback):
    """Counts iterations over resumes."""

    def __init__(self) -> None:
        self.count = 0

    def on_iteration(self, context: TrainContext, metrics: Mapping[str, float]) -> None:
        self.count += 1

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]


@pytest.mark.parametrize(("first", "second"), [(False, True), (True, False)])
def test_a_callback_s_state_survives_whether_progress_is_shown_or_not(
    tmp_path: Path, first: bool, second: bool
) -> None:
    from rl_training import TrainConfig, resume_checkpoint, train
    from rl_training.config import replace_config

    config = TrainConfig(algo="ppo", env_id="CartPole-v1", output_dir=str(tmp_path))
    config = replace_config(config, **SMALL, **CHECKPOINTS, total_timesteps=128)
    result = train(config, callbacks=[Remembers()], progress=first)
    counts = Remembers()
    resume_checkpoint(
        result.run_dir, total_timesteps=192, callbacks=[counts], progress=second
    )
    assert counts.count == 3
    # Without it, as from the command line, the run goes on too.
    resume_checkpoint(result.run_dir, total_timesteps=256, progress=second)


class Scripted(gymnasium.Env[Any, Any]):
    """Episodes of one step. Each earns the next of ``scores``, whoever plays."""

    scores = iter(())

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), float(next(self.scores, 0.0)), True, False, {}


def learn_on_scores(scores: list[float], **changes: Any) -> Any:
    """Train with an evaluation per iteration of 64 steps whose means are ``scores``."""

    class Evaluated(Scripted):
        pass

    algorithm = make(env=Scripted, interval=64, episodes=1, **changes)
    given = iter(scores)
    original = algorithm.evaluation_environment

    def evaluation_environment(**keywords: Any) -> Any:
        Evaluated.scores = itertools.repeat(next(given))  # type: ignore[assignment]
        return original(**{**keywords, "env": Evaluated})

    algorithm.evaluation_environment = evaluation_environment
    return algorithm.learn(640)


def test_training_stops_at_the_return_that_is_asked_for() -> None:
    assert learn_on_scores([1, 2, 4.9, 5, 9], stop_on_return=5.0).global_step == 4 * 64


def test_training_stops_when_evaluations_do_not_improve() -> None:
    # Three in a row without a new best: 2, 2 (equal is no improvement) and 1 after the 3.
    assert learn_on_scores([1, 3, 2, 3, 4, 2, 4, 1, 9, 9], patience=3).global_step == 8 * 64


def test_a_user_s_callbacks_may_be_the_library_s() -> None:
    algorithm = make(env=Identity, interval=64, episodes=2)
    algorithm.learn(640, callbacks=[StopOnReturn(threshold=0.0)])
    assert algorithm.global_step == 64


# ---- evaluation


class Unequal(gymnasium.Env[Any, Any]):
    """Short episodes earn little: seeds decide between 1 step of return 1 and 30 of return 30."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.length = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.length = 0, 1 if self.np_random.random() < 0.5 else 30
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return np.zeros(2, np.float32), 1.0, self.time == self.length, False, {}


def test_every_environment_plays_its_quota_so_that_short_episodes_are_not_favoured() -> None:
    from rl_training.envs import episode_seed

    algorithm = make(env=Unequal)
    algorithm.config.evaluation.num_envs = 8
    record = algorithm.evaluate(episodes=44, seed=11)
    # 44 over 8: six each of the first four, five each of the others; known from their seeds.
    expected = [
        1 if np.random.default_rng(episode_seed(11, row, episode)).random() < 0.5 else 30
        for row in range(8)
        for episode in range(6 if row < 4 else 5)
    ]
    assert record["lengths"] == expected
    assert record["returns"] == [float(length) for length in expected]
    assert record["return_mean"] == pytest.approx(sum(expected) / 44)
    assert 10 < record["return_mean"] < 21, "the mean of many is 15.5; the first to finish give 3"


def test_evaluation_is_a_function_of_the_seed() -> None:
    algorithm = make()
    first, again = (algorithm.evaluate(episodes=4, seed=2) for _ in range(2))
    other = algorithm.evaluate(episodes=4, seed=3)
    assert first == again
    assert first["returns"] != other["returns"]
    drawn = [algorithm.evaluate(4, seed=2, deterministic=False) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert drawn[0]["deterministic"] is False
    with pytest.raises(UserError, match="at least 1"):
        algorithm.evaluate(episodes=0)


def test_evaluation_reports_raw_rewards_and_leaves_the_statistics() -> None:
    algorithm = make(env=Identity, normalize_observation=True, normalize_reward=True).learn(64)
    before = algorithm.normalizer.state_dict()
    record = algorithm.evaluate(episodes=3)
    assert all(value == round(value) for value in record["returns"])
    after = algorithm.normalizer.state_dict()
    assert json.dumps(before, default=str) == json.dumps(after, default=str)


def test_statistics_by_hand() -> None:
    found = evaluation.statistics([4.0, 1.0, 2.0, 9.0], [1, 2, 3, 6])
    assert found["return_mean"] == 4.0
    assert found["return_std"] == pytest.approx(np.sqrt((0 + 9 + 4 + 25) / 4))
    assert found["return_iqm"] == 3.0  # of 2 and 4
    assert found["length_mean"] == 3.0
    assert found["episodes"] == 4
    alone = evaluation.statistics([7.0], [3])
    assert alone["return_iqm"] == alone["return_mean"] == 7.0
    assert alone["return_ci95"] == [7.0, 7.0]


def test_the_interquartile_mean_counts_border_values_in_part() -> None:
    # Of six values a quarter is 1.5: the second and the fifth count half.
    found = evaluation.interquartile_mean([10.0, 60.0, 20.0, 50.0, 30.0, 40.0])
    assert found == pytest.approx((0.5 * 20 + 30 + 40 + 0.5 * 50) / 3)
    assert evaluation.interquartile_mean([1.0, 2.0, 3.0]) == pytest.approx(2.0)
    assert evaluation.interquartile_mean([1.0, 3.0]) == 2.0


@pytest.mark.parametrize("count", [4, 8, 20, 100])
def test_the_interquartile_mean_is_scipy_s_trimmed_mean(count: int) -> None:
    stats = pytest.importorskip("scipy.stats", reason="compares with SciPy")
    values = np.random.default_rng(count).normal(size=count)
    assert evaluation.interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25))


def test_the_interval_is_the_one_of_the_mean() -> None:
    values = np.random.default_rng(0).normal(100.0, 10.0, 400)
    low, high = evaluation.statistics(values.tolist(), [1] * 400)["return_ci95"]
    # The normal approximation: mean ± 1.96 s / sqrt(n), here ± 0.98.
    half = 1.96 * values.std() / 20
    assert low == pytest.approx(values.mean() - half, abs=0.1)
    assert high == pytest.approx(values.mean() + half, abs=0.1)
    assert [low, high] == evaluation.statistics(values.tolist(), [1] * 400)["return_ci95"]
