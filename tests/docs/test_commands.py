"""Every command that README and docs print is understood by the program it calls."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rl_training.cli import experiments, main, parse_train
from rl_training.cli.arguments import EvaluateArguments, ResumeArguments
from rl_training.cli.check import CheckArguments
from rl_training.cli.flags import parse_flags
from rl_training.cli.tune import TuneArguments
from tests.docs.pages import PAGES, REPOSITORY, Block, blocks, pyproject

COMMANDS = [
    pytest.param(shlex.split(line, comments=True), id=f"{page}: {line.split('#')[0].strip()}")
    for page in PAGES
    for block in blocks(page, "bash")
    for line in block.code.splitlines()
    if line.strip()
]


def check_train(words: Sequence[str]) -> None:
    parse_train(list(words))


def check_arguments(cls: type[Any], words: Sequence[str]) -> None:
    given = parse_flags(cls, list(words), program="rl-training", positional=True)
    given.validate()
    assert given.run_or_checkpoint == "RUN"


PLACES = ("first", "second", "run", "run_or_checkpoint")


def check_many_runs(cls: type[Any], words: Sequence[str]) -> None:
    given = parse_flags(cls, list(words), program="rl-training", positional=True)
    names = [getattr(given, name) for name in PLACES if hasattr(given, name)]
    assert {*names, *getattr(given, "runs", [])} <= {"RUN"}
    if getattr(given, "manifest", "MANIFEST") not in ("MANIFEST", "my_benchmark.yaml"):
        assert given.manager().jobs


def check_benchmark_command(words: Sequence[str]) -> None:
    classes = {
        "run": experiments.RunArguments,
        "status": experiments.StatusArguments,
        "report": experiments.ReportArguments,
        "annotate": experiments.AnnotateArguments,
        "pack": experiments.PackArguments,
    }
    if words[0] == "list":
        _must_succeed(main(["benchmark", *words]))
    else:
        check_many_runs(classes[words[0]], words[1:])


def check_tune(words: Sequence[str]) -> None:
    given = parse_flags(TuneArguments, list(words), program="rl-training tune", positional=True)
    assert given.config and given.trials >= 1
    given.config = [each for each in given.config if not each.startswith("my_")]
    given.space = None if (given.space or "my_").startswith("my_") else given.space
    assert given.study().space


def check_program(words: Sequence[str]) -> None:
    checks: dict[str, Callable[[Sequence[str]], None]] = {
        "train": check_train,
        "eval": lambda rest: check_arguments(EvaluateArguments, rest),
        "resume": lambda rest: check_arguments(ResumeArguments, rest),
        "check-env": lambda rest: parse_flags(
            CheckArguments, list(rest), program="rl-training", positional=True
        ).validate(),
        "list": lambda rest: _must_succeed(main(["list", *rest])),
        "benchmark": check_benchmark_command,
        "tune": check_tune,
        "plot": lambda rest: check_many_runs(experiments.PlotArguments, rest),
        "export": lambda rest: check_many_runs(experiments.ExportArguments, rest),
        "card": lambda rest: check_many_runs(experiments.CardArguments, rest),
        "compare": lambda rest: check_many_runs(experiments.CompareArguments, rest),
    }
    checks[words[0]](words[1:])


def check_make(words: Sequence[str]) -> None:
    dry = ["make", "--dry-run", "--always-make", *words]
    subprocess.run(dry, cwd=REPOSITORY, check=True, capture_output=True)
    arguments = [word.removeprefix("ARGS=") for word in words if word.startswith("ARGS=")]
    if words[0] == "bench":
        check_benchmark(shlex.split(" ".join(arguments)))


def check_benchmark(words: Sequence[str]) -> None:
    from tests.benchmarks.speed import parse_arguments

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["speed", *words])
        parse_arguments()


def check_pip(words: Sequence[str]) -> None:
    assert words[:2] == ["install", "-e"]
    path, _, extras = words[2].partition("[")
    assert path == "."
    known = set(pyproject()["project"]["optional-dependencies"])
    assert set(extras.rstrip("]").split(",")) - {""} <= known


def check_python(words: Sequence[str]) -> None:
    assert words[0] == "-m"
    module, rest = words[1], words[2:]
    if module.startswith(("rl_training.recipes.", "rl_training.contrib.")):
        check_train(["--algo", module.rpartition(".")[2], *rest])
    elif module == "tests.benchmarks.speed":
        check_benchmark(rest)
    else:
        assert module in ("rl_training", "rl_training.cli")
        check_program(rest)


def _must_succeed(status: int) -> None:
    assert status == 0


CHECKS: dict[str, Callable[[Sequence[str]], None]] = {
    "rl-training": check_program,
    "python": check_python,
    "make": check_make,
    "pip": check_pip,
}


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_is_understood(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    CHECKS[words[0]](words[1:])


def test_every_shell_block_is_checked() -> None:
    assert {"README.md", "docs/resume.md", "docs/command_line.md"} <= {
        block.page for block in _shell_blocks()
    }
    assert not [block for block in _shell_blocks() if block.language != "bash" or block.skipped]


def _shell_blocks() -> list[Block]:
    languages = ("bash", "sh", "shell", "console")
    return [block for page in PAGES for name in languages for block in blocks(page, name)]


@pytest.fixture(scope="module")
def a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first training command of the README, made small by the overlay it speaks of."""
    output = tmp_path_factory.mktemp("runs")
    [train] = [
        words
        for block in blocks("README.md", "bash")
        for line in block.code.splitlines()
        if (words := shlex.split(line, comments=True))[:2] == ["rl-training", "train"]
        and words[2:] == ["--config", "zoo/ppg_cartpole.yaml"]
    ]
    assert main([*train[1:], "--config", "zoo/tiny.yaml", "--output-dir", str(output)]) == 0
    [run] = output.iterdir()
    return run


FOLLOWING = [
    line.split("#")[0].strip()
    for block in blocks("README.md", "bash")
    for line in block.code.splitlines()
    if line.startswith(("rl-training eval RUN", "rl-training resume RUN")) and "--video" not in line
]


@pytest.mark.parametrize("command", FOLLOWING)
def test_the_commands_after_training_work(command: str, a_run: Path) -> None:
    words = command.replace("RUN", str(a_run)).replace("200000", "320").split()
    assert main(words[1:]) == 0


def test_a_preset_or_a_manifest_is_a_whole_file(tmp_path: Path) -> None:
    from rl_training.config import load_config
    from rl_training.experiments.manifest import load_manifest
    from rl_training.experiments.search_space import fitted, read_space

    for page in PAGES:
        for number, block in enumerate(blocks(page, "yaml")):
            path = tmp_path / f"{number}.yaml"
            path.write_text(block.code.replace("algo: a2c", "algo: ppo"), encoding="utf-8")
            if block.title == "my_space.yaml":
                assert fitted(read_space(path), load_config("ppo_cartpole"))
                continue
            if block.title is not None:
                assert load_manifest(path).presets
                continue
            assert load_config(path).env_id == "CartPole-v1"
