"""The directory ``checkpoints/`` of a run: names, links, what is kept, finding a checkpoint.

``latest`` and ``best`` are small text files with the name of a checkpoint: unlike symbolic links
they survive copies, archives and every file system, and they are replaced in one step.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Literal

from rl_training.runtime.files import replace_durable, sync_directory
from rl_training.runtime.manifest import MANIFEST, CheckpointError, read_manifest, verify_files

logger = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
POLICY = "policy"
Link = Literal["latest", "best"]

_OF_A_CHECKPOINT = (MANIFEST, "config.json", "state.json", POLICY)
_NAME = re.compile(r"step_(\d{12,})(?:_(\d+))?")
_TEMPORARY = ".tmp-"
_TRASH = ".trash-"


class NoCheckpointError(CheckpointError):
    """A run has no checkpoint at all, not even a damaged one.

    It starts again from its config at step 0.
    """


def step_name(checkpoints: Path, step: int, *, draft: bool = False) -> str:
    """Return a free name for a checkpoint: ``step_<12 digits>``, then the same with ``_2`` ...

    A draft is ``step_<12 digits>_0``, older than any other one of its step.
    """
    name = base = f"step_{step:012d}"
    if draft and not os.path.lexists(checkpoints / f"{base}_0"):
        return f"{base}_0"
    number = 1
    while os.path.lexists(checkpoints / name):
        number += 1
        name = f"{base}_{number}"
    return name


def list_checkpoints(checkpoints: Path) -> list[Path]:
    """Return the checkpoint directories by step, the oldest first; damaged ones too."""
    if not checkpoints.is_dir():
        return []
    return sorted(
        (path for path in checkpoints.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()),
        key=_order,
    )


def step_of(checkpoint: Path) -> int:
    """Return the step in the name of a checkpoint directory."""
    return _order(checkpoint)[0]


def set_link(checkpoints: Path, link: Link, checkpoint: Path) -> None:
    """Let ``latest`` or ``best`` name ``checkpoint``, which lies in ``checkpoints``, in one step.

    A directory of that name, such as a copy of a checkpoint, is moved beside and told.

    Raises:
        OSError: the disk is full or refuses; the link is as it was.
    """
    path = checkpoints / link
    if path.is_dir() and not path.is_symlink():  # which no file replaces
        aside = path.with_name(f"{link}.moved-{secrets.token_hex(4)}")
        path.rename(aside)
        logger.warning("%s was a directory; it is %s now.", path, aside.name)
    replace_durable(path, f"{checkpoint.name}\n".encode())


def read_link(checkpoints: Path, link: Link) -> Path | None:
    """Return the checkpoint that ``latest`` or ``best`` names; None when there is none."""
    path = checkpoints / link
    if not path.is_file():  # of a pipe, reading would wait for ever
        return None
    try:
        name = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    if not _NAME.fullmatch(name) or not (checkpoints / name).is_dir():
        return None
    return checkpoints / name


def remove_superseded(
    checkpoints: Path, written: Path, keep_last: int, protect: Collection[Path]
) -> None:
    """Delete what is no longer kept.

    The last ``keep_last`` up to the step of ``written`` stay, the best and the protected ones.
    Later steps than the one just written come from a run that was resumed further back: they are
    left until training reaches them. An older checkpoint of the same step has been replaced. A
    failure to delete is logged, never raised.
    """
    step = step_of(written)
    known = [path for path in list_checkpoints(checkpoints) if path != written]
    same_step = [path for path in known if step_of(path) == step]
    earlier = [path for path in known if step_of(path) < step]
    kept = {written.name, *(path.name for path in protect)}
    best = read_link(checkpoints, "best")
    if best is not None:
        kept.add(best.name)
    for path in [*same_step, *earlier[: max(0, len(earlier) - keep_last + 1)]]:
        if path.name not in kept:
            _remove(path)


def temporary_directory(checkpoints: Path) -> Path:
    """Create an empty directory to write in. Its name is never taken for a checkpoint."""
    path = checkpoints / f"{_TEMPORARY}{secrets.token_hex(8)}"
    path.mkdir()
    return path


@contextlib.contextmanager
def held(directory: Path) -> Iterator[None]:
    """Mark ``directory`` as in use by a living process.

    The system lifts the mark when the process dies, however it dies.
    """
    descriptor = _lock(directory)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def remove_stale(checkpoints: Path) -> None:
    """Delete what writers that died left behind: half-written checkpoints and half-deleted ones."""
    for path in list(checkpoints.iterdir()):
        if path.name.startswith(_TRASH):
            shutil.rmtree(path, ignore_errors=True)
        elif path.name.startswith((_TEMPORARY, ".latest.tmp-", ".best.tmp-")):
            _remove_if_abandoned(path)


def swap_in(written: Path, target: Path) -> None:
    """Rename ``written`` to ``target``; what was there waits beside under a hidden name until then.

    Raises:
        OSError: the disk refuses; what was there is back.
    """
    aside = target.with_name(f".{target.name}.old-{secrets.token_hex(4)}")
    replacing = target.is_dir()
    if replacing:
        target.rename(aside)
    try:
        written.rename(target)
    except OSError:
        if replacing:
            aside.rename(target)
        raise
    sync_directory(target.parent)
    if replacing:
        shutil.rmtree(aside, ignore_errors=True)


def resolve_checkpoint(run_or_checkpoint: str | os.PathLike[str], *, best: bool = False) -> Path:
    """Return the checkpoint a user means.

    Of a run (or its ``checkpoints``) that is the latest or the best, otherwise the one given. Also
    accepted: the files ``checkpoints/latest`` and ``checkpoints/best``, and a copied ``policy/``
    directory. Nothing is verified yet: loading does that.

    Raises:
        CheckpointError: there is nothing there, no such checkpoint in the run, a folder of runs, or
            the best one is asked for of a single checkpoint.
    """
    path = Path(run_or_checkpoint)
    if path.name in ("latest", "best") and path.is_file():
        target = read_link(path.parent, "best" if path.name == "best" else "latest")
        if target is None:
            raise CheckpointError(
                f"{path} names no checkpoint beside it: give a checkpoint directory or the run."
            )
        return target
    if not path.is_dir():
        raise CheckpointError(
            f"there is no run or checkpoint {path}: give a run directory or one of its checkpoints."
        )
    checkpoints = _checkpoints_of(path)
    if checkpoints is None:
        if (path / "metadata.json").is_file() and not (path / MANIFEST).exists():
            raise CheckpointError(f"the run {path} has written no checkpoint yet.")
        _require_files_of_a_checkpoint(path)
        if best:
            raise CheckpointError(
                f"{path} is one checkpoint; the best one is asked for of a run: leave out --best "
                "(in Python best=True), or give the run."
            )
        return path
    if best:
        return _best(checkpoints)
    latest = read_link(checkpoints, "latest")
    return latest if latest is not None else _candidates(checkpoints)[0]


def is_one_checkpoint(run_or_checkpoint: str | os.PathLike[str]) -> bool:
    """Return whether `resolve_checkpoint` takes a path for one checkpoint, not for a run."""
    return _checkpoints_of(Path(run_or_checkpoint)) is None


def _require_files_of_a_checkpoint(path: Path) -> None:
    if any((path / name).exists() for name in _OF_A_CHECKPOINT):
        return
    runs = sorted(each.parent for each in path.glob("*/metadata.json"))
    if not runs:
        raise CheckpointError(f"{path} is neither a run directory nor one of a run's checkpoints.")
    more = ", ..." if len(runs) > 3 else ""
    raise CheckpointError(
        f"{path} is no run, it holds {len(runs)}: give one of them, such as "
        f"{', '.join(map(str, runs[:3]))}{more}"
    )


def run_of(path: Path) -> Path:
    """Return the run directory that a path names, or that one of its checkpoints lies in.

    Raises:
        CheckpointError: neither is there.
    """
    if (path / "config.yaml").is_file():
        return path
    checkpoint = resolve_checkpoint(path)
    run = checkpoint.parent.parent
    if not (run / "config.yaml").is_file():
        raise CheckpointError(
            f"{checkpoint} belongs to no run directory; load it with the algorithm's load()."
        )
    return run


def latest_intact(run_dir: str | os.PathLike[str]) -> Path:
    """Return the newest checkpoint of a run whose every file is as it was written.

    Each damaged one that is passed over is logged by name.

    Raises:
        NoCheckpointError: the run has no checkpoint yet.
        CheckpointError: it has some and all are damaged; the message names the first.
    """
    checkpoints = _checkpoints_of(Path(run_dir))
    if checkpoints is None:
        raise NoCheckpointError(
            f"{run_dir} has no checkpoint: resuming it starts from its config at step 0."
        )
    problems: list[CheckpointError] = []
    for path in _candidates(checkpoints):
        problem = problem_of(path)
        if problem is None:
            return path
        logger.warning("damaged checkpoint passed over: %s", problem)
        problems.append(problem)
    raise CheckpointError(f"every checkpoint of {run_dir} is damaged. The newest: {problems[0]}")


def verify(checkpoint: str | os.PathLike[str]) -> None:
    """Check every file of a checkpoint, or of a ``policy/`` directory, against its manifest.

    Raises:
        CheckpointError: the message names the first file that is damaged, missing or out of place.
    """
    directory = Path(checkpoint)
    if not directory.is_dir():
        raise CheckpointError(f"there is no checkpoint {directory}.")
    verify_files(directory, read_manifest(directory))


def problem_of(checkpoint: Path) -> CheckpointError | None:
    """Return what `verify` finds wrong with a checkpoint; None: nothing."""
    try:
        verify(checkpoint)
    except CheckpointError as error:
        return error
    return None


def _order(path: Path) -> tuple[int, int]:
    match = _NAME.fullmatch(path.name)
    if match is None:
        return 0, 0
    return int(match.group(1)), int(match.group(2) or 1)


def _checkpoints_of(path: Path) -> Path | None:
    if (path / MANIFEST).exists():
        return None
    if (path / CHECKPOINTS).is_dir():
        return path / CHECKPOINTS
    return path if path.name == CHECKPOINTS or list_checkpoints(path) else None


def _candidates(checkpoints: Path) -> list[Path]:
    """Newest first, starting where ``latest`` points.

    Later steps than that (of another branch, or published just before a crash) come last.
    """
    newest_first = list_checkpoints(checkpoints)[::-1]
    if not newest_first:
        raise NoCheckpointError(f"{checkpoints} holds no checkpoint yet.")
    latest = read_link(checkpoints, "latest")
    if latest is None:
        return newest_first
    earlier = [path for path in newest_first if _order(path) < _order(latest)]
    later = [path for path in newest_first if _order(path) > _order(latest)]
    return [latest, *earlier, *later]


def _best(checkpoints: Path) -> Path:
    target = read_link(checkpoints, "best")
    if target is None:
        raise CheckpointError(
            f"{checkpoints} has no best checkpoint: it takes an evaluation during training; "
            "leave out --best."
        )
    return target


def _remove(path: Path) -> None:
    # Renamed first: a half-deleted directory must not look like a damaged checkpoint.
    trash = path.with_name(f"{_TRASH}{secrets.token_hex(8)}")
    try:
        path.rename(trash)
        shutil.rmtree(trash)
    except OSError as error:
        logger.warning("old checkpoint %s could not be deleted: %s", path, error)


def _remove_if_abandoned(path: Path) -> None:
    if not path.is_dir() or path.is_symlink():
        with contextlib.suppress(OSError):
            path.unlink()
        return
    with contextlib.suppress(OSError):
        descriptor = _lock(path)
        if descriptor is not None:
            os.close(descriptor)
            shutil.rmtree(path, ignore_errors=True)


def _lock(directory: Path) -> int | None:
    """Return a descriptor that holds the lock on a directory; None where there are no locks.

    Raises:
        OSError: another process holds it.
    """
    try:
        import fcntl
    except ImportError:
        return None
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
