"""The files of large, growing tensors in a checkpoint.

Each holds one tensor ``rows`` in the safetensors format and is named by its SHA-256::

    shards/<sha256>.safetensors

A file of rows that never change again becomes a hard link in the next checkpoint: that costs
nothing, and each checkpoint is still complete by itself. Where links cannot be had, or a file is
gone, the rows are written once more from memory, never copied from a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from rl_training.runtime.manifest import ManifestWriter, damaged, read_verified
from rl_training.runtime.sharded import Sharded
from rl_training.runtime.state import DTYPES

FOLDER = "shards"
_ROWS = "rows"
_DTYPES = {name: dtype for dtype, name in DTYPES.items()}


class ShardWriter:
    """Writes `Sharded` leaves into a checkpoint.

    Args:
        writer: of the checkpoint's directory.
        earlier: checkpoints that may hold the same files, the likeliest first.
    """

    def __init__(self, writer: ManifestWriter, earlier: Sequence[Path]) -> None:
        self._writer, self._earlier = writer, earlier
        self._has_folder = False

    def write(self, leaf: Sharded) -> dict[str, Any]:
        """Write or link every shard and return the JSON value that finds them again.

        Raises:
            OSError: the disk is full or refuses.
        """
        if not self._has_folder:
            self._writer.folder(FOLDER)
            self._has_folder = True
        _forget_overwritten(leaf)
        return {
            "dtype": DTYPES[leaf.dtype],
            "row_shape": list(leaf.row_shape),
            "start": leaf.start,
            "stop": leaf.stop,
            "sealed": leaf.sealed,
            "shard_rows": leaf.shard_rows,
            "files": [self._shard(leaf, first, last) for first, last in leaf.shards()],
        }

    def _shard(self, leaf: Sharded, first: int, last: int) -> list[Any]:
        """Return ``[first row, one past the last, SHA-256]`` of one file."""
        known = leaf.known.get(first) if last <= leaf.sealed else None
        if known is not None and self._link(*known):
            return [first, last, known[0]]
        # Of the oldest shard, a part may be overwritten by now.
        held = max(first, leaf.start)
        data = safetensors.torch.save({_ROWS: leaf.read(held, last).contiguous()})
        name = hashlib.sha256(data).hexdigest()
        if file_name(name) not in self._writer:
            self._writer.add(file_name(name), data, sha256=name)
        if held == first and last <= leaf.sealed and last - first == leaf.shard_rows:
            leaf.known[first] = (name, len(data))
        return [held, last, name]

    def _link(self, name: str, size: int) -> bool:
        file = file_name(name)
        return file in self._writer or any(
            self._writer.link(file, checkpoint / file, size=size, sha256=name)
            for checkpoint in self._earlier
        )


def _forget_overwritten(leaf: Sharded) -> None:
    for first in [first for first in leaf.known if first + leaf.shard_rows <= leaf.start]:
        del leaf.known[first]


def file_name(name: str) -> str:
    """Return where in a checkpoint the file with that SHA-256 lies."""
    return f"{FOLDER}/{name}.safetensors"


class ShardReader:
    """Finds the leaves that `ShardWriter` wrote; their files are verified as they are read.

    Args:
        directory: the checkpoint.
        manifest: its manifest.
    """

    def __init__(self, directory: Path, manifest: Mapping[str, Any]) -> None:
        self._directory, self._manifest = directory, manifest

    def read(self, content: Any) -> Sharded:
        """Return the leaf for what `ShardWriter.write` returned; no file is read yet.

        Raises:
            ValueError: it is something else.
        """
        dtype, files = _DTYPES[content["dtype"]], [_entry(entry) for entry in content["files"]]
        row_shape = tuple(_count(size) for size in content["row_shape"])
        start, stop, sealed = (_count(content[key]) for key in ("start", "stop", "sealed"))
        shard_rows = _count(content["shard_rows"])
        if shard_rows == 0 or not start <= sealed <= stop or not _cover(files, start, stop):
            raise ValueError("rows and their files do not fit together")

        def read(first: int, last: int) -> Tensor:
            parts = [torch.empty(0, *row_shape, dtype=dtype)]
            for begin, end, name in files:
                if begin < last and first < end:
                    rows = self._rows(name, (end - begin, *row_shape), dtype)
                    parts.append(rows[max(first - begin, 0) : last - begin])
            return parts[1] if len(parts) == 2 else torch.cat(parts)

        return Sharded(
            dtype=dtype,
            row_shape=row_shape,
            start=start,
            stop=stop,
            sealed=sealed,
            shard_rows=shard_rows,
            read=read,
            known={
                begin: (name, self._manifest["files"][file_name(name)]["size"])
                for begin, end, name in files
                if end - begin == shard_rows and begin % shard_rows == 0 and end <= sealed
            },
        )

    def _rows(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        file = file_name(name)
        data = read_verified(self._directory, self._manifest, file)
        try:
            rows: Tensor = safetensors.torch.load(data)[_ROWS]
        except (safetensors.SafetensorError, KeyError) as error:
            raise damaged(self._directory / file, "holds no rows") from error
        if tuple(rows.shape) != shape or rows.dtype != dtype:
            raise damaged(self._directory / file, "holds other rows than state.json says")
        return rows


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a number of rows")
    return value


def _entry(entry: Any) -> tuple[int, int, str]:
    first, last, name = entry
    if not isinstance(name, str):
        raise ValueError(f"{name!r} is not the name of a file")
    return _count(first), _count(last), name


def _cover(files: Sequence[tuple[int, int, str]], start: int, stop: int) -> bool:
    """Return whether the files join without a gap from ``start``, or before it, to ``stop``."""
    if not files:
        return start == stop
    joined = all(one[1] == other[0] for one, other in pairwise(files))
    return joined and files[0][0] <= start < files[0][1] and files[-1][1] == stop
