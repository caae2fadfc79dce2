"""What a checkpoint holds, how it is found again, and which ones stay."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.runtime.checkpoint import (
    CheckpointError,
    CheckpointWriteError,
    NoCheckpointError,
    digest,
    latest_intact,
    list_checkpoints,
    load_checkpoint,
    load_policy,
    read_link,
    resolve_checkpoint,
    save_alone,
    save_checkpoint,
    save_policy,
    verify,
)

CONFIG = {"algo": "ppo", "env_id": "CartPole-v1", "model": {"hidden_sizes": [64, 64]}}


def make_state(step: int) -> dict[str, Any]:
    return {
        "algorithm": {"weight": torch.full((3, 2), float(step)), "betas": (0.9, 0.999)},
        "loop": {"step": step, "rng": np.arange(4, dtype=np.uint32)},
        "run": {},
    }


def save(checkpoints: Path, step: int, **changes: Any) -> Path:
    arguments: dict[str, Any] = {
        "state": make_state(step),
        "policy": {"weight": torch.full((3, 2), float(step)), "spaces": {"action": {"n": 2}}},
        "config": CONFIG,
        "keep_last": 3,
    }
    return save_checkpoint(checkpoints, step=step, **{**arguments, **changes})


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    return tmp_path / "run" / "checkpoints"


def names(checkpoints: Path) -> list[str]:
    return [path.name for path in list_checkpoints(checkpoints)]


def test_what_was_saved_comes_back_with_config_and_digest(checkpoints: Path) -> None:
    path = save(checkpoints, 50_000)
    loaded = load_checkpoint(path)
    assert path.name == "step_000000050000"
    assert digest(loaded.state) == digest(make_state(50_000))
    assert loaded.config == CONFIG
    assert loaded.path == path


def test_the_manifest_lists_every_file_with_its_size_and_hash(checkpoints: Path) -> None:
    path = save(checkpoints, 1)
    manifest = json.loads((path / "manifest.json").read_bytes())
    present = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
    assert set(manifest["files"]) == present - {"manifest.json"}
    for name, entry in manifest["files"].items():
        data = (path / name).read_bytes()
        assert entry == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert manifest["schema_version"] == 1
    assert manifest["step"] == 1
    text = json.dumps(CONFIG, sort_keys=True, separators=(",", ":")).encode()
    assert manifest["config_hash"] == hashlib.sha256(text).hexdigest()
    assert manifest["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert {"torchrl", "tensordict", "gymnasium", "numpy", "rl_training"} <= set(
        manifest["versions"]
    )


def test_only_safetensors_and_json_are_written(checkpoints: Path) -> None:
    path = save(checkpoints, 1)
    suffixes = {file.suffix for file in path.rglob("*") if file.is_file()}
    assert suffixes == {".safetensors", ".json"}


def test_the_policy_works_when_copied_elsewhere_alone(checkpoints: Path, tmp_path: Path) -> None:
    path = save(checkpoints, 7)
    shutil.copytree(path / "policy", tmp_path / "elsewhere")
    shutil.rmtree(path)
    loaded = load_policy(tmp_path / "elsewhere")
    assert torch.equal(loaded.state["weight"], torch.full((3, 2), 7.0))
    assert loaded.state["spaces"] == {"action": {"n": 2}}
    assert loaded.config == CONFIG
    verify(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="evaluated, not resumed"):
        load_checkpoint(tmp_path / "elsewhere")


def test_the_policy_of_a_checkpoint_is_found_in_it(checkpoints: Path) -> None:
    path = save(checkpoints, 7)
    assert load_policy(path).path == path / "policy"


def test_the_newest_stay_and_the_best_and_protected_with_them(checkpoints: Path) -> None:
    save(checkpoints, 10, best=True)
    protected = save(checkpoints, 20)
    for step in (30, 40, 50, 60):
        save(checkpoints, step, keep_last=2, protect=[protected])
    assert names(checkpoints) == [
        "step_000000000010",
        "step_000000000020",
        "step_000000000050",
        "step_000000000060",
    ]
    assert read_link(checkpoints, "latest") == checkpoints / "step_000000000060"
    assert read_link(checkpoints, "best") == checkpoints / "step_000000000010"


def test_a_former_best_is_deleted_once_another_is_best(checkpoints: Path) -> None:
    save(checkpoints, 10, keep_last=1, best=True)
    save(checkpoints, 20, keep_last=1)
    save(checkpoints, 30, keep_last=1, best=True)
    assert names(checkpoints) == ["step_000000000030"]


def test_keep_last_one_keeps_the_one_just_written(checkpoints: Path) -> None:
    for step in (10, 20):
        save(checkpoints, step, keep_last=1)
    assert names(checkpoints) == ["step_000000000020"]
    assert sorted(path.name for path in checkpoints.iterdir()) == ["latest", "step_000000000020"]


def test_keep_last_below_one_is_refused(checkpoints: Path) -> None:
    with pytest.raises(ValueError, match="keep_last"):
        save(checkpoints, 1, keep_last=0)


def test_the_same_step_with_the_same_content_is_kept_as_it_is(checkpoints: Path) -> None:
    first = save(checkpoints, 10)
    inode = (first / "state.safetensors").stat().st_ino
    assert save(checkpoints, 10, best=True) == first
    assert (first / "state.safetensors").stat().st_ino == inode
    assert read_link(checkpoints, "best") == first
    assert names(checkpoints) == ["step_000000000010"]


def test_the_same_step_with_other_content_replaces_the_old_under_a_new_name(
    checkpoints: Path,
) -> None:
    save(checkpoints, 10)
    second = save(checkpoints, 10, state={"other": 1})
    assert names(checkpoints) == ["step_000000000010_2"]
    assert load_checkpoint(second).state == {"other": 1}
    third = save(checkpoints, 10, state={"other": 2})
    assert latest_intact(checkpoints.parent) == third
    assert len(names(checkpoints)) == 1


def test_the_same_step_saved_again_leaves_the_best_untouched(checkpoints: Path) -> None:
    best = save(checkpoints, 10, best=True)
    again = save(checkpoints, 10, state={"other": 1})
    assert again != best
    assert read_link(checkpoints, "best") == best
    assert load_checkpoint(best).state["loop"]["step"] == 10


def test_a_damaged_checkpoint_of_the_same_step_is_replaced(checkpoints: Path) -> None:
    first = save(checkpoints, 10)
    (first / "config.json").unlink()
    second = save(checkpoints, 10)
    assert load_checkpoint(second).state["loop"]["step"] == 10
    assert not first.exists()


def test_resuming_further_back_goes_on_from_the_branch_that_was_written_last(
    checkpoints: Path,
) -> None:
    for step in (10, 20, 30):
        save(checkpoints, step)
    branch = save(checkpoints, 20, state={"branch": 2})
    assert latest_intact(checkpoints.parent) == branch
    assert (checkpoints / "step_000000000030").exists()


def test_a_checkpoint_published_before_the_crash_moved_latest_is_no_obstacle(
    checkpoints: Path,
) -> None:
    save(checkpoints, 10)
    latest = (checkpoints / "latest").read_bytes()
    save(checkpoints, 20)
    (checkpoints / "latest").write_bytes(latest)
    assert latest_intact(checkpoints.parent).name == "step_000000000010"
    assert save(checkpoints, 20).name == "step_000000000020"
    assert latest_intact(checkpoints.parent).name == "step_000000000020"


@pytest.mark.parametrize("link", [None, b"", b"nonsense", b"../../etc", b"step_999999999999\n"])
def test_without_a_usable_latest_the_newest_by_step_is_taken(
    checkpoints: Path, link: bytes | None
) -> None:
    save(checkpoints, 9)
    newest = save(checkpoints, 10)
    (checkpoints / "latest").unlink()
    if link is not None:
        (checkpoints / "latest").write_bytes(link)
    assert latest_intact(checkpoints.parent) == newest
    assert resolve_checkpoint(checkpoints.parent) == newest


def test_a_user_may_name_a_run_a_checkpoint_a_link_or_a_policy(
    checkpoints: Path, tmp_path: Path
) -> None:
    best = save(checkpoints, 10, best=True)
    latest = save(checkpoints, 20)
    run = checkpoints.parent
    assert resolve_checkpoint(run) == latest
    assert resolve_checkpoint(str(run), best=True) == best
    assert resolve_checkpoint(checkpoints) == latest
    assert resolve_checkpoint(checkpoints / "latest") == latest
    assert resolve_checkpoint(checkpoints / "best") == best
    assert resolve_checkpoint(best) == best
    assert resolve_checkpoint(best / "policy") == best / "policy"


def test_a_folder_of_runs_and_the_best_of_one_checkpoint_are_refused(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metadata.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"is no run, it holds 2: .*first, .*second$"):
        resolve_checkpoint(tmp_path)
    checkpoint = tmp_path / "first/checkpoints/step_000000000128"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}", encoding="utf-8")
    assert resolve_checkpoint(checkpoint) == checkpoint
    with pytest.raises(CheckpointError, match="one checkpoint; the best one is asked for of a run"):
        resolve_checkpoint(checkpoint, best=True)


def test_what_is_not_there_is_said_in_one_line(checkpoints: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no run or checkpoint"):
        resolve_checkpoint(tmp_path / "missing")
    with pytest.raises(NoCheckpointError, match="step 0"):
        latest_intact(tmp_path)
    checkpoints.mkdir(parents=True)
    with pytest.raises(NoCheckpointError, match="no checkpoint yet"):
        resolve_checkpoint(checkpoints.parent)
    with pytest.raises(NoCheckpointError):
        latest_intact(checkpoints.parent)
    save(checkpoints, 1)
    with pytest.raises(CheckpointError, match="no best checkpoint"):
        resolve_checkpoint(checkpoints.parent, best=True)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        load_checkpoint(tmp_path / "missing")


def test_what_dead_writers_left_is_cleaned_by_the_next_save(checkpoints: Path) -> None:
    save(checkpoints, 1)
    for name in (".tmp-dead", ".trash-dead"):
        (checkpoints / name / "policy").mkdir(parents=True)
        (checkpoints / name / "state.json").write_text("{")
    (checkpoints / ".latest.tmp-dead").write_text("step_0000")
    save(checkpoints, 2)
    assert [path.name for path in checkpoints.iterdir() if path.name.startswith(".")] == []


@pytest.mark.skipif(os.name == "nt", reason="no directory locks on Windows")
def test_a_directory_another_writer_is_writing_in_stays(checkpoints: Path) -> None:
    import fcntl

    busy = checkpoints / ".tmp-busy"
    busy.mkdir(parents=True)
    descriptor = os.open(busy, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        save(checkpoints, 1)
        assert busy.exists()
    finally:
        os.close(descriptor)
    save(checkpoints, 2)
    assert not busy.exists()


def test_a_checkpoint_saved_alone_replaces_an_earlier_one_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "models" / "mine"
    for step in (1, 2):
        save_alone(target, step=step, state=make_state(step), policy={"step": step}, config=CONFIG)
    assert load_checkpoint(target).state["loop"]["step"] == 2
    assert load_policy(target).state == {"step": 2}
    assert [path.name for path in target.parent.iterdir()] == ["mine"]
    save_policy(target, step=3, policy={"step": 3}, config=CONFIG)
    assert load_policy(target).state == {"step": 3}
    (tmp_path / "other").mkdir()
    (tmp_path / "file").write_text("x")
    for taken in ("other", "file"):
        with pytest.raises(CheckpointWriteError, match="is no checkpoint"):
            save_policy(tmp_path / taken, step=1, policy={}, config=CONFIG)
    with pytest.raises(CheckpointWriteError, match="nothing was written"):
        save_policy(tmp_path / "file" / "x", step=1, policy={}, config=CONFIG)
