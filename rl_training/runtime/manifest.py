"""The manifest of a checkpoint: every file with size and SHA-256, schema version, libraries.

The manifest is written last and hashes itself, so that no byte of a checkpoint goes unchecked.
Reading is defensive: a checkpoint may be damaged or come from a stranger. Only listed, regular
files with plain names inside the directory are opened.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rl_training.errors import UserError
from rl_training.runtime.files import json_bytes, sync_directory, write_durable
from rl_training.runtime.versions import library_versions

MANIFEST = "manifest.json"
FORMAT = "rl_training checkpoint"
SCHEMA_VERSION = 1

_PART = r"[A-Za-z0-9_-][A-Za-z0-9_.-]*"
_SAFE_NAME = re.compile(rf"{_PART}(/{_PART})*")
_LITTER = re.compile(r"\.DS_Store|\._.*|\.nfs.*|Thumbs\.db|desktop\.ini")
"""What operating systems leave in directories by themselves. It is never opened."""


class CheckpointError(UserError):
    """A checkpoint cannot be used. The message names the file and what to do."""


class ManifestWriter:
    """Writes the files of one checkpoint directory, and at the end the manifest that lists them.

    Each file is on the disk before the next is begun.
    """

    def __init__(self, directory: Path) -> None:
        """Write into ``directory``, which exists and is empty."""
        self._directory = directory
        self._files: dict[str, dict[str, Any]] = {}
        self._folders: list[str] = []

    def add(self, name: str, data: bytes, *, sha256: str | None = None) -> None:
        """Write one file and list it, with its hash if that is known already."""
        write_durable(self._directory / name, data)
        self._list(name, len(data), sha256 or hashlib.sha256(data).hexdigest())

    def link(self, name: str, source: Path, *, size: int, sha256: str) -> bool:
        """List a file that ``source`` holds already, as a second name for it, without reading it.

        Returns:
            Whether that worked. It does not where there is no such file of that size, or where the
            file system has no hard links.
        """
        try:
            found = source.lstat()
            if not stat.S_ISREG(found.st_mode) or found.st_size != size:
                return False
            os.link(source, self._directory / name)
        except OSError:
            return False
        self._list(name, size, sha256)
        return True

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def _list(self, name: str, size: int, sha256: str) -> None:
        self._files[name] = {"size": size, "sha256": sha256}

    def folder(self, name: str) -> None:
        """Create a directory in this one; its files are listed by ``name/file``."""
        (self._directory / name).mkdir()
        self._folders.append(name)

    def subdirectory(self, name: str) -> ManifestWriter:
        """Create a directory in this one that gets a manifest of its own."""
        (self._directory / name).mkdir()
        return ManifestWriter(self._directory / name)

    def include(self, name: str, part: ManifestWriter) -> None:
        """List all files of the finished subdirectory ``name``, its manifest too."""
        self._files.update({f"{name}/{file}": entry for file, entry in part._files.items()})

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Write the manifest with ``facts`` (step, config hash, ...) and flush the directory."""
        content = {
            **facts,
            "format": FORMAT,
            "schema_version": SCHEMA_VERSION,
            "versions": library_versions(),
            "files": dict(self._files),
        }
        content["manifest_sha256"] = _own_hash(content)
        for folder in self._folders:
            sync_directory(self._directory / folder)
        self.add(MANIFEST, json_bytes(content, sort_keys=True))
        sync_directory(self._directory)


def read_manifest(directory: Path) -> dict[str, Any]:
    """Return the manifest of ``directory`` after checking it against itself.

    Nothing may lie beside the listed files.

    Raises:
        CheckpointError: no manifest, a damaged one, a newer schema, an unsafe name, or a file that
            does not belong there.
    """
    path = directory / MANIFEST
    data = _read_regular(path)
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise damaged(path, "is not valid JSON") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise damaged(path, "is not the manifest of an rl_training checkpoint")
    _check_schema(path, manifest)
    content = {key: value for key, value in manifest.items() if key != "manifest_sha256"}
    as_written = json_bytes(manifest, sort_keys=True)
    if manifest.get("manifest_sha256") != _own_hash(content) or data != as_written:
        raise damaged(path, "was changed after it was written")
    _check_listing(directory, _listed(path, manifest))
    return manifest


def read_verified(directory: Path, manifest: Mapping[str, Any], name: str) -> bytes:
    """Return the bytes of one listed file after comparing size and SHA-256 with the manifest.

    Raises:
        CheckpointError: the file is not listed, missing, a link, cut short or changed.
    """
    path = directory / name
    entry = manifest["files"].get(name)
    if entry is None:
        raise damaged(directory / MANIFEST, f"does not list {name}")
    data = _read_regular(path, size=entry["size"])
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise damaged(
            path, "was changed after it was written (its SHA-256 differs from the manifest)"
        )
    return data


def verify_files(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Check every listed file as `read_verified` does, one after the other."""
    for name in manifest["files"]:
        read_verified(directory, manifest, name)


def damaged(path: Path, what: str) -> CheckpointError:
    """Return the error for a file that is not as it was written."""
    return CheckpointError(
        f"{path} {what}: the checkpoint cannot be used; "
        "take another one of the run, or an intact copy."
    )


def _own_hash(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json_bytes(content, sort_keys=True)).hexdigest()


def _check_schema(path: Path, manifest: Mapping[str, Any]) -> None:
    version = manifest.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise damaged(path, "has no valid schema_version")
    if version > SCHEMA_VERSION:
        raise CheckpointError(
            f"{path} has schema version {version}, newer than the {SCHEMA_VERSION} "
            "that this rl_training reads: upgrade rl_training."
        )


def _listed(path: Path, manifest: Mapping[str, Any]) -> set[str]:
    files = manifest.get("files")
    if not isinstance(files, dict):
        raise damaged(path, "lists no files")
    for name, entry in files.items():
        if not _SAFE_NAME.fullmatch(name):
            raise damaged(path, f"lists {name!r}, which is not a plain name inside the checkpoint")
        if (
            not isinstance(entry, dict)
            or not isinstance(entry.get("size"), int)
            or not isinstance(entry.get("sha256"), str)
        ):
            raise damaged(path, f"lists {name} without size and SHA-256")
    return set(files)


def _check_listing(directory: Path, listed: set[str]) -> None:
    for name in _names_below(directory):
        if (
            name != MANIFEST
            and name not in listed
            and not _LITTER.fullmatch(name.rpartition("/")[2])
        ):
            raise CheckpointError(
                f"{directory / name} does not belong to the checkpoint (its manifest does not "
                "list it): it was not opened; delete it."
            )


def _names_below(directory: Path) -> Iterator[str]:
    for root, directories, files in os.walk(directory):
        # A link to a directory is listed among the directories and not walked into.
        links = [name for name in directories if os.path.islink(os.path.join(root, name))]
        for name in sorted([*links, *files]):
            yield os.path.relpath(os.path.join(root, name), directory).replace(os.sep, "/")


def _read_regular(path: Path, *, size: int | None = None) -> bytes:
    """Read a file that is really there: no link and no device. (A linked directory is unlisted.)"""
    try:
        mode = path.lstat()
        if not stat.S_ISREG(mode.st_mode):
            raise damaged(path, "is not a regular file")
        if size is not None and mode.st_size != size:
            raise damaged(path, f"has {mode.st_size} bytes where the manifest says {size}")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise damaged(path, "is missing") from error
    except OSError as error:
        raise damaged(path, f"cannot be read ({error.strerror})") from error
