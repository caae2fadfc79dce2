"""The program as a process of its own, and the package as an import."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rl_training
from rl_training.cli import commands, main
from rl_training.errors import UserError, lies_here
from rl_training.registry import import_object
from rl_training.version import __version__
from tests.processes import Process, run_script


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["list"], ["--help"], ["train", "--help"]], ids=" ".join)
def test_a_standard_output_that_is_full_is_told_in_one_line(
    words: list[str], unbuffered: str
) -> None:
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            [sys.executable, "-m", "rl_training", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert run.returncode == 1
    full_text = os.strerror(errno.ENOSPC)
    assert run.stderr == f"rl-training: error: standard output cannot be written: {full_text}\n"


def test_characters_that_the_output_lacks_take_nothing_else_away() -> None:
    code = (
        "from rl_training.cli.output import print_what_can_be_printed, tell\n"
        "print_what_can_be_printed()\n"
        "tell('20.0 \u00b1 1.0')\n"
        "print('r\u00e9sum\u00e9')\n"
        "tell('the end')"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert run.stderr == b""
    assert run.stdout.splitlines() == [b"20.0 ? 1.0", b"r?sum?", b"the end"]


def test_an_error_of_the_system_from_elsewhere_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: list[str]) -> int:
        raise OSError(errno.ENOSPC, "the simulator's disk is full")

    monkeypatch.setattr(commands, "_dispatch", fails)
    assert main(["list"]) == 1
    assert "Traceback" in (err := capsys.readouterr().err) and "simulator's disk" in err


def test_a_module_in_the_current_directory_that_a_script_does_not_see_is_told(
    tmp_path: Path,
) -> None:
    (tmp_path / "of_my_own.py").write_text("", encoding="utf-8")
    commands = (
        ["train", "--algo", "ppo", "--env-id", "of_my_own:Robot-v0"],
        ["train", "--algo", "ppo", "--env-id", "of_my_own.parts:parallel_env"],
        ["check-env", "of_another:Robot-v0"],
    )
    script = tmp_path / "bin" / "rl-training"  # its own directory comes first, as an installed one
    script.parent.mkdir()
    lines = f"from rl_training.cli import main\nprint([main(words) for words in {commands}])\n"
    script.write_text(lines, encoding="utf-8")
    with Process(run_script, script, cwd=tmp_path) as process:
        out, err = process.communicate(timeout=120)
    assert out == "[2, 2, 2]\n"
    told = err.splitlines()
    lies_here = ["'of_my_own' lies in the current directory" in line for line in told]
    assert lies_here == ["python -m rl_training" in line for line in told] == [True, True, False]


def test_a_module_that_is_looked_for_in_the_current_directory_is_not_told_to_lie_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    (tmp_path / "of_my_own").mkdir()
    assert "of_my_own" in lies_here("of_my_own.missing")
    with pytest.raises(UserError, match=r"no module 'of_my_own'\. 'of_my_own' lies in the current"):
        import_object("of_my_own:Net")
    for place in ("", str(tmp_path)):
        monkeypatch.setattr(sys, "path", [place, *sys.path])
        assert lies_here("of_my_own.missing") == ""
        monkeypatch.setattr(sys, "path", sys.path[1:])


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
