"""The tag ``atari`` stands for ``env.atari.enabled``."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

from rl_training.cli import main
from rl_training.config import config_from_dict, dump_yaml, load_config, replace_config
from rl_training.config.groups import EnvConfig, TrainConfig
from rl_training.envs import make_env
from rl_training.errors import UserError
from rl_training.recipes.ppo import PPO

PONG = "PongNoFrameskip-v4"


def config_of(env_id: str = PONG, **data: Any) -> TrainConfig:
    return config_from_dict({"algo": "ppo", "env_id": env_id, **data}, source="test")


def test_the_tag_switches_the_pipeline_on_and_the_saved_config_says_so(tmp_path: Any) -> None:
    config = config_of(tags=["night", "atari"], env={"atari": {"screen_size": 36}})
    assert config.env.atari.enabled
    assert make_env(config, 0).observation_space.shape == (4, 36, 36)
    path = tmp_path / "config.yaml"
    path.write_text(dump_yaml(config), encoding="utf-8")
    assert load_config(path) == config
    assert "enabled: true" in dump_yaml(config)


def test_no_other_tag_does_and_no_other_config_is_touched() -> None:
    assert not config_of(tags=["Atari", "ataris"]).env.atari.enabled
    shared = EnvConfig()
    assert TrainConfig(algo="ppo", env_id=PONG, tags=["atari"], env=shared).env.atari.enabled
    assert not shared.atari.enabled
    assert replace_config(config_of(), tags=["atari"]).env.atari.enabled
    assert PPO(PONG, tags=["atari"], num_envs=1).observation_space.shape == (4, 84, 84)


def test_settings_of_a_pipeline_that_is_off_are_refused() -> None:
    with pytest.raises(UserError, match=r"env\.atari\.enabled must be true: other settings"):
        config_of(env={"atari": {"noop_max": 10}})
    assert config_of(env={"atari": {"noop_max": 10, "enabled": True}}).env.atari.noop_max == 10


def test_a_game_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"CartPole-v1 is none: .* the tag 'atari'"):
        make_env(config_of("CartPole-v1", tags=["atari"]), 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tags", "atari"], "env.atari is on by the tag 'atari': the standard pipeline"),
        (["--env.atari.enabled"], "env.atari is on: the standard pipeline"),
    ],
)
def test_training_says_that_it_is_on(
    words: list[str], said: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--total-timesteps", "32", "--num-envs", "1", "--algorithm.num-steps", "32"]
    rest = [
        "--algorithm.minibatch-size",
        "32",
        "--no-evaluation.final",
        "--model.feature-size",
        "8",
    ]
    run = ["train", "--algo", "ppo", "--env-id", "ALE/Pong-v5", *sizes, *rest, *words]
    assert main([*run, "--output-dir", str(tmp_path)]) == 0
    assert said in capsys.readouterr().err
