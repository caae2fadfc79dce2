"""A checkpoint that is damaged, incomplete or planted is named and never used; resume goes back."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.errors import UserError
from rl_training.runtime.best_checkpoint import restore_best
from rl_training.runtime.checkpoint import (
    CheckpointError,
    latest_intact,
    load_checkpoint,
    load_policy,
    read_link,
    save_checkpoint,
    set_link,
    verify,
)
from rl_training.runtime.files import json_bytes

FILES = [
    "manifest.json",
    "state.json",
    "state.safetensors",
    "config.json",
    "policy/manifest.json",
    "policy/policy.json",
    "policy/policy.safetensors",
    "policy/config.json",
]


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    checkpoints = tmp_path / "run" / "checkpoints"
    for step in (1, 2):
        save_checkpoint(
            checkpoints,
            step=step,
            state={"weight": torch.arange(8.0), "step": step},
            policy={"weight": torch.arange(8.0)},
            config={"algo": "ppo"},
            keep_last=3,
        )
    return checkpoints


@pytest.fixture
def newest(checkpoints: Path) -> Path:
    return checkpoints / "step_000000000002"


def reseal(directory: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Rewrite a manifest as a forger would who knows the format: its own hash is right again."""
    manifest = json.loads((directory / "manifest.json").read_bytes())
    del manifest["manifest_sha256"]
    change(manifest)
    own = hashlib.sha256(json_bytes(manifest, sort_keys=True)).hexdigest()
    manifest["manifest_sha256"] = own
    (directory / "manifest.json").write_bytes(json_bytes(manifest, sort_keys=True))


def expect_refusal(newest: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Every way in refuses by name, and a run falls back to the checkpoint before."""
    for function in (load_checkpoint, verify):
        with pytest.raises(CheckpointError) as caught:
            function(newest)
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)
        assert isinstance(caught.value, UserError)
    with caplog.at_level(logging.WARNING):
        assert latest_intact(newest.parent.parent).name == "step_000000000001"
    assert any(name in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_byte_is_found(
    newest: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = newest / name
    data = path.read_bytes()
    for position in range(0, len(data), max(1, len(data) // 40)):
        changed = bytearray(data)
        changed[position] ^= 0x01
        path.write_bytes(bytes(changed))
        with pytest.raises(CheckpointError):
            load_checkpoint(newest)
    expect_refusal(newest, name, caplog)


def test_a_flip_of_any_byte_of_the_manifest_is_found(newest: Path) -> None:
    path = newest / "manifest.json"
    data = path.read_bytes()
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 0x20
        path.write_bytes(bytes(changed))
        with pytest.raises(CheckpointError):
            load_checkpoint(newest)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(newest: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    (newest / name).unlink()
    expect_refusal(newest, name, caplog)


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_named(
    newest: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    data = (newest / name).read_bytes()
    (newest / name).write_bytes(data[:-1])
    expect_refusal(newest, name, caplog)


@pytest.mark.parametrize("name", ["state.pkl", "policy/weights.pt", ".hidden.pickle", "sub/x.pkl"])
def test_a_planted_file_is_refused_by_name_and_never_opened(
    newest: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    (newest / name).parent.mkdir(exist_ok=True)
    (newest / name).write_bytes(pickle.dumps(print))
    expect_refusal(newest, name, caplog)
    with pytest.raises(CheckpointError, match="does not list it"):
        load_policy(newest)


def test_what_the_system_leaves_in_directories_is_ignored(newest: Path) -> None:
    for name in (".DS_Store", "policy/._weights", ".nfs0001", "Thumbs.db"):
        (newest / name).write_bytes(b"x")
    assert load_checkpoint(newest).state["step"] == 2


def test_a_damaged_policy_is_refused_where_it_is_used_alone(newest: Path, tmp_path: Path) -> None:
    shutil.copytree(newest / "policy", tmp_path / "alone")
    data = bytearray((tmp_path / "alone" / "policy.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "alone" / "policy.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"policy\.safetensors"):
        load_policy(tmp_path / "alone")


def test_a_policy_exchanged_for_another_valid_one_is_refused(
    checkpoints: Path, newest: Path
) -> None:
    other = save_checkpoint(
        checkpoints.parent / "other", step=9, state={}, policy={}, config={}, keep_last=1
    )
    shutil.rmtree(newest / "policy")
    shutil.copytree(other / "policy", newest / "policy")
    with pytest.raises(CheckpointError, match=r"policy/manifest\.json"):
        load_policy(newest)


def test_damage_of_the_training_state_does_not_keep_the_policy_from_being_used(
    newest: Path,
) -> None:
    (newest / "state.safetensors").write_bytes(b"")
    assert load_policy(newest).state["weight"].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_a_newer_schema_says_upgrade(newest: Path, caplog: pytest.LogCaptureFixture) -> None:
    reseal(newest, lambda manifest: manifest.update(schema_version=2))
    with pytest.raises(CheckpointError, match=r"schema version 2.*upgrade rl_training"):
        load_checkpoint(newest)
    expect_refusal(newest, "manifest.json", caplog)


def test_a_newer_schema_is_recognised_even_when_its_manifest_hashes_otherwise(newest: Path) -> None:
    (newest / "manifest.json").write_text(
        json.dumps({"format": "rl_training checkpoint", "schema_version": 3, "pieces": []})
    )
    with pytest.raises(CheckpointError, match="upgrade rl_training"):
        load_checkpoint(newest)


@pytest.mark.parametrize(
    "name", ["../secret.json", "/etc/hostname", "a/../../x", "a\\..\\x", "", "."]
)
def test_a_name_that_leaves_the_checkpoint_is_refused(newest: Path, name: str) -> None:
    (newest.parent / "secret.json").write_text("{}")
    entry = {"size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
    reseal(newest, lambda manifest: manifest["files"].update({name: entry}))
    with pytest.raises(CheckpointError, match="not a plain name"):
        load_checkpoint(newest)


@pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
@pytest.mark.parametrize("linked", ["config.json", "policy"])
def test_a_link_out_of_the_checkpoint_is_not_followed(
    newest: Path, tmp_path: Path, linked: str
) -> None:
    outside = tmp_path / "outside"
    shutil.move(newest / linked, outside)
    (newest / linked).symlink_to(outside)
    for function in (load_checkpoint, verify):
        with pytest.raises(CheckpointError, match=linked):
            function(newest)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe_does_not_hang_the_loader(newest: Path) -> None:
    (newest / "config.json").unlink()
    os.mkfifo(newest / "config.json")
    with pytest.raises(CheckpointError, match="not a regular file"):
        load_checkpoint(newest)


@pytest.mark.parametrize(
    "content",
    [
        {"dict": {"x": {"tensor": "/nowhere"}}},
        {"object": "os.system"},
        {"float": "zz"},
        {"int_dict": {"a": 1}},
        {"dict": 3},
    ],
)
def test_a_forged_structure_is_damage_not_a_crash(newest: Path, content: Any) -> None:
    data = json.dumps(content).encode()
    (newest / "state.json").write_bytes(data)
    entry = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    reseal(newest, lambda manifest: manifest["files"].update({"state.json": entry}))
    with pytest.raises(CheckpointError, match="do not make a state"):
        load_checkpoint(newest)


def test_a_structure_nested_beyond_measure_is_damage_not_a_crash(newest: Path) -> None:
    data = b"[" * 100_000 + b"]" * 100_000
    (newest / "state.json").write_bytes(data)
    entry = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    reseal(newest, lambda manifest: manifest["files"].update({"state.json": entry}))
    with pytest.raises(CheckpointError, match=r"state\.json"):
        load_checkpoint(newest)


def test_another_tools_manifest_is_refused(newest: Path) -> None:
    for content in (b"[]", b"{}", b"not json", b"\xff\xfe"):
        (newest / "manifest.json").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"manifest\.json"):
            load_checkpoint(newest)


def test_when_all_are_damaged_the_newest_is_named(checkpoints: Path, newest: Path) -> None:
    for path in (newest, checkpoints / "step_000000000001"):
        (path / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"every checkpoint .*step_000000000002/state.json"):
        latest_intact(checkpoints.parent)


def test_best_is_not_set_to_a_damaged_checkpoint(
    checkpoints: Path, newest: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (newest / "state.json").write_text("{}")
    restore_best(checkpoints, step=2, best_step=2)
    assert read_link(checkpoints, "best") is None
    assert "state.json" in caplog.text
    twin = shutil.copytree(checkpoints / "step_000000000001", checkpoints / "step_000000000002_0")
    restore_best(checkpoints, step=2, best_step=2)
    assert read_link(checkpoints, "best") == twin


def test_best_of_a_future_that_was_left_is_no_damaged_checkpoint(
    checkpoints: Path, newest: Path, caplog: pytest.LogCaptureFixture
) -> None:
    set_link(checkpoints, "best", newest)
    (checkpoints / "step_000000000001" / "state.json").write_text("{}")
    restore_best(checkpoints, step=1, best_step=1)
    assert read_link(checkpoints, "best") is None
    assert "no intact checkpoint was kept" in caplog.text
