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
