"""Where metrics go: lines of JSON, TensorBoard, Weights & Biases.

A logger that fails while the run goes on never stops it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from rl_training.errors import UserError, one_line
from rl_training.runtime.jsonl import JsonlLogger
from rl_training.runtime.seeding import preserve_global_rng

__all__ = ["JsonlLogger", "Logger", "TensorBoardLogger", "WandbLogger"]

logger = logging.getLogger(__name__)

_WANDB_SECONDS = {"login_timeout": 30.0, "init_timeout": 60.0, "finish_timeout": 120.0}
"""Settings of Weights & Biases, where its version has them: when a service that does not answer is
given up, at the start and at the end."""


class Logger(Protocol):
    """What a run asks of a logger."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one moment; ``step`` counts environment steps."""

    def state_dict(self) -> dict[str, Any]:
        """Flush, and return what resuming needs: JSON values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to the moment of ``state``; an empty one is the very beginning."""

    def close(self) -> None:
        """Flush and close; a second time does nothing."""


class _FailSafe:
    """Runs what may fail outside; the first failure is logged and switches the logger off."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._failed = False

    def _attempt(self, action: Callable[[], Any]) -> Any:
        if self._failed:
            return None
        try:
            # Some clients draw names and delays from the global generators; a run must not depend
            # on its loggers.
            with preserve_global_rng():
                return action()
        except Exception as error:
            self._failed = True
            logger.warning("%s failed and is off for the rest of the run: %s", self._name, error)
            return None


class TensorBoardLogger(_FailSafe):
    """Writes scalars to TensorBoard event files.

    The file and the (slow) import come with the first metrics. Event files only grow; after a
    resume TensorBoard is told to hide what came after the checkpoint (``purge_step``).
    """

    def __init__(self, directory: Path) -> None:
        """Write below ``directory``, which is created with the first metrics.

        Raises:
            UserError: tensorboard is not installed.
        """
        super().__init__("TensorBoard")
        if importlib.util.find_spec("tensorboard") is None:
            raise UserError(
                "TensorBoard is not installed: pip install tensorboard, "
                'or use "--tracking.no-tensorboard".'
            )
        self._directory = directory
        self._writer: Any = None
        self._last_step = -1
        self._purge_step: int | None = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add one scalar per metric."""
        self._attempt(lambda: self._add(step, metrics))

    def state_dict(self) -> dict[str, Any]:
        """Flush, and return the last step written."""
        if self._writer is not None:
            self._attempt(self._writer.flush)
        return {"last_step": self._last_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hide what was written after ``state``, once the next metrics come."""
        self.close()
        self._last_step = int(state.get("last_step", -1))
        self._purge_step = self._last_step + 1

    def close(self) -> None:
        """Flush and close the event file."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            self._attempt(writer.close)

    def _add(self, step: int, metrics: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._directory), purge_step=self._purge_step)
        # One event for all: every add_scalar() wakes the writer's thread, which takes the
        # interpreter's lock from training.
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer.file_writer.add_summary(Summary(value=values), step)
        self._last_step = step


class WandbLogger(_FailSafe):
    """Sends metrics to Weights & Biases, or to its local files.

    A resumed run goes on under the same run id. The connection is opened with the first metrics.
    After a resume Weights & Biases itself skips steps that it already has.
    """

    def __init__(
        self,
        *,
        mode: Literal["offline", "online"],
        directory: Path,
        project: str,
        config: Mapping[str, Any],
        group: str | None = None,
        tags: list[str] | None = None,
    ) -> None:
        """Prepare a run named like ``directory``, in which its files lie.

        Raises:
            UserError: wandb is not installed, or cannot be imported.
        """
        super().__init__("Weights & Biases")
        try:
            self._wandb: Any = importlib.import_module("wandb")
        except ImportError as error:
            raise UserError(
                'wandb is not installed: pip install "rl_training[wandb]", '
                'or use "--tracking.wandb off".'
            ) from error
        except Exception as error:  # of versions that do not go together
            raise UserError(
                f"wandb cannot be imported ({type(error).__name__}: {one_line(error)}): mend it, "
                'or use "--tracking.wandb off".'
            ) from error
        self.run_id = hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:16]
        """Identifies the run at Weights & Biases."""
        self._options = {
            "mode": mode,
            "project": project,
            "group": group,
            "tags": tags,
            "config": dict(config),
        }
        self._directory = directory
        self._run: Any = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send one entry."""
        self._attempt(lambda: self._send(step, metrics))

    def log_video(self, step: int, path: Path) -> None:
        """Send an MP4 file."""
        self._attempt(
            lambda: self._send(step, {"video": self._wandb.Video(str(path), format="mp4")})
        )

    def summarize(self, values: Mapping[str, Any]) -> None:
        """Write how the run ended, beside its last metrics."""
        if self._run is not None:
            self._attempt(lambda: self._run.summary.update(dict(values)))

    def state_dict(self) -> dict[str, Any]:
        """Return the run id."""
        return {"run_id": self.run_id}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on under the run id of ``state``."""
        run_id = str(state.get("run_id", self.run_id))
        if run_id != self.run_id:
            self.close()
            self.run_id = run_id

    def close(self) -> None:
        """Finish the run's upload or local file."""
        if self._run is not None:
            run, self._run = self._run, None
            self._attempt(run.finish)

    def _send(self, step: int, metrics: Mapping[str, Any]) -> None:
        if self._run is None:
            self._run = self._start()
        self._run.log(dict(metrics), step=step)

    def _start(self) -> Any:
        known = getattr(self._wandb.Settings, "model_fields", {})
        bounds = {name: value for name, value in _WANDB_SECONDS.items() if name in known}
        settings = self._wandb.Settings(
            console="off", silent=True, disable_git=True, save_code=False, **bounds
        )
        return self._wandb.init(
            id=self.run_id,
            name=self._directory.name,
            dir=str(self._directory),
            resume="allow",
            settings=settings,
            **self._options,
        )
