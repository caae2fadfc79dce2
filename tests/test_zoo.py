from __future__ import annotations

from pathlib import Path

import pytest

from rl_training.config import config_from_dict, config_to_dict, load_config, preset_for
from rl_training.config.layers import Layers
from rl_training.config.presets import (
    find_preset,
    manifest_paths,
    preset_paths,
    zoo_directory,
)
from rl_training.registry import ALGORITHMS

ZOO = Path(__file__).parent.parent / "zoo"
OVERLAYS = {
    "tiny": ("ppo", "ppg", "recurrent_ppo", "recurrent_ppg"),
    "tiny_replay": ("dqn", "sac", "td3"),
    "tiny_sequences": (),
}
"""Each with the algorithms that it is for; the last is for PPG with whole sequences."""
MANIFESTS = [*ZOO.glob("benchmarks/*.yaml"), *ZOO.glob("*/benchmark.yaml")]
FILES = {
    path.relative_to(ZOO).with_suffix("").as_posix(): path
    for path in ZOO.rglob("*.yaml")
    if path not in MANIFESTS
}
PRESETS = sorted(set(FILES) - set(OVERLAYS))


def test_the_walk_finds_the_zoo() -> None:
    assert zoo_directory() == ZOO
    assert set(FILES) == set(preset_paths())
    assert len(PRESETS) >= 11
    assert set(FILES) >= set(OVERLAYS)
    assert sorted(manifest_paths().values()) == sorted(MANIFESTS)
    assert len(MANIFESTS) >= 3


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_builds_strictly(name: str) -> None:
    config = load_config(FILES[name])
    assert name.rpartition("/")[2].startswith(f"{config.algo}_")
    assert config.algo in ALGORITHMS
    assert config_from_dict(config_to_dict(config), source=name) == config


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_the_one_for_its_algorithm_and_environment(name: str) -> None:
    config = load_config(FILES[name])
    assert preset_for(config.algo, config.env_id) == FILES[name]
    assert find_preset(name) == FILES[name]


@pytest.mark.parametrize("name", PRESETS)
def test_an_overlay_fits_every_preset_of_its_algorithms(name: str) -> None:
    preset = load_config(FILES[name])
    [overlay] = [each for each, algorithms in OVERLAYS.items() if preset.algo in algorithms]
    if preset.algo == "ppg" and preset.algorithm.whole_sequences:
        overlay = "tiny_sequences"
    config = load_config([FILES[name], FILES[overlay]])
    changed = Layers()
    changed.add_file(FILES[overlay])
    assert config.total_timesteps == changed.data["total_timesteps"]


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_opens_with_its_command_and_what_was_measured(name: str) -> None:
    header = FILES[name].read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    assert all(line.startswith("#") for line in header)
    assert any(line.startswith("# Command: rl-training train --config zoo/") for line in header)
    assert any(line.startswith("# Measured: ") for line in header)
