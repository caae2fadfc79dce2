"""What is saved comes back: to go on, to be used, or to begin from."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from rl_training import (
    PPG,
    PPO,
    TrainConfig,
    train_ppg,
    train_ppo,
)
from rl_training.errors import UserError
from tests.api.runs import CHECKPOINTS, SMALL, make, observations, parameters
from tests.recipes.environments import Identity


@pytest.mark.parametrize("name", ["ppo", "ppg"])
def test_a_saved_algorithm_goes_on_exactly(name: str, tmp_path: Path) -> None:
    algorithm = make(
        name,
        normalize_observation=True,
        total_timesteps=320,
        learning_rate_schedule="linear",
    ).learn(192)
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


def test_a_run_is_loaded_at_its_latest_or_its_best_checkpoint(tmp_path: Path) -> None:
    config = {**CHECKPOINTS, "checkpoint": {"interval": 64, "keep_last": 5}}
    run = make(output_dir=str(tmp_path), **config).learn(192).run_dir
    (run / "checkpoints" / "best").write_text("step_000000000128\n", encoding="utf-8")
    assert PPO.load(run).global_step == 192
    best = PPO.load(run, best=True)
    assert best.global_step == 128
    assert torch.equal(parameters(best.learn(64)), parameters(PPO.load(run)))
    with pytest.raises(
        UserError, match=r"leave out --best \(in Python best=True\), or give the run"
    ):
        PPO.load(run / "checkpoints" / "step_000000000064", best=True)


def test_loading_with_another_environment_keeps_what_was_learnt(tmp_path: Path) -> None:
    algorithm = make(env=Identity).learn(64)
    path = algorithm.save(tmp_path / "saved")
    loaded = PPO.load(path, env=Identity, num_envs=2, learning_rate=1e-9)
    assert torch.equal(parameters(loaded), parameters(algorithm))
    loaded.learn(64)
    assert loaded.global_step == 128
    torch.testing.assert_close(parameters(loaded), parameters(algorithm), atol=1e-6, rtol=0)


def test_loading_with_an_id_goes_on_in_that_environment(tmp_path: Path) -> None:
    gymnasium.register("Api/Identity-v0", entry_point="tests.recipes.environments:Identity")
    path = make().learn(64).save(tmp_path / "saved")
    algorithm = make(env=Identity).learn(64)
    other = algorithm.save(tmp_path / "other")
    loaded = PPO.load(other, env="Api/Identity-v0")
    assert loaded.config.env_id == "Api/Identity-v0"
    assert loaded.learn(64).evaluate(episodes=2)["lengths"] == [16, 16]
    assert algorithm.evaluate(episodes=2, env="Api/Identity-v0")["lengths"] == [16, 16]
    for env in ("Api/Identity-v0", Identity):
        with pytest.raises(UserError, match=r"action space is Discrete\(4\).*\(2\)"):
            PPO.load(path, env=env).learn(64)
        with pytest.raises(UserError, match=r"action space is Discrete\(4\).*\(2\)"):
            PPO.load(path).evaluate(episodes=2, env=env)


def test_loading_with_an_instance_takes_its_number(tmp_path: Path) -> None:
    algorithm = make(env=Identity, normalize_observation=True, normalize_reward=True).learn(64)
    path = algorithm.save(tmp_path / "saved")
    loaded = PPO.load(path, env=Identity())
    assert loaded.config.num_envs == 1
    assert loaded.learn(32).global_step == 96
    with pytest.raises(UserError, match="num_envs is 3"):
        PPO.load(path, env=Identity(), num_envs=3)


def test_saving_never_overwrites_and_loading_tells_algorithms_apart(tmp_path: Path) -> None:
    algorithm = make()
    path = algorithm.save(tmp_path / "saved")
    with pytest.raises(UserError, match="exists already"):
        algorithm.save(path)
    (tmp_path / "notes").mkdir()
    with pytest.raises(UserError, match="notes"):
        algorithm.save(tmp_path / "notes", overwrite=True)
    with pytest.raises(UserError, match="holds a 'ppo' policy, not a 'ppg' one"):
        PPG.load(path)
    with pytest.raises(UserError):
        PPO.load(tmp_path / "nowhere")
    algorithm.learn(64)
    with pytest.raises(UserError, match="has begun to train"):
        algorithm.load_state_dict(algorithm.state_dict())


def test_a_checkpoint_is_replaced_on_request(tmp_path: Path) -> None:
    algorithm = make()
    path = algorithm.save(tmp_path / "saved")
    algorithm.learn(64)
    assert algorithm.save(path, overwrite=True) == path
    assert PPO.load(path).global_step == 64
    assert (parameters(PPO.load(path)) == parameters(algorithm)).all()
    algorithm.save(path, policy_only=True, overwrite=True)
    assert [each.name for each in tmp_path.iterdir()] == ["saved"]


def test_a_policy_alone_says_that_its_training_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved = make().learn(64)
    whole, alone = saved.save(tmp_path / "a"), saved.save(tmp_path / "b", policy_only=True)
    PPO.load(whole).learn(64)
    policy = PPO.load(alone)
    policy.predict([0.0] * 4)
    assert "begin anew" not in caplog.text
    for _ in range(2):
        policy.learn(64)
    assert caplog.text.count("b holds a policy without training state") == 1


def test_an_algorithm_says_what_and_where_it_is(caplog: pytest.LogCaptureFixture) -> None:
    assert repr(make().learn(64)) == "PPO('CartPole-v1', global_step=64)"
    make(checkpoint={"interval": 64})
    assert "checkpoint has no effect without output_dir" in caplog.text


def test_a_warm_start_takes_the_weights_and_begins_at_zero(tmp_path: Path) -> None:
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
    seen = warm.normalizer.observation.statistics.count
    assert seen > expected.normalizer.observation.statistics.count, "statistics go on"
    with pytest.raises(UserError, match=r"init_from: .* holds a 'ppo' policy"):
        train_ppg(TrainConfig(algo="ppg", env_id="CartPole-v1"), init_from=str(source))


@pytest.mark.parametrize("name", ["x.zip", "x.PT", "x.safetensors"])
def test_the_name_of_a_file_is_refused_for_a_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="names a file, and a checkpoint is a directory"):
        make().save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    assert make().save(tmp_path / "ppo_v1.5").is_dir()


@pytest.mark.parametrize("policy_only", [False, True])
def test_an_environment_that_does_not_fit_is_refused_at_load(
    tmp_path: Path, policy_only: bool
) -> None:
    path = make().learn(64).save(tmp_path / "saved", policy_only=policy_only)
    for env in (Identity, Identity(), "Pendulum-v1"):
        with pytest.raises(UserError, match="space is"):
            PPO.load(path, env=env)


@pytest.mark.parametrize("policy_only", [False, True])
def test_a_checkpoint_is_replaced_through_a_link(tmp_path: Path, policy_only: bool) -> None:
    algorithm = make()
    place = algorithm.save(tmp_path / "elsewhere" / "saved")
    link = tmp_path / "link"
    link.symlink_to(place)
    algorithm.learn(64)
    with pytest.raises(UserError, match="exists already"):
        algorithm.save(link)
    assert algorithm.save(link, policy_only=policy_only, overwrite=True) == link
    assert link.is_symlink()
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["saved"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "link"]
    for path in (link, place):
        assert torch.equal(parameters(PPO.load(path)), parameters(algorithm))


def test_a_link_to_nothing_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match="link exists and is no checkpoint"):
        make().save(tmp_path / "link", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["link"]
