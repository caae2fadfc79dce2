"""A run's directory: made, written to while the run goes on, closed, and opened again to resume."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.errors import UserError
from rl_training.runtime.checkpoint import CheckpointWriteError, save_checkpoint
from rl_training.runtime.checkpoint_directory import CHECKPOINTS, read_link, set_link
from rl_training.runtime.files import replace_durable, write_json, writing_to
from rl_training.runtime.resume_change import ResumeChange, forget_resume_change
from rl_training.runtime.run_lock import RunLock
from rl_training.runtime.run_records import read_metadata, start_record, time_text
from rl_training.runtime.tracking import RunLogs

if TYPE_CHECKING:
    from rl_training.config import TrainConfig

logger = logging.getLogger(__name__)

STATUSES = ("running", "finished", "interrupted", "failed")


def make_run_dir(config: TrainConfig, parent: Path | None = None) -> Path:
    """Create and return ``{output_dir}/{algo}__{env_id}__seed{seed}__{YYYYmmdd-HHMMSS}``.

    Characters that could upset a file system become ``-``; a second run in the same second gets
    ``-2``. With ``parent`` it lies there instead of in ``output_dir``.

    Raises:
        UserError: the place cannot be written.
    """
    moment = datetime.now().strftime("%Y%m%d-%H%M%S")
    name = re.sub(
        r"[^A-Za-z0-9._-]+", "-", f"{config.algo}__{config.env_id}__seed{config.seed}__{moment}"
    )
    parent = Path(config.output_dir) if parent is None else parent
    number = 1
    while True:
        path = parent / (name if number == 1 else f"{name}-{number}")
        try:
            parent.mkdir(parents=True, exist_ok=True)
            path.mkdir()
        except OSError as error:
            if not (isinstance(error, FileExistsError) and parent.is_dir()):
                raise UserError(
                    f"output_dir {str(parent)!r} cannot be written: {error.strerror or error}."
                ) from error
            number += 1
        else:
            return path


def create_training_run(config: TrainConfig, command: Sequence[str] | None = None) -> Run:
    """Make a run directory for ``config`` and start the run.

    ``command`` is what started it, by default this process's arguments.
    """
    return Run.create(config, command)


def serialize_train_config(config: TrainConfig) -> dict[str, Any]:
    """Return the config as plain values, as checkpoints and Weights & Biases take it."""
    from rl_training.config import config_to_dict

    return config_to_dict(config)


class Run:
    """One run directory.

    `create` makes and starts it. `open` only reads it: the first thing written starts it again.
    """

    def __init__(self, directory: Path, config: TrainConfig, lock: RunLock | None = None) -> None:
        """Use `create` or `open`."""
        self.directory = directory.absolute()
        """Absolute: some simulators change the working directory."""
        self.config = config
        self.metadata: dict[str, Any] = {}
        """Content of ``metadata.json``."""
        self._logs: RunLogs | None = None
        self._lock = RunLock(self.directory) if lock is None else lock
        self._started = False
        self._first_step = 0
        self._unused = False
        """Whether this object made the directory and has written nothing that was learned."""
        self._clock_start = time.monotonic()
        self._earlier_seconds = 0.0

    @classmethod
    def create(
        cls,
        config: TrainConfig,
        command: Sequence[str] | None = None,
        *,
        first_step: int = 0,
        parent: Path | None = None,
    ) -> Run:
        """Make the directory with ``config.yaml`` and ``metadata.json`` and start the run.

        Args:
            config: of the training.
            command: what started it, by default this process's arguments.
            first_step: environment steps done before; such a run cannot begin again from its
                config.
            parent: in which directory; None: in ``output_dir``.

        Raises:
            UserError: the place cannot be written, or a tracking package is missing; no directory
                is left.
        """
        run = cls(make_run_dir(config, parent), config)
        run._first_step = first_step
        try:
            run.start(command)
        except BaseException:
            run._undo_create()
            raise
        run._unused = True
        return run

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        config: TrainConfig | None = None,
        *,
        lock: RunLock | None = None,
    ) -> Run:
        """Read the run in the directory ``path``, with its own config or another one.

        Nothing is written before it starts. A ``lock`` that is held already becomes the run's.

        Raises:
            UserError: there is no run there, or its config cannot be used.
        """
        directory = Path(path)
        if not (directory / "config.yaml").is_file():
            raise UserError(f"{directory} is not a run directory: it has no config.yaml.")
        if config is None:
            from rl_training.config import load_config

            config = load_config(directory / "config.yaml")
        run = cls(directory, config, lock)
        run.metadata = read_metadata(directory / "metadata.json")
        return run

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints lie."""
        return self.directory / CHECKPOINTS

    @property
    def status(self) -> str:
        """The status in ``metadata.json``: running (or killed), finished, interrupted, failed.

        ``unknown`` without one.
        """
        return str(self.metadata.get("status", "unknown"))

    @property
    def first_step(self) -> int:
        """Environment steps that were done before the run began."""
        step = self.metadata.get("first_step", self._first_step)
        return step if isinstance(step, int) else 0

    @property
    def wall_time_s(self) -> float:
        """Seconds of training so far, those before a resume included."""
        return self._earlier_seconds + time.monotonic() - self._clock_start

    def start(
        self, command: Sequence[str] | None = None, change: ResumeChange | None = None
    ) -> None:
        """Take the run for this process: lock it, write config and metadata, open the logs.

        Args:
            command: what started it, by default this process's arguments.
            change: what the next checkpoint will hold and the one gone on from does not.

        Raises:
            UserError: another training has it, the directory cannot be written, or a
                tracking package is missing.
        """
        if self._started:
            return
        self._lock.acquire()
        try:
            with writing_to(self.directory):
                self._logs = RunLogs(self.config, self.directory)
                self._started = True
                # Before the config: from the two, whatever a kill leaves tells what was begun.
                if change is None:
                    forget_resume_change(self.directory)
                else:
                    change.write(self.directory)
                # What it began with stands there before the config makes it a run.
                self._note_start(list(sys.argv if command is None else command))
                self.update_config(self.config)
        except BaseException:
            self._started = False
            self._lock.release()
            raise

    def update_config(self, config: TrainConfig) -> None:
        """Take ``config`` for the rest of the run and write it to ``config.yaml``."""
        from rl_training.config import dump_yaml

        self.config = config
        replace_durable(self.directory / "config.yaml", dump_yaml(config).encode("utf-8"))

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record the metrics of one moment in every logger; this never stops the run.

        Values are numbers or 0-dimensional tensors.
        """
        self._unused = False
        self._opened_logs().log(step, metrics, wall_time_s=self.wall_time_s)

    def log_evaluation(self, step: int, record: Mapping[str, Any]) -> None:
        """Append ``record`` to ``evaluations.jsonl``.

        Its numbers go to the other loggers as ``eval/<name>``.
        """
        self._unused = False
        self._opened_logs().log_evaluation(step, record)

    def log_video(self, step: int, path: Path) -> None:
        """Send an MP4 file to the loggers that take one; this never stops the run."""
        if self._logs is not None:
            self._logs.log_video(step, path)

    def save_checkpoint(
        self, step: int, state: Any, policy: Any, best: bool = False, draft: bool = False
    ) -> Path | None:
        """Write a checkpoint and return its path; None, with a warning, when the disk refuses.

        Args:
            step: Environment steps done.
            state: All of the training state, `state_dict` of this run included.
            policy: What predict and evaluate need.
            best: Whether it is the best one so far.
            draft: Whether another one of the same step will follow at once.
        """
        self._unused = False
        self.start()
        saved = save_training_checkpoint(
            self, step=step, state=state, policy=policy, best=best, draft=draft
        )
        if saved is not None:
            forget_resume_change(self.directory)
        return saved

    def state_dict(self) -> dict[str, Any]:
        """Flush the logs to the disk and return their lengths and the wall time.

        It is for resuming and no part of a digest.
        """
        logs = self._opened_logs()
        return {"wall_time_s": self.wall_time_s, **logs.state_dict()}

    def resume_at(self, checkpoint: Path, state: Mapping[str, Any]) -> None:
        """Let ``latest`` name ``checkpoint``, then cut the logs back to its ``state``.

        In this order: logs that were cut fit no later checkpoint.

        Raises:
            UserError: the directory cannot be written.
        """
        self.start()
        with writing_to(self.directory):
            if read_link(self.checkpoints, "latest") != self.checkpoints / checkpoint.name:
                set_link(self.checkpoints, "latest", checkpoint)
        self.load_state_dict(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Cut the logs back to where they were.

        With an empty ``state`` the run begins again: nothing of the logs stays.
        """
        logs = self._opened_logs()
        self._earlier_seconds = float(state.get("wall_time_s", 0.0))
        self._clock_start = time.monotonic()
        logs.load_state_dict(state)

    def close(self, status: str, result: Mapping[str, Any] | None = None) -> None:
        """Close the logs, write the status and, when there is one, ``result.json``."""
        if status not in STATUSES:
            raise ValueError(f"status must be one of {STATUSES}, not {status!r}")
        if not self._started:
            return
        if self._logs is not None:
            self._logs.close(status, result)
        self.metadata.update(
            status=status, ended_at=time_text(), wall_time_s=round(self.wall_time_s, 3)
        )
        try:
            if result is not None:
                write_json(self.directory / "result.json", {"status": status, **result})
            self._write_metadata()
        except OSError as error:
            logger.warning(
                "the end of the run could not be written to %s: %s",
                self.directory,
                error.strerror or error,
            )
        self._lock.release()
        self._started = False

    def discard_unused(self) -> None:
        """Remove the directory of a run that came to nothing: one that this object made, is closed,
        and has logged and saved nothing. One with any file that is not the library's own stays.
        """
        if not self._unused or self._started:
            return
        logs = self.directory / "tensorboard"
        own = {"config.yaml", "metadata.json", "metrics.jsonl", "evaluations.jsonl", ".lock"}
        with contextlib.suppress(OSError):
            if {path.name for path in self.directory.iterdir()} <= {*own, logs.name}:
                for path in logs.iterdir() if logs.is_dir() else ():
                    path.unlink()
                if logs.is_dir():
                    logs.rmdir()
                self._remove_files()

    def _opened_logs(self) -> RunLogs:
        self.start()
        assert self._logs is not None
        return self._logs

    def _note_start(self, command: list[str]) -> None:
        now = start_record(command, threads=self.config.torch_threads)
        if not self.metadata:
            first = {"first_step": self._first_step} if self._first_step else {}
            self.metadata = {"status": "running", **now, **first, "resumes": []}
        else:
            self.metadata["status"] = "running"
            self.metadata.setdefault("resumes", []).append(now)
        self._write_metadata()

    def _write_metadata(self) -> None:
        write_json(self.directory / "metadata.json", self.metadata)

    def _undo_create(self) -> None:
        """A run that could not start leaves nothing half-written."""
        self._lock.release()
        with contextlib.suppress(OSError):
            self._remove_files()

    def _remove_files(self) -> None:
        for path in self.directory.iterdir():
            path.unlink()
        self.directory.rmdir()


def save_training_checkpoint(
    run: Run, *, step: int, state: Any, policy: Any, best: bool = False, draft: bool = False
) -> Path | None:
    """Write a checkpoint of ``run`` as its config says; None, with a warning, on a full disk.

    The config says how many stay, and whether the best does.
    """
    settings = run.config.checkpoint
    try:
        return save_checkpoint(
            run.checkpoints,
            step=step,
            state=state,
            policy=policy,
            config=serialize_train_config(run.config),
            keep_last=settings.keep_last,
            best=best and settings.keep_best,
            draft=draft,
        )
    except CheckpointWriteError as error:
        logger.warning("%s Training goes on.", error)
        return None
