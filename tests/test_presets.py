from __future__ import annotations

from pathlib import Path

import pytest

from rl_training.config import load_config
from rl_training.config.presets import find_preset, preset_for
from rl_training.errors import UserError


def write(directory: Path, name: str) -> Path:
    path = directory / name
    path.write_text("algo: ppo\nenv_id: CartPole-v1\n", encoding="utf-8")
    return path


def test_a_preset_is_found_by_path_and_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    preset = find_preset("ppo_cartpole")
    assert preset.is_file()
    for spelling in ("ppo_cartpole.yaml", "zoo/ppo_cartpole.yaml", "zoo/ppo_cartpole"):
        assert find_preset(spelling) == preset
    own = write(tmp_path, "ppo_cartpole.yaml")
    assert find_preset("ppo_cartpole.yaml").resolve() == own
    assert find_preset(own) == own


def test_an_unknown_preset_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Did you mean 'ppo_cartpole'\?"):
        find_preset("ppo_cartpol")
    with pytest.raises(UserError, match="is a directory"):
        load_config(tmp_path)


def test_the_preset_of_an_algorithm_and_an_environment() -> None:
    assert preset_for("ppo", "CartPole-v1") == find_preset("ppo_cartpole")
    assert preset_for("ppo", "Nothing-v0") is None


@pytest.mark.parametrize(
    ("preset", "overlay", "fitting"),
    [
        ("sac_pendulum", "tiny", "tiny_replay"),
        ("dqn_cartpole", "tiny", "tiny_replay"),
        ("procgen/ppg_starpilot", "tiny", "tiny_sequences"),
        ("ppo_cartpole", "tiny_replay", "tiny"),
        ("ppo_cartpole", "tiny_sequences", "tiny"),
        ("td3_pendulum", "tiny_sequences", "tiny_replay"),
    ],
)
def test_an_overlay_of_another_algorithm_is_named_with_the_one_that_fits(
    preset: str, overlay: str, fitting: str
) -> None:
    message = f"{overlay}.yaml: the overlay '{overlay}' does not fit this config of .*: give "
    with pytest.raises(UserError, match=f"{message}--config {fitting} instead"):
        load_config([preset, overlay])
    assert load_config([preset, fitting]).total_timesteps == 256


def test_a_mistake_beside_a_fitting_overlay_is_told_as_it_is() -> None:
    with pytest.raises(UserError, match="unknown key 'num_env'"):
        load_config(["ppo_cartpole", "tiny"], {"num_env": 3})
