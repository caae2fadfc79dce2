"""Replay buffers of many shards, most of them hard links: damage, kills, a full disk."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_training import cli
from rl_training.config import config_from_dict
from rl_training.runtime.checkpoint import verify
from rl_training.runtime.files import write_durable
from rl_training.workflows import train
from tests.reliability.runs import (
    assert_same_training,
    checkpoints,
    digest,
    execute,
    kill,
    result,
    status,
    the_run,
)
from tests.reliability.settings import FRAMES, setting, write_setting

TRANSITIONS = 64
"""Of a shard; the buffer holds 1100."""
IN_A_PROCESS = "tests.reliability.small_shards:CartPole-v1"
Damage = Callable[[Path, Path], str]


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.data.transition_ring._SHARD_TRANSITIONS", TRANSITIONS)


def content(output: Path, **changes: Any) -> dict[str, Any]:
    every = {"checkpoint": {"interval": 3 * FRAMES, "keep_last": 3, "keep_best": False}}
    return setting("dqn_cartpole_prioritized", output_dir=str(output), **{**every, **changes})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("whole") / "runs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rl_training.data.transition_ring._SHARD_TRANSITIONS", TRANSITIONS)
        return train(config_from_dict(content(output), source="test")).run_dir


def copy_with_links(run: Path, target: Path) -> Path:
    """Copy a run so that what is one file in it is one file in the copy."""
    copies: dict[int, str] = {}

    def copy(source: str, destination: str) -> None:
        inode = os.stat(source).st_ino
        if inode in copies:
            os.link(copies[inode], destination)
        else:
            copies[inode] = destination
            shutil.copy2(source, destination)

    return shutil.copytree(run, target, copy_function=copy)


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return copy_with_links(whole, tmp_path / "run")


def names(checkpoint: Path) -> set[str]:
    return {path.name for path in (checkpoint / "shards").iterdir()}


def own(latest: Path, before: Path) -> Path:
    """Return a shard that only the latest checkpoint has."""
    return latest / "shards" / min(names(latest) - names(before))


def shared(latest: Path, before: Path) -> Path:
    """Return the latest checkpoint's name of a shard that the one before has too."""
    name = min(names(latest) & names(before))
    assert (latest / "shards" / name).samefile(before / "shards" / name)
    return latest / "shards" / name


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    with open(path, "r+b") as file:  # in place: every name of the file sees it
        file.write(data)


def flip_a_byte_of_its_own(latest: Path, before: Path) -> str:
    path = own(latest, before)
    flip_a_byte(path)
    return path.name


def cut_short(latest: Path, before: Path) -> str:
    path = own(latest, before)
    os.truncate(path, path.stat().st_size - 8)
    return path.name


def remove_a_linked_one(latest: Path, before: Path) -> str:
    path = shared(latest, before)
    path.unlink()
    return path.name


def put_a_symbolic_link_in_place(latest: Path, before: Path) -> str:
    path = shared(latest, before)
    path.unlink()
    path.symlink_to(before / "shards" / path.name)
    return path.name


def swap_two(latest: Path, before: Path) -> str:
    first, second = sorted(names(latest) & names(before))[:2]
    folder = latest / "shards"
    (folder / first).rename(folder / "other")
    (folder / second).rename(folder / first)
    (folder / "other").rename(folder / second)
    return "shards"


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_byte_of_its_own,
        cut_short,
        remove_a_linked_one,
        put_a_symbolic_link_in_place,
        swap_two,
    ],
)
def test_a_damaged_shard_costs_one_checkpoint(
    run: Path, whole: Path, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    before, latest = checkpoints(run)[-2:]
    file = damage(latest, before)
    with caplog.at_level(logging.WARNING):
        assert cli.main(["resume", str(run)]) == 0
    [warning] = [line for line in caplog.messages if "damaged" in line]
    assert str(latest) in warning
    assert file in warning
    assert_same_training(run, whole)
    verify(checkpoints(run)[-1])


def test_damage_to_a_shared_shard_is_damage_to_all_that_share_it(
    run: Path, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, latest = checkpoints(run)
    both = sorted((names(second) & names(latest)) - names(first))
    # One that was touched meanwhile is written anew, also where it came out the same.
    files = [path / "shards" for path in (second, latest)]
    name = next(each for each in both if (files[0] / each).samefile(files[1] / each))
    flip_a_byte(latest / "shards" / name)
    with caplog.at_level(logging.WARNING):
        assert cli.main(["resume", str(run)]) == 0
    warnings = " ".join(line for line in caplog.messages if "damaged" in line)
    assert str(second) in warnings
    assert str(latest) in warnings
    assert str(first / "shards") not in warnings
    assert_same_training(run, whole)


def test_when_all_share_the_damage_nothing_is_trained(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *others = [path / "shards" for path in checkpoints(run)]
    everywhere = set.intersection(*(names(path) for path in checkpoints(run)))
    # One that was written to meanwhile is a file of its own, even where its bytes are the same.
    one = [n for n in everywhere if all((each / n).samefile(first / n) for each in others)]
    flip_a_byte(first / min(one))
    lines = (run / "metrics.jsonl").read_bytes()
    assert cli.main(["resume", str(run)]) == 2
    assert "every checkpoint" in capsys.readouterr().err
    assert (run / "metrics.jsonl").read_bytes() == lines


def test_a_copy_without_links_resumes_alike(whole: Path, tmp_path: Path) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(checkpoints(run)[-1])
    assert cli.main(["resume", str(run)]) == 0
    assert_same_training(run, whole)


def test_a_full_disk_among_the_shards_costs_a_checkpoint_and_not_the_run(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shards = 0

    def full_for_a_while(path: Path, data: bytes) -> None:
        nonlocal shards
        shards += path.parent.name == "shards"
        if 60 < shards < 64 and path.parent.name == "shards":
            write_durable(path, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_durable(path, data)

    monkeypatch.setattr("rl_training.runtime.manifest.write_durable", full_for_a_while)
    with caplog.at_level(logging.WARNING):
        run = train(config_from_dict(content(tmp_path / "runs"), source="test")).run_dir
    assert "No space left on device" in caplog.text
    assert status(run) == "finished"
    assert digest(run) == digest(whole)
    for checkpoint in checkpoints(run):
        verify(checkpoint)
    assert [path for path in (run / "checkpoints").iterdir() if path.name.startswith(".")] == []


@pytest.mark.slow
def test_a_run_killed_among_shards_ends_as_the_one_left_alone(tmp_path: Path, whole: Path) -> None:
    output = tmp_path / "runs"
    changes = {"env_id": IN_A_PROCESS, "checkpoint": {"interval": FRAMES, "keep_last": 3}}
    config = write_setting(tmp_path / "config.yaml", content(output, **changes))
    kill(output, "train", "--config", config, lines=16)
    run = the_run(output)
    before, latest = checkpoints(run)[-2:]
    assert len(names(latest) & names(before)) > 10
    assert shared(latest, before).stat().st_nlink > 1
    done = execute("resume", run, "--trust-modules")
    assert done.returncode == 0, done.stderr
    # Another environment's name is part of the state, and its checkpoints are of other steps.
    assert result(run)["eval"] == result(whole)["eval"]
    again = config_from_dict(content(tmp_path / "again", **changes), source="test")
    assert digest(run) == train(again).digest
