"""Checkpoints that cannot run code and survive a crash at any moment.

They are safetensors and JSON, hashed, and published by one rename. A checkpoint is a directory::

    step_000000050000/
      state.safetensors  state.json     all of the training state
      config.json                       the run's configuration
      policy/                           enough for predict and evaluate, also copied elsewhere alone
        policy.safetensors  policy.json  config.json  manifest.json
      manifest.json                     written last: size and SHA-256 of every file, versions

It is written in a temporary directory beside, each file and the directory flushed to the disk,
then renamed. `best` and then `latest` are moved, and only then is anything old deleted: at every
moment the newest complete checkpoint is whole.

A replay buffer lies beside, in ``shards/``, as files that the next checkpoint links to rather than
writes again: see `rl_training.runtime.shards`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch

from rl_training.runtime.checkpoint_directory import (
    POLICY,
    NoCheckpointError,
    held,
    latest_intact,
    list_checkpoints,
    read_link,
    remove_stale,
    remove_superseded,
    resolve_checkpoint,
    set_link,
    step_name,
    step_of,
    swap_in,
    temporary_directory,
    verify,
)
from rl_training.runtime.files import json_bytes, sync_directory
from rl_training.runtime.manifest import (
    MANIFEST,
    CheckpointError,
    ManifestWriter,
    damaged,
    read_manifest,
    read_verified,
    verify_files,
)
from rl_training.runtime.shards import ShardReader, ShardWriter
from rl_training.runtime.state import decode_state, digest, encode_state

__all__ = [
    "CheckpointError",
    "CheckpointWriteError",
    "LoadedCheckpoint",
    "LoadedPolicy",
    "NoCheckpointError",
    "digest",
    "latest_intact",
    "list_checkpoints",
    "load_checkpoint",
    "load_policy",
    "read_link",
    "resolve_checkpoint",
    "save_alone",
    "save_checkpoint",
    "save_policy",
    "set_link",
    "verify",
]


class CheckpointWriteError(CheckpointError):
    """A checkpoint could not be written, for a full disk most often; the older ones are whole."""


@dataclass(frozen=True, kw_only=True)
class LoadedCheckpoint:
    """A verified checkpoint in memory; tensors lie on the CPU."""

    path: Path
    state: Any
    config: dict[str, Any]
    manifest: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class LoadedPolicy:
    """A verified policy in memory; tensors lie on the CPU."""

    path: Path
    state: Any
    config: dict[str, Any]
    manifest: dict[str, Any]


def save_checkpoint(
    checkpoints_dir: str | os.PathLike[str],
    *,
    step: int,
    state: Any,
    policy: Any,
    config: Mapping[str, Any],
    keep_last: int,
    protect: Collection[Path] = (),
    best: bool = False,
    draft: bool = False,
) -> Path:
    """Write a checkpoint, move ``latest`` to it and delete what is no longer kept.

    A step that is there already and whole, with the same content, is kept as it is; otherwise the
    new one gets a name of its own and replaces the old one once it is complete.

    Args:
        checkpoints_dir: The run's ``checkpoints`` directory, created when missing.
        step: Environment steps done, in the name of the checkpoint.
        state: All of the training state, as `state.encode_state` takes it.
        policy: The part that predict and evaluate need, as `state.encode_state` takes it.
        config: The run's configuration as plain JSON values.
        keep_last: How many checkpoints stay, at least 1; the best one and ``protect`` stay besides.
        protect: Checkpoints that are never deleted.
        best: Whether ``best`` moves to this checkpoint.
        draft: Whether another one of the same step will follow and replace it.

    Raises:
        CheckpointWriteError: the disk is full or refuses; nothing is left of the attempt, the older
            checkpoints are whole.
        StateError: the state cannot be saved exactly.
    """
    if keep_last < 1:
        raise ValueError(f"keep_last must be at least 1, not {keep_last}")
    checkpoints = Path(checkpoints_dir)
    try:
        checkpoints.mkdir(parents=True, exist_ok=True)
        remove_stale(checkpoints)
        path = _publish(
            checkpoints,
            step,
            lambda directory: _write(directory, step, state, policy, config),
            draft=draft,
        )
        # `best` first: a crash in between resumes from the older `latest` and comes by here again.
        if best:
            set_link(checkpoints, "best", path)
        set_link(checkpoints, "latest", path)
    except OSError as error:
        raise CheckpointWriteError(
            f"no checkpoint was written at step {step} in {checkpoints} "
            f"({error.strerror or error}); the older ones are untouched."
        ) from error
    remove_superseded(checkpoints, path, keep_last, protect)
    return path


def save_alone(
    path: str | os.PathLike[str],
    *,
    step: int,
    state: Any,
    policy: Any,
    config: Mapping[str, Any],
) -> Path:
    """Write a whole checkpoint as the directory ``path``, outside of a run.

    An earlier checkpoint there is replaced, also through a symbolic link; anything else is refused.
    Missing parents are created.
    The arguments are those of `save_checkpoint`.

    Raises:
        CheckpointWriteError: the disk is full or refuses, or something else is already there.
        StateError: the state cannot be saved exactly.
    """
    return _publish_alone(Path(path), lambda place: _write(place, step, state, policy, config))


def save_policy(
    path: str | os.PathLike[str], *, step: int, policy: Any, config: Mapping[str, Any]
) -> Path:
    """Write a policy alone as the directory ``path``: enough for predict and evaluate.

    What is there already is treated as by `save_alone`, which names the errors too.
    """
    return _publish_alone(
        Path(path), lambda place: _write_policy(ManifestWriter(place), step, policy, config)
    )


def load_checkpoint(path: str | os.PathLike[str]) -> LoadedCheckpoint:
    """Return a checkpoint after verifying every file of it. Nothing is unpickled.

    Only the files of `Sharded` leaves are left out: they can be larger than the memory, so each is
    read, and verified then, when its rows are asked for.

    Raises:
        CheckpointError: no checkpoint there, a damaged or planted file, a newer schema, or a policy
            without training state.
    """
    directory = Path(path)
    manifest = _manifest(directory)
    if "state.json" not in manifest["files"]:
        raise CheckpointError(
            f"{directory} holds a policy without training state: it can be evaluated, not resumed."
        )
    state = _load_state(directory, manifest, "state")
    config = _load_config(directory, manifest)
    verify_files(
        directory,
        {
            "files": {
                name: entry
                for name, entry in manifest["files"].items()
                if name.startswith(f"{POLICY}/")
            }
        },
    )
    return LoadedCheckpoint(path=directory, state=state, config=config, manifest=manifest)


def load_policy(path: str | os.PathLike[str]) -> LoadedPolicy:
    """Return the policy of a checkpoint, or of a ``policy/`` directory copied elsewhere.

    Its files are verified, and the checkpoint's list of files; the training state is not read.

    Raises:
        CheckpointError: no policy there, a damaged or planted file, or a newer schema.
    """
    directory = Path(path)
    manifest = _manifest(directory)
    if f"{POLICY}/{MANIFEST}" in manifest["files"]:
        read_verified(directory, manifest, f"{POLICY}/{MANIFEST}")
        directory = directory / POLICY
        manifest = read_manifest(directory)
    state = _load_state(directory, manifest, "policy")
    config = _load_config(directory, manifest)
    return LoadedPolicy(path=directory, state=state, config=config, manifest=manifest)


def _manifest(directory: Path) -> dict[str, Any]:
    if not directory.is_dir():
        raise CheckpointError(f"there is no checkpoint {directory}.")
    return read_manifest(directory)


def _publish(
    checkpoints: Path, step: int, write: Callable[[Path], None], *, draft: bool = False
) -> Path:
    """Let ``write`` fill a directory, then name it in one step; a failed attempt leaves nothing."""
    temporary = temporary_directory(checkpoints)
    try:
        with held(temporary):
            write(temporary)
            twin = _identical(checkpoints, step, temporary)
            if twin is not None:
                shutil.rmtree(temporary)
                return twin
            target = checkpoints / step_name(checkpoints, step, draft=draft)
            temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_directory(checkpoints)
    return target


def _publish_alone(target: Path, write: Callable[[Path], None]) -> Path:
    """Let ``write`` fill a directory beside ``target``, then put it there."""
    if os.path.lexists(target) and not (target / MANIFEST).is_file():
        raise CheckpointWriteError(f"{target} exists and is no checkpoint: give another path.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Of a symbolic link, what it leads to is replaced, and the link stays.
        place = target.resolve() if target.is_symlink() else target
        temporary = temporary_directory(place.parent)
        try:
            write(temporary)
            swap_in(temporary, place)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    except OSError as error:
        raise CheckpointWriteError(
            f"nothing was written to {target} ({error.strerror or error})."
        ) from error
    return target


def _identical(checkpoints: Path, step: int, written: Path) -> Path | None:
    """Return an intact checkpoint of this step with the same manifest as the one just written."""
    for path in list_checkpoints(checkpoints):
        if step_of(path) != step:
            continue
        try:
            verify(path)
        except CheckpointError:
            continue
        if (path / MANIFEST).read_bytes() == (written / MANIFEST).read_bytes():
            return path
    return None


def _write(directory: Path, step: int, state: Any, policy: Any, config: Mapping[str, Any]) -> None:
    writer = ManifestWriter(directory)
    shards = ShardWriter(writer, list_checkpoints(directory.parent)[::-1])
    _add_state(writer, "state", state, shards)
    writer.add("config.json", json_bytes(dict(config)))
    part = writer.subdirectory(POLICY)
    _write_policy(part, step, policy, config)
    writer.include(POLICY, part)
    writer.finish({"step": step, "config_hash": _hash_config(config)})


def _write_policy(
    writer: ManifestWriter, step: int, policy: Any, config: Mapping[str, Any]
) -> None:
    _add_state(writer, "policy", policy)
    writer.add("config.json", json_bytes(dict(config)))
    writer.finish({"step": step, "config_hash": _hash_config(config)})


def _add_state(
    writer: ManifestWriter, name: str, state: Any, shards: ShardWriter | None = None
) -> None:
    tensors, structure = encode_state(state, None if shards is None else shards.write)
    # Bytes in memory rather than safetensors' own file writing: what is hashed is what was meant,
    # and a full disk is an OSError.
    writer.add(f"{name}.safetensors", safetensors.torch.save(tensors))
    writer.add(f"{name}.json", json_bytes(structure, indent=None))


def _load_state(directory: Path, manifest: Mapping[str, Any], name: str) -> Any:
    structure = _load_json(directory, manifest, f"{name}.json")
    data = read_verified(directory, manifest, f"{name}.safetensors")
    try:
        return decode_state(
            safetensors.torch.load(data), structure, ShardReader(directory, manifest).read
        )
    except (
        safetensors.SafetensorError,
        ValueError,
        KeyError,
        AttributeError,
        TypeError,
        RecursionError,
    ) as error:
        raise damaged(
            directory / f"{name}.json", f"and {name}.safetensors do not make a state ({error})"
        ) from error


def _load_config(directory: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    config = _load_json(directory, manifest, "config.json")
    if not isinstance(config, dict):
        raise damaged(directory / "config.json", "holds no configuration")
    return config


def _load_json(directory: Path, manifest: Mapping[str, Any], name: str) -> Any:
    data = read_verified(directory, manifest, name)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise damaged(directory / name, "is not valid JSON") from error


def _hash_config(config: Mapping[str, Any]) -> str:
    # As `config.config_hash` does, which takes the config before it became plain data.
    text = json.dumps(dict(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
