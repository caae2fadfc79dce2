"""The program as a process of its own, and the package as an import."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rl_training
from rl_training.version import __version__


@pytest.mark.parametrize("module", ["rl_training", "rl_training.cli"])
@pytest.mark.parametrize("words", [["--help"], ["--version"], ["list"], ["train", "--help"]])
def test_the_program_answers_without_importing_what_is_slow(module: str, words: list[str]) -> None:
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", module, *words],
        capture_output=True,
        text=True,
        check=True,
    )
    # What is imported, not how long it takes: that is the machine's.
    imported = {line.rpartition("|")[2].strip() for line in run.stderr.splitlines()}
    assert "rl_training" in imported
    assert imported.isdisjoint({"torch", "tensordict", "torchrl", "numpy", "gymnasium", "rich"})
    assert {"--help": "usage: rl-training", "--version": __version__}.get(
        words[0], ""
    ) in run.stdout


def test_the_package_lists_its_names_without_importing_them() -> None:
    code = (
        "import sys, rl_training\n"
        "assert {'PPO', 'PPG', 'TrainConfig', 'train_ppo', 'make_env'} <= set(dir(rl_training))\n"
        "assert rl_training.__version__\n"
        "assert not hasattr(rl_training, 'nothing')\n"
        "assert 'torch' not in sys.modules\n"
        "assert rl_training.TrainConfig.__name__ == 'TrainConfig'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_exists() -> None:
    for name in rl_training.__all__:
        assert getattr(rl_training, name) is not None


@pytest.mark.parametrize(
    "words",
    [
        ["eval", "nowhere"],
        ["resume", "nowhere"],
        ["export", "nowhere"],
        ["card", "nowhere"],
        ["plot", "nowhere"],
        ["compare", "nowhere", "nowhere"],
    ],
    ids=lambda words: words[0],
)
def test_a_path_that_does_not_exist_is_told_without_importing_torch(words: list[str]) -> None:
    code = (
        "import sys\n"
        "from rl_training.cli import main\n"
        f"assert main({words!r}) == 2\n"
        "assert 'torch' not in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr.startswith("rl-training: error: there is no run ")
    assert "nowhere" in run.stderr
