from __future__ import annotations

from pathlib import Path

import pytest

from rl_training.config import find_manifest, load_config, manifest_paths, replace_config
from rl_training.errors import UserError
from rl_training.experiments.jobs import jobs_of
from rl_training.experiments.manifest import Manifest, load_manifest
from tests.test_zoo_scores import GOALS

MANIFESTS = {name: load_manifest(path) for name, path in manifest_paths().items()}
ENTRIES = [(name, preset) for name, each in MANIFESTS.items() for preset in each.presets]

TEXT = """
title: Two
seeds: [1, 2]
presets:
  ppo_cartpole:
"""


def write(directory: Path, text: str = TEXT) -> Path:
    path = directory / "two.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(directory: Path, old: str, new: str) -> str:
    path = write(directory, TEXT.replace(old, new))
    with pytest.raises(UserError) as caught:
        load_manifest(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def test_the_walk_finds_manifests_and_presets() -> None:
    assert {"classic", "box2d", "cartpole", "atari"} <= set(MANIFESTS)
    assert len(ENTRIES) > 20
    algorithms = {load_config(preset).algo for preset in MANIFESTS["classic"].presets}
    assert algorithms == {"ppo", "ppg", "dqn", "sac", "td3", "recurrent_ppo", "recurrent_ppg"}


@pytest.mark.parametrize(("name", "preset"), ENTRIES)
def test_every_preset_of_a_manifest_builds(name: str, preset: str) -> None:
    manifest = MANIFESTS[name]
    entry = manifest.presets[preset]
    config, own = manifest.config(preset), load_config(entry.preset or preset)
    assert config.env_id == (entry.env_id or own.env_id)
    assert config.total_timesteps == own.total_timesteps
    assert config.evaluation.interval == -(-own.total_timesteps // manifest.evaluations)
    for peer in manifest.presets[preset].peers:
        assert manifest.sources[peer.source].url.startswith("https://")
    if (goal := {each[0]: each for each in GOALS}.get(preset)) and name != "cartpole":
        entry = manifest.presets[preset]
        assert (entry.expected, entry.expected_of) == (goal[2], goal[3])


def test_defaults_and_own_values(tmp_path: Path) -> None:
    manifest = load_manifest(write(tmp_path))
    assert (manifest.name, manifest.title, manifest.episodes) == ("two", "Two", 100)
    assert manifest.seeds_of("ppo_cartpole") == [1, 2]
    text = TEXT.replace("ppo_cartpole:", "ppo_cartpole: {seeds: [4], total_timesteps: 1_000}")
    manifest = load_manifest(write(tmp_path, text + "overlays: [tiny]\nevaluations: 4\n"))
    assert manifest.seeds_of("ppo_cartpole") == [4]
    config = manifest.config("ppo_cartpole")
    assert (config.total_timesteps, config.num_envs) == (1000, 2)
    assert config.evaluation.interval == 250
    assert config.evaluation.episodes == 2


def test_one_preset_is_run_on_several_environments(tmp_path: Path) -> None:
    text = TEXT + "  ppo_acrobot_too: {preset: ppo_cartpole, env_id: Acrobot-v1}\n"
    manifest = load_manifest(write(tmp_path, text))
    config, preset = manifest.config("ppo_acrobot_too"), manifest.config("ppo_cartpole")
    assert config == replace_config(preset, env_id="Acrobot-v1")
    names = [job.directory.name for job in jobs_of(manifest, tmp_path)]
    assert len(names) == len(set(names)) == 4
    assert "ppo_acrobot_too__seed2" in names


def test_the_atari_manifest_has_three_algorithms_on_each_of_five_games() -> None:
    manifest = MANIFESTS["atari"]
    configs = [manifest.config(name) for name in manifest.presets]
    games = {config.env_id for config in configs}
    assert len(games) == 5 and set(manifest.references) == games
    for config in configs:
        assert config.env.atari.enabled
    assert {(config.algo, config.env_id) for config in configs} == {
        (algo, game) for algo in ("ppo", "dqn", "ppg") for game in games
    }


def test_a_part_of_a_manifest(tmp_path: Path) -> None:
    manifest = load_manifest(write(tmp_path, TEXT + "  ppg_cartpole: {seeds: [2, 3]}\n"))
    part = manifest.select(["ppg_cartpole"], [3])
    assert (list(part.presets), part.seeds_of("ppg_cartpole")) == (["ppg_cartpole"], [3])
    assert manifest.select().presets == {
        name: type(entry)(**{**vars(entry), "seeds": manifest.seeds_of(name)})
        for name, entry in manifest.presets.items()
    }
    with pytest.raises(UserError, match=r"Did you mean 'ppg_cartpole'\?"):
        manifest.select(["ppg_cartpol"])
    with pytest.raises(UserError, match=r"no seed 9\. It has 1, 2, 3\."):
        manifest.select([], [9])


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("seeds:", "seed:", "unknown key 'seed'"),
        ("title: Two", "titel: Two", "Did you mean 'title'?"),
        ("title: Two", "name: Two", "name is that of the file"),
        ("[1, 2]", "[1, x]", "seeds[1]: expected a whole number, not 'x'."),
        ("[1, 2]", "[1, 1]", "names a seed twice"),
        ("[1, 2]", "[]", "must name at least one seed"),
        ("[1, 2]", "[1, -2]", "must not be negative"),
        ("  ppo_cartpole:", "  {}", "presets must name at least one preset"),
        (
            "cartpole:",
            "cartpole: {expect: 3}",
            "'presets.ppo_cartpole.expect'. Did you mean 'expected'?",
        ),
        (
            "cartpole:",
            "cartpole: {qqqqqqqq: 3}",
            "'presets.ppo_cartpole.qqqqqqqq'. Valid here: expected, expected_of, seeds, "
            "total_timesteps, preset, env_id, overlays, peers, note.",
        ),
        (
            "cartpole:",
            "cartpole: {peers: [{qqqqqqqq: 3}]}",
            "'presets.ppo_cartpole.peers[0].qqqqqqqq'. Valid here: source, steps, score, spread, ",
        ),
        (
            "cartpole:",
            "cartpole: {peers: [{source: zoo, steps: 1, score: 2}]}",
            "names the source 'zoo', which sources does not have (none)",
        ),
        ("title: Two", "title: Two\nreferences: {A-v0: {low: 2, high: 1}}", "low below its high"),
        ("title: Two", "title: Two\nepisodes: 0", "episodes must be at least 1, not 0."),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    message = refusal(tmp_path, old, new)
    assert complaint in message and "\n" not in message


def test_manifests_are_found_by_path_and_by_name(tmp_path: Path) -> None:
    path = find_manifest("classic")
    for spelling in ("benchmarks/classic", "zoo/benchmarks/classic.yaml", "classic.yaml"):
        assert find_manifest(spelling) == path or find_manifest(spelling).resolve() == path
    own = write(tmp_path)
    assert find_manifest(own) == own
    with pytest.raises(UserError, match=r"Did you mean 'classic'\?"):
        load_manifest("clasic")
    assert isinstance(load_manifest("classic"), Manifest)
