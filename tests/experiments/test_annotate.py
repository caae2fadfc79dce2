"""Scores in the zoo come from results, and nothing is claimed that was not measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rl_training.cli import main
from rl_training.config import find_preset, preset_paths
from rl_training.config.presets import zoo_directory
from rl_training.errors import UserError
from rl_training.experiments import annotate as module
from rl_training.experiments.annotate import annotate, with_header, with_rows
from tests.experiments.stand_in import TEXT, write_manifest, write_runs

README = """# Presets

## Scores

Mean return.

| preset | steps | mean return, each seed | mean | RL Zoo, one agent | seconds a run |
|---|---|---|---|---|---|
| `ppo_cartpole` | 1 | 9.0 | 9.0 | 500 @ 100k | 10 |
| `ppo_acrobot` | 1,003,520 | -74.1, -72.9, -76.5 | -74.5 | -73.5 @ 1M | 52 to 56 |

## More

End.
"""
PRESET = """# PPO on CartPole-v1.
#
# Command: rl-training train --config zoo/ppo_cartpole.yaml
# Measured: not yet measured.

algo: ppo
env_id: CartPole-v1
"""
SCORES = {"ppo_cartpole": {1: 490.0, 2: 500.0, 3: 471.25}, "ppg_cartpole": {1: 500.0}}


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zoo whose presets and README may be written."""
    for name in ("ppo_cartpole", "ppg_cartpole"):
        text = find_preset(name).read_text("utf-8")
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "README.md").write_text(README, encoding="utf-8")
    monkeypatch.setattr(module, "find_preset", lambda name: tmp_path / f"{name}.yaml")
    return tmp_path


def test_a_complete_preset_is_written_and_an_incomplete_one_is_not(zoo: Path) -> None:
    text = TEXT.replace("name: The Zoo", "name: RL Baselines3 Zoo")
    manifest = write_manifest(zoo, text)
    write_runs(manifest, zoo / "runs", SCORES)
    before = (zoo / "ppg_cartpole.yaml").read_text("utf-8")
    done = annotate(manifest, zoo / "runs", readme=zoo / "README.md")
    assert done.written == ["ppo_cartpole"]
    assert done.skipped == {"ppg_cartpole": "1 of 3 seeds are done"}
    assert (zoo / "ppg_cartpole.yaml").read_text("utf-8") == before
    header, _, keys = (zoo / "ppo_cartpole.yaml").read_text("utf-8").partition("\n\n")
    assert header.endswith(
        "# Command: rl-training train --config zoo/ppo_cartpole.yaml\n"
        "# Measured: mean return of 100 deterministic episodes of the final policy, "
        "seeds 1, 2, 3:\n"
        "#   490.0, 500.0, 471.2 (mean 487.1); 11 to 13 s a run, evaluation included, "
        "one thread of Test CPU, two runs at a time."
    )
    assert keys == find_preset("ppo_cartpole").read_text("utf-8").partition("\n\n")[2]
    readme = (zoo / "README.md").read_text("utf-8")
    assert (
        "| `ppo_cartpole` | 100,352 | 490.0, 500.0, 471.2 | 487.1 | 499.5 @ 100k | 11 to 13 |\n"
        "| `ppo_acrobot` | 1,003,520 | -74.1, -72.9, -76.5 | -74.5 | -73.5 @ 1M | 52 to 56 |\n"
    ) in readme
    assert readme.startswith("# Presets\n\n## Scores\n\nMean return.\n\n| preset |")
    assert readme.endswith("|\n\n## More\n\nEnd.\n")
    again = annotate(manifest, zoo / "runs", readme=zoo / "README.md")
    assert (again.written, again.files) == (["ppo_cartpole"], [])


@pytest.mark.parametrize(
    ("run", "now", "reason"),
    [
        (
            TEXT.replace("cartpole:\n", "cartpole:\n    total_timesteps: 200_000\n"),
            None,
            "other settings than the preset's",
        ),
        (
            TEXT.replace("cartpole:\n", "cartpole:\n    preset: ppo_cartpole\n"),
            None,
            "no preset of its own",
        ),
        (TEXT, TEXT.replace("evaluations: 4", "evaluations: 3"), "changed since"),
        (TEXT + "episodes: 7\n", TEXT, "changed since"),
    ],
)
def test_what_was_run_otherwise_is_not_claimed(
    zoo: Path, run: str, now: str | None, reason: str
) -> None:
    write_runs(write_manifest(zoo, run), zoo / "runs", SCORES)
    manifest = write_manifest(zoo, now or run).select(["ppo_cartpole"])
    done = annotate(manifest, zoo / "runs", readme=zoo / "README.md")
    assert (done.written, done.files) == ([], [])
    assert reason in done.skipped["ppo_cartpole"]


def test_a_table_for_each_algorithm() -> None:
    row = {"preset": "`ppg_cartpole`", "mean": "500.0"}
    text = with_rows(README, {"ppg_cartpole": row}, source="README.md")
    assert text.count("| preset | steps |") == 2
    table = text[text.rindex("| preset |") :]
    assert "RL Zoo" not in table and "| `ppg_cartpole` |  |  | 500.0 |  |" in table
    with pytest.raises(UserError, match="has no section"):
        with_rows("# Presets\n", {"ppg_cartpole": row}, source="README.md")


def test_a_header_without_a_place_is_refused() -> None:
    assert with_header(PRESET, "# Measured: x\n", source="a") == PRESET.replace(
        "not yet measured.", "x"
    )
    with pytest.raises(UserError, match="has no single '# Measured:'"):
        with_header(PRESET.replace("# Measured", "# Seen"), "# Measured: x\n", source="a")
    later = PRESET.replace("# Measured", "# Seen") + "# Measured: later\n"
    with pytest.raises(UserError):
        with_header(later, "# Measured: x\n", source="a")


def test_the_present_readme_stays_as_it_is() -> None:
    text = (zoo_directory() / "README.md").read_text("utf-8")
    assert with_rows(text, {}, source="zoo/README.md") == text


def test_the_readme_says_what_the_presets_say() -> None:
    rows = module._existing((zoo_directory() / "README.md").read_text("utf-8").partition("## S")[2])
    measured = {}
    for name, path in preset_paths().items():
        header = path.read_text("utf-8").partition("\n\n")[0]
        found = re.search(r"#   (.+) \(mean (.+)\); (.+) s a run", header)
        if found and not name.startswith("tiny"):
            measured[name] = found.groups()
    assert len(measured) >= 11
    assert {
        name: (row["mean return, each seed"], row["mean"], row["seconds a run"])
        for name, row in rows.items()
    } == measured


def test_the_command_says_what_it_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_manifest(tmp_path)
    where = [str(tmp_path / "two.yaml"), "--output-dir", str(tmp_path / "none")]
    assert main(["benchmark", "annotate", *where]) == 0
    assert capsys.readouterr().out == (
        "left out  ppo_cartpole: not measured\nleft out  ppg_cartpole: not measured\n"
    )
