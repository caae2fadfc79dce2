"""What is shown of training and of evaluations: what it begins with, and how far it is, in a live
line on a terminal, in a plain line now and then elsewhere.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from rl_training.config.groups import ATARI_TAG
from rl_training.runtime.callbacks import Callback, TrainContext

if TYPE_CHECKING:
    from rl_training.config import TrainConfig

RETURN_METRIC = "train/return_mean"
"""The metric shown as return: the mean of the last 100 episodes, by the loop's naming."""
_LIVE_SECONDS = 0.2
"""Between two looks of a live line."""
_WINDOW = 60.0
"""Seconds that the speed is taken over, so that a compilation or a warm-up is soon forgotten."""


class ProgressLine:
    """A line that tells how far something is: rewritten on a terminal, elsewhere written anew."""

    def __init__(self, stream: TextIO | None, seconds: float) -> None:
        """Write to ``stream`` (standard error, if there is one), elsewhere than on a terminal at
        most every ``seconds``.
        """
        self._stream: TextIO | None = sys.stderr if stream is None else stream
        self._seconds = seconds
        self._live: Any = None

    @property
    def live(self) -> bool:
        """Whether it is on a terminal, and started."""
        return self._live is not None

    @property
    def pause(self) -> float:
        """Seconds that a line should stand."""
        return _LIVE_SECONDS if self.live else self._seconds

    def start(self) -> None:
        """Take the terminal, if it is one."""
        if self._stream is not None and self._stream.isatty():
            live = _live_display(self._stream)
            with contextlib.suppress(OSError):
                live.start()
                self._live = live

    def write(self, line: str) -> None:
        """Show a line."""
        try:
            if self._live is not None:
                self._live.update(line, refresh=True)
            elif self._stream is not None:
                print(line, file=self._stream, flush=True)
        except OSError:
            # A closed pipe or a full disk behind the stream is no reason to stop.
            self._seconds = float("inf")

    def leave(self, line: str) -> None:
        """Show a line that stays, above the one that is rewritten."""
        if self._live is None:
            self.write(line)
            return
        with contextlib.suppress(OSError):
            self._live.console.print(line)

    def stop(self) -> None:
        """Release the terminal, which may be gone."""
        if self._live is not None:
            with contextlib.suppress(OSError):
                self._live.stop()
            self._live = None


class EvaluationProgress:
    """Shows how far an evaluation apart from training is. A context manager; call it as
    ``evaluate(tell=...)``.
    """

    def __init__(self, *, stream: TextIO | None = None, seconds: float = 5.0) -> None:
        """Write to ``stream`` (standard error), plain lines at most every ``seconds``."""
        self._line = ProgressLine(stream, seconds)
        self._shown = 0.0

    def __enter__(self) -> EvaluationProgress:
        self._line.start()
        self._shown = time.monotonic()
        return self

    def __call__(self, played: int, episodes: int, steps: int) -> None:
        """Show the figures when the last ones have stood long enough.

        Args:
            played: episodes done.
            episodes: that will be.
            steps: of the environments so far.
        """
        now = time.monotonic()
        if now - self._shown >= self._line.pause:
            self._shown = now
            self._line.write(_evaluating(played, episodes, steps))

    def __exit__(self, *_: object) -> None:
        self._line.stop()


class ProgressCallback(Callback):
    """Shows steps, percent, steps per second, mean return of the last episodes and time left; and,
    of an evaluation that takes long, how far that is.

    It keeps no state: how a run is watched is no part of it.
    """

    def __init__(
        self,
        *,
        stream: TextIO | None = None,
        seconds: float = 5.0,
        return_metric: str = RETURN_METRIC,
    ) -> None:
        """Write to ``stream`` (standard error); plain lines at most every ``seconds``, also of an
        evaluation that takes longer.
        """
        self._display = ProgressLine(stream, seconds)
        self._return_metric = return_metric
        self._marks: deque[tuple[float, int]] = deque()
        self._begun = False
        self._shown = (-1.0, -1)
        self._reached = -1.0
        self._silent_since: float | None = None
        self._silence = self._display.pause
        self._return: float | None = None
        self._total: int | None = None

    def on_train_start(self, context: TrainContext) -> None:
        """Start the clock and, on a terminal, the live line."""
        now = time.monotonic()
        self._total = _end_of(context)
        self._begun = False
        self._mark(context, now)
        self._shown = (now, -1)
        self._reached = now
        self._silent_since = None
        self._display.start()

    def on_iteration(self, context: TrainContext, metrics: Mapping[str, float]) -> None:
        """Show the newest figures when the last ones have stood long enough."""
        self._return = metrics.get(self._return_metric, self._return)
        now = self._reached = time.monotonic()
        if not self._begun:
            # The first iteration compiles and warms up: it says nothing of the speed to come.
            self._begun = True
            self._marks.clear()
            self._mark(context, now)
        if now - self._shown[0] >= self._display.pause:
            self._show(context, now)

    def evaluating(self, context: TrainContext, played: int, episodes: int, steps: int) -> None:
        """Show how far an evaluation is, when it has been silent long enough: on a terminal all the
        time, elsewhere each time after twice the silence before.

        Args:
            context: the training.
            played: episodes done.
            episodes: that will be.
            steps: of the environments so far, in the evaluation.
        """
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since, self._silence = now, self._display.pause
        if now - self._silent_since < self._silence:
            return
        self._silent_since = now
        if self._display.live:
            self._shown = (now, -1)  # training's figures are gone
        else:
            self._silence *= 2
        self._display.write(f"{self._steps_done(context)}  {_evaluating(played, episodes, steps)}")

    def on_evaluation(self, context: TrainContext, record: Mapping[str, Any]) -> None:
        """Tell its mean return, and await the next one."""
        self._silent_since = None
        told = f"evaluation: return {record['return_mean']:.2f}"
        if "return_std" in record and "episodes" in record:
            told += f" ± {record['return_std']:.2f} over {record['episodes']} episodes"
        self._display.leave(f"{self._steps_done(context)}  {told}")

    def on_train_end(self, context: TrainContext) -> None:
        """Show the figures of the last iteration and release the terminal."""
        try:
            if self._shown[1] != context.global_step:
                self._show(context, self._reached)
        finally:
            self._display.stop()

    def _steps_done(self, context: TrainContext) -> str:
        return f"{context.global_step:,} / {self._total or context.total_timesteps:,} steps"

    def _mark(self, context: TrainContext, now: float) -> None:
        """Remember where training is, and forget what lies before the window."""
        self._marks.append((now, context.global_step))
        while len(self._marks) > 2 and self._marks[1][0] <= now - _WINDOW:
            self._marks.popleft()

    def _show(self, context: TrainContext, now: float) -> None:
        self._shown = (now, context.global_step)
        line = self._line(context, now)
        self._mark(context, now)
        self._display.write(line)

    def _line(self, context: TrainContext, now: float) -> str:
        step, total = context.global_step, self._total or context.total_timesteps
        since, first = self._marks[0]
        speed = (step - first) / (now - since) if now > since else 0.0
        parts = [
            self._steps_done(context),
            f"{min(100.0, 100.0 * step / max(total, 1)):.1f}%",
        ]
        if speed > 0:
            parts.append(f"{speed:,.0f} steps/s")
        if self._return is not None:
            parts.append(f"return {self._return:.2f}")
        if speed > 0:
            parts.append(f"{_duration(max(total - step, 0) / speed)} left")
        return "  ".join(parts)


def _evaluating(played: int, episodes: int, steps: int) -> str:
    return f"evaluating: {played} of {episodes} episodes, {steps:,} steps"


def _end_of(context: TrainContext) -> int:
    """Return the steps after the iteration that reaches the budget."""
    done, frames = context.global_step, getattr(context.algorithm, "frames_per_batch", 1)
    return done + _in_whole_iterations(context.total_timesteps - done, frames)


def _in_whole_iterations(steps: int, frames: int) -> int:
    return -(-steps // frames) * frames


def _live_display(stream: TextIO) -> Any:
    from rich.console import Console
    from rich.live import Live

    # No refresh thread: it would take the interpreter from training ten times a second.
    return Live(console=Console(file=stream, highlight=False, markup=False), auto_refresh=False)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Announced(Protocol):
    """What an announcement is of: an algorithm."""

    config: TrainConfig
    global_step: int

    @property
    def frames_per_batch(self) -> int:
        """Environment steps of an iteration."""

    def describe(self) -> list[str]:
        """Return lines on its parts."""


def announce(algorithm: Announced, total_timesteps: int, run_dir: Path | None = None) -> None:
    """Print to standard error what is worth knowing before training starts."""
    config, lines = algorithm.config, algorithm.describe()
    if config.env.atari.enabled:
        tagged = " by the tag 'atari'" if ATARI_TAG in config.tags else ""
        lines.append(f"env.atari is on{tagged}: the standard pipeline of Atari games")
    if config.compile:
        lines.append("compiling in the first iteration: a minute or more")
    frames = algorithm.frames_per_batch
    rounded = _in_whole_iterations(total_timesteps, frames)
    if rounded != total_timesteps:
        lines.append(
            f"{total_timesteps:,} steps are not a multiple of the {frames:,} "
            f"per iteration: {rounded:,} will be done"
        )
    if algorithm.global_step:
        lines.append(f"going on from step {algorithm.global_step:,}")
    if run_dir is not None:
        lines.append(f"run directory {run_dir}")
    shown = ProgressLine(None, 0.0)
    for line in lines:
        shown.write(line)
