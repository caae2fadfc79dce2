"""The components that are documented: each at its place, with its signature, doing what it says."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from tensordict import TensorDict
from torch import Tensor

import rl_training
import rl_training.cli
from rl_training import (
    MLPActorCritic,
    MLPPPGModel,
    RolloutBuffer,
    TrainConfig,
    data,
    envs,
    losses,
    models,
    runtime,
    workflows,
)
from rl_training.config import load_config
from rl_training.contrib import recurrent_ppg, recurrent_ppo
from rl_training.errors import UserError
from rl_training.recipes import ppg, ppo
from rl_training.registry import algorithm_class, algorithm_names
from tests.recipes.environments import Identity, Tracking

SMALL: dict[str, Any] = {
    "total_timesteps": 128,
    "num_envs": 2,
    "num_steps": 32,
    "minibatch_size": 32,
    "final": False,
    "tensorboard": False,
}


def parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


# ---- places


def test_the_version_is_the_package_s() -> None:
    assert rl_training.__version__ == rl_training.version.__version__
    assert rl_training.__version__.count(".") == 2


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("TrainConfig", rl_training.config),
        ("TrainConfig", rl_training.cli),
        ("load_config", rl_training.config),
        ("load_config", rl_training.cli),
        ("make_run_dir", runtime),
        ("make_run_dir", rl_training.cli),
        ("make_env", envs),
        ("make_vector_env", envs),
        ("RolloutBuffer", data),
        ("ReplayBuffer", data),
        ("MLPActorCritic", models),
        ("MLPPPGModel", models),
        ("ppo_loss", losses),
        ("ppg_loss", losses),
        ("ppg_auxiliary_loss", losses),
        ("dqn_loss", losses),
        ("sac_loss", losses),
        ("td3_loss", losses),
        ("PPO", ppo),
        ("PPG", ppg),
        ("RecurrentPPO", recurrent_ppo),
        ("train_recurrent_ppo", recurrent_ppo),
        ("RecurrentPPG", recurrent_ppg),
        ("train_recurrent_ppg", recurrent_ppg),
        ("RecurrentRolloutBuffer", data),
        ("LSTMActorCritic", models),
        ("recurrent_ppo_loss", losses),
        ("train_ppo", ppo),
        ("train_ppg", ppg),
        ("train", workflows),
        ("evaluate_checkpoint", workflows),
        ("resume_checkpoint", workflows),
        ("predict_checkpoint", workflows),
        ("TrainResult", workflows),
        ("resolve_device", runtime),
        ("Callback", runtime),
    ],
)
def test_a_name_is_the_same_object_at_its_place_and_at_the_root(name: str, place: Any) -> None:
    assert getattr(rl_training, name) is getattr(place, name)
    assert getattr(place, name).__doc__


@pytest.mark.parametrize(
    "name", ["serialize_train_config", "create_training_run", "save_training_checkpoint"]
)
def test_runtime_has_what_loops_of_one_s_own_write_runs_with(name: str) -> None:
    assert getattr(runtime, name).__doc__


def test_every_name_that_a_package_exports_exists() -> None:
    for package in (rl_training, data, envs, losses, models, runtime, rl_training.cli):
        missing = [name for name in package.__all__ if not hasattr(package, name)]
        assert missing == [], package.__name__
    with pytest.raises(AttributeError):
        _ = rl_training.cli.nothing


@pytest.mark.parametrize("name", ["ppo", "ppg", "dqn", "sac", "td3"])
def test_an_algorithm_is_one_object_under_all_its_names(name: str) -> None:
    cls = getattr(rl_training, name.upper())
    assert cls is algorithm_class(name)
    assert cls is getattr(getattr(rl_training.recipes, name), name.upper())
    for method in ("learn", "predict", "evaluate", "save", "load", "update", "collector"):
        assert getattr(cls, method).__doc__, method
    assert name in algorithm_names()
    assert callable(rl_training.PPG.auxiliary_update)


def test_the_documented_signatures() -> None:
    assert parameters(rl_training.make_env)[:2] == ["config", "env_index"]
    assert parameters(rl_training.make_vector_env)[:2] == ["config", "num_envs"]
    assert inspect.signature(rl_training.make_vector_env).parameters["num_envs"].default is None
    assert parameters(RolloutBuffer)[:4] == ["num_steps", "num_envs", "obs_shape", "action_shape"]
    names = ["minibatch", "clip_coef", "ent_coef", "vf_coef"]
    assert parameters(rl_training.ppo_loss) == names
    assert rl_training.ppg_loss is rl_training.ppo_loss
    assert parameters(rl_training.make_run_dir) == ["config", "parent"]
    for function in (rl_training.train_ppo, rl_training.train_ppg):
        assert parameters(function) == ["config", "overrides"]
    expected = ["self", "observation", "state", "episode_start", "action_masks", "deterministic"]
    assert parameters(rl_training.PPO.predict) == expected


def test_the_package_its_configs_and_its_command_line_import_no_torch() -> None:
    code = (
        "import sys, rl_training, rl_training.cli, rl_training.registry\n"
        "rl_training.cli.TrainConfig, rl_training.load_config\n"
        "assert 'torch' not in sys.modules and 'gymnasium' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- environments


def config(**changes: Any) -> TrainConfig:
    return TrainConfig(**{"algo": "ppo", "env_id": "CartPole-v1", "num_envs": 3, **changes})


def test_make_env_builds_one_environment_that_reports_its_episodes() -> None:
    env = rl_training.make_env(config(env_kwargs={"max_episode_steps": 7}), 0)
    observation, _ = env.reset()
    assert observation.shape == (4,)
    for _ in range(7):
        _, _, terminated, truncated, info = env.step(env.action_space.sample())
        if terminated or truncated:
            break
    assert info["episode"]["r"] == info["episode"]["l"] <= 7
    assert info["episode"]["l"] == 7 or terminated
    env.close()


def test_each_index_has_a_stream_of_its_own() -> None:
    starts = []
    for seed, index in [(1, 0), (1, 1), (2, 0), (1, 0)]:
        env = rl_training.make_env(config(seed=seed), index)
        starts.append(tuple(env.reset()[0].tolist()))
        env.close()
    assert starts[3] == starts[0]
    assert len(set(starts)) == 3


@pytest.mark.parametrize(("kind", "cls"), [("sync", SyncVectorEnv), ("async", AsyncVectorEnv)])
def test_make_vector_env_builds_the_configured_kind_and_number(kind: str, cls: type[Any]) -> None:
    settings = config(env_kwargs={"max_episode_steps": 5})
    settings.env.vectorization = kind  # type: ignore[assignment]
    vector = rl_training.make_vector_env(settings)
    assert type(vector) is cls
    assert vector.num_envs == 3
    vector.reset(seed=0)
    for _ in range(5):
        *_, truncated, info = vector.step(np.zeros(3, np.int64))
    assert truncated.all()
    assert info["episode"]["r"].tolist() == info["episode"]["l"].tolist() == [5, 5, 5]
    vector.close()
    more = rl_training.make_vector_env(settings, 4)
    assert more.num_envs == 4
    more.close()


# ---- models


@pytest.mark.parametrize("cls", [MLPActorCritic, MLPPPGModel])
@pytest.mark.parametrize("env", [Identity, Tracking])
def test_a_model_for_spaces_acts_and_evaluates_what_it_did(cls: Any, env: Any) -> None:
    spaces = env()
    torch.manual_seed(0)
    model = cls.for_spaces(spaces.observation_space, spaces.action_space, hidden_sizes=[16, 8])
    assert type(model) is cls
    assert [layer.out_features for layer in model.encoder.layers] == [16, 8]
    observation = torch.randn(5, *spaces.observation_space.shape)
    generator = torch.Generator().manual_seed(1)
    action, log_probability, value = model.act(observation, generator=generator)
    assert action.shape == (5, *spaces.action_space.shape)
    found, entropy, again = model.evaluate_actions(observation, action)
    torch.testing.assert_close((found, again), (log_probability, value))
    assert found.shape == entropy.shape == value.shape == (5,)
    expected = torch_distribution(model, observation)
    torch.testing.assert_close(found, expected.log_prob(action))
    torch.testing.assert_close(entropy, expected.entropy())
    best, *_ = model.act(observation, deterministic=True)
    assert torch.equal(best, expected.mode)


def torch_distribution(model: Any, observation: Tensor) -> Any:
    given = model.distribution(observation)
    if len(given) == 1:
        return torch.distributions.Categorical(logits=given[0])
    normal = torch.distributions.Normal(given[0], given[1].exp())
    return torch.distributions.Independent(normal, 1)


def test_ppg_s_model_has_a_trunk_and_three_heads() -> None:
    spaces = Identity()
    model = MLPPPGModel.for_spaces(
        spaces.observation_space, spaces.action_space, architecture="detach", activation="relu"
    )
    parts = {"encoder", "action_head", "value_head", "auxiliary_head"}
    assert parts <= {name for name, _ in model.named_children()}
    observation = torch.randn(6, 4)
    (logits,), auxiliary_value, value = model.auxiliary(observation)
    assert (logits.shape, auxiliary_value.shape, value.shape) == ((6, 4), (6,), (6,))
    value.sum().backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is None for parameter in model.encoder.parameters())


def test_a_model_for_other_spaces_or_with_an_unknown_encoder_is_refused() -> None:
    box, discrete = Identity().observation_space, gymnasium.spaces.Discrete(3)
    with pytest.raises(UserError, match="MLPActorCritic: observation space"):
        MLPActorCritic.for_spaces(gymnasium.spaces.Text(2), discrete)
    with pytest.raises(UserError, match="action space Text"):
        MLPActorCritic.for_spaces(box, gymnasium.spaces.Text(2))
    with pytest.raises(UserError, match=r"model\.encoder: unknown 'cnn'"):
        MLPActorCritic.for_spaces(box, discrete, encoder="cnn")


# ---- losses


def minibatch(**changes: list[float]) -> dict[str, Tensor]:
    """Two samples: a ratio of 2 with a positive advantage, one of 1/2 with a positive one."""
    values = {
        "logprobs": [np.log(0.8), np.log(0.2)],
        "old_logprobs": [np.log(0.4), np.log(0.4)],
        "advantages": [1.0, 3.0],
        "returns": [2.0, 0.0],
        "values": [0.0, 0.0],
        "new_values": [1.0, 3.0],
        "entropy": [0.6, 0.2],
        **changes,
    }
    return {name: torch.tensor(value) for name, value in values.items()}


def test_ppo_loss_by_hand() -> None:
    found = rl_training.ppo_loss(minibatch(), clip_coef=0.2, ent_coef=0.1, vf_coef=0.5)
    policy = -(1.2 * 1.0 + 0.5 * 3.0) / 2  # the first ratio is clipped; the second is lower already
    value = (1.0 + 9.0) / 2
    assert float(found["policy_loss"]) == pytest.approx(policy)
    assert float(found["value_loss"]) == pytest.approx(value)
    assert float(found["entropy_loss"]) == pytest.approx(-0.4)
    assert float(found["loss"]) == pytest.approx(policy + 0.5 * value - 0.1 * 0.4)
    kl = ((2 - 1 - np.log(2)) + (0.5 - 1 - np.log(0.5))) / 2
    assert float(found["approx_kl"]) == pytest.approx(kl)
    assert float(found["clip_fraction"]) == 1.0


def test_ppo_loss_takes_a_tensordict_too() -> None:
    found = rl_training.ppo_loss(TensorDict(minibatch(), [2]))
    assert float(found["loss"]) == pytest.approx(-1.35 + 2.5)


def test_ppg_auxiliary_loss_by_hand() -> None:
    given = minibatch(aux_values=[1.0, 1.0], kl=[0.1, 0.3])
    found = rl_training.ppg_auxiliary_loss(given, beta_clone=2.0, vf_true_coef=3.0)
    assert float(found["aux_value_loss"]) == pytest.approx(0.5 * (1 + 1) / 2)
    assert float(found["true_value_loss"]) == pytest.approx(0.5 * (1 + 9) / 2)
    assert float(found["kl"]) == pytest.approx(0.2)
    assert float(found["loss"]) == pytest.approx(0.5 + 2 * 0.2 + 3 * 2.5)


# ---- runs


def test_a_config_goes_to_a_file_and_back(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text("algo: ppo\nenv_id: CartPole-v1\nseed: 4\n", encoding="utf-8")
    loaded = rl_training.load_config(path)
    assert loaded == TrainConfig(algo="ppo", env_id="CartPole-v1", seed=4)
    values = runtime.serialize_train_config(loaded)
    assert json.loads(json.dumps(values)) == values
    assert values["algorithm"]["clip_epsilon"] == 0.2


@pytest.mark.parametrize("algo", ["ppo", "ppg"])
def test_a_run_by_function_from_the_first_step_to_a_prediction(tmp_path: Path, algo: str) -> None:
    given = config(algo=algo, output_dir=str(tmp_path))
    train = getattr(rl_training, f"train_{algo}")
    result = train(given, **SMALL)
    assert isinstance(result, rl_training.TrainResult)
    assert result.metrics["global_step"] == 128
    assert result.metrics["loss/policy"] == result.metrics["loss/policy"]  # no NaN
    assert result.run_dir.parent == tmp_path
    assert result.run_dir.name.startswith(f"{algo}__CartPole-v1__seed1__")
    assert result.checkpoint_path is not None
    assert result.checkpoint_path.parent == result.run_dir / "checkpoints"
    assert given.num_envs == 3, "the caller's config stays"
    stored = load_config(result.run_dir / "config.yaml")
    assert (stored.num_envs, stored.algorithm.num_steps) == (2, 32)

    record = rl_training.evaluate_checkpoint(result.run_dir, episodes=3, seed=5)
    assert (record["episodes"], record["seed"], len(record["returns"])) == (3, 5, 3)
    assert record == rl_training.evaluate_checkpoint(result.checkpoint_path, episodes=3, seed=5)
    action = rl_training.predict_checkpoint(result.run_dir, np.zeros((6, 4), np.float32))
    assert action.shape == (6,)
    assert set(action.tolist()) <= {0, 1}
    resumed = rl_training.resume_checkpoint(result.run_dir, total_timesteps=192)
    assert resumed.metrics["global_step"] == 192
    assert resumed.run_dir == result.run_dir


def test_train_ppo_takes_a_preset_and_refuses_another_algorithm_s(tmp_path: Path) -> None:
    result = rl_training.train_ppo("ppo_cartpole", output_dir=str(tmp_path), **SMALL)
    assert result.metrics["global_step"] == 128
    with pytest.raises(UserError, match="'ppg', not for 'ppo'"):
        rl_training.train_ppo("ppg_cartpole")
    with pytest.raises(UserError, match="Did you mean"):
        rl_training.train_ppo("ppo_cartpole", num_step=3)


def test_a_loop_of_one_s_own_writes_a_run_that_can_be_evaluated(tmp_path: Path) -> None:
    algorithm = rl_training.PPO(
        "CartPole-v1", num_envs=2, num_steps=16, minibatch_size=16, output_dir=str(tmp_path)
    )
    run = runtime.create_training_run(algorithm.config, command=["mine"])
    assert json.loads((run.directory / "metadata.json").read_text())["command"] == ["mine"]
    for batch in algorithm.collector():
        metrics = algorithm.update(batch)
        run.log(algorithm.global_step, metrics)
        if algorithm.global_step >= 64:
            break
    saved = runtime.save_training_checkpoint(
        run,
        step=algorithm.global_step,
        state={"training": {"algorithm": algorithm.state_dict()}},
        policy=algorithm.policy_state(),
    )
    run.close("finished")
    assert saved == run.checkpoints / "step_000000000064"
    lines = (run.directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [32, 64]
    assert rl_training.evaluate_checkpoint(run.directory, episodes=1)["episodes"] == 1
    again = rl_training.PPO.load(run.directory)
    assert again.global_step == 64


@pytest.mark.parametrize("name", ["auto", "cpu"])
def test_small_networks_are_on_the_cpu(name: str) -> None:
    assert rl_training.resolve_device(name) == torch.device("cpu")


def test_an_unknown_device_is_a_mistake() -> None:
    with pytest.raises(UserError, match="Did you mean 'cuda'"):
        rl_training.resolve_device("cude")
