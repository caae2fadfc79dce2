"""A damaged checkpoint is named; resume goes on from the one before and still ends the same."""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_training import cli
from tests.reliability.conftest import Reference
from tests.reliability.runs import assert_same_training, checkpoints, execute

NAME = "ppg_cartpole_normalized"
Damage = Callable[[Path], str]


class Boom:
    """What a stranger may have put into a checkpoint."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch /tmp/rl_training_was_here; exit 1",)


def flip_a_byte(checkpoint: Path) -> str:
    path = checkpoint / "policy" / "policy.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    return "policy.safetensors"


def remove_a_file(checkpoint: Path) -> str:
    (checkpoint / "policy" / "policy.json").unlink()
    return "policy.json"


def cut_a_file_short(checkpoint: Path) -> str:
    path = checkpoint / "policy" / "policy.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    return "policy.safetensors"


def raise_the_schema_version(checkpoint: Path) -> str:
    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**manifest, "schema_version": 99}), encoding="utf-8")
    return "manifest.json"


def plant_a_pickle(checkpoint: Path) -> str:
    (checkpoint / "extra.pkl").write_bytes(pickle.dumps(Boom()))
    return "extra.pkl"


def put_a_pickle_in_place(checkpoint: Path) -> str:
    (checkpoint / "policy" / "policy.safetensors").write_bytes(pickle.dumps(Boom()))
    return "policy.safetensors"


def cut_the_manifest_short(checkpoint: Path) -> str:
    path = checkpoint / "manifest.json"
    path.write_bytes(path.read_bytes()[:200])
    return "manifest.json"


ALL: list[Damage] = [
    flip_a_byte,
    remove_a_file,
    cut_a_file_short,
    raise_the_schema_version,
    plant_a_pickle,
    put_a_pickle_in_place,
    cut_the_manifest_short,
]


@pytest.fixture
def damaged_run(tmp_path: Path, reference: Reference) -> Path:
    """Return a copy of an undisturbed run, for a test to damage."""
    return shutil.copytree(reference(NAME), tmp_path / "run")


@pytest.mark.parametrize("damage", ALL)
def test_resume_goes_on_from_the_checkpoint_before(
    damaged_run: Path, reference: Reference, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    latest = checkpoints(damaged_run)[-1]
    file = damage(latest)
    with caplog.at_level(logging.WARNING):
        assert cli.main(["resume", str(damaged_run)]) == 0
    [warning] = [line for line in caplog.messages if "damaged" in line]
    assert str(latest) in warning
    assert file in warning
    assert_same_training(damaged_run, reference(NAME))
    # The damaged one was replaced.
    assert cli.main(["eval", str(damaged_run), "--episodes", "1"]) == 0


def test_resume_says_so_on_stderr(damaged_run: Path, reference: Reference) -> None:
    latest = checkpoints(damaged_run)[-1]
    state = latest / "state.safetensors"
    data = bytearray(state.read_bytes())
    data[len(data) // 2] ^= 1
    state.write_bytes(data)
    done = execute("resume", damaged_run)
    assert done.returncode == 0, done.stderr
    assert f"{state} was changed after it was written" in done.stderr
    assert_same_training(damaged_run, reference(NAME))


@pytest.mark.parametrize("damage", ALL)
def test_the_damaged_checkpoint_itself_is_refused_in_one_line(
    damaged_run: Path, damage: Damage, capsys: pytest.CaptureFixture[str]
) -> None:
    latest = checkpoints(damaged_run)[-1]
    file = damage(latest)
    for words in (["eval", "--episodes", "1"], ["resume"]):
        capsys.readouterr()
        assert cli.main([words[0], str(latest), *words[1:]]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert file in err
        assert "Traceback" not in err


def test_when_all_are_damaged_nothing_is_trained(
    damaged_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for checkpoint in checkpoints(damaged_run):
        flip_a_byte(checkpoint)
    lines = (damaged_run / "metrics.jsonl").read_bytes()
    assert cli.main(["resume", str(damaged_run)]) == 2
    assert "every checkpoint" in capsys.readouterr().err
    assert (damaged_run / "metrics.jsonl").read_bytes() == lines
