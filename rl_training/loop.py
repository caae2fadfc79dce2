"""The only training loop: collect, update, and whatever else happens on the way. It knows nothing
of learning.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.collectors import Collector

from rl_training import evaluation
from rl_training.data.lean_collector import LeanCollector
from rl_training.errors import NonFiniteError
from rl_training.finite import check_batch, check_update
from rl_training.runtime.callbacks import (
    Callback,
    CheckpointCallback,
    EvaluationCallback,
    StopOnNoImprovement,
    StopOnReturn,
)
from rl_training.runtime.checkpoint import digest, read_link
from rl_training.runtime.devices import set_torch_threads
from rl_training.runtime.garbage import frozen_garbage
from rl_training.runtime.progress import ProgressCallback
from rl_training.runtime.run import Run
from rl_training.runtime.seeding import (
    global_rng_state,
    preserve_global_rng,
    seed_everything,
    set_global_rng_state,
)
from rl_training.runtime.signals import StopSignals

if TYPE_CHECKING:
    from pathlib import Path

    from rl_training.algorithm_core import AlgorithmCore

logger = logging.getLogger(__name__)


def make_collector(algorithm: AlgorithmCore) -> Collector:
    """Return TorchRL's Collector over the algorithm's environments and rollout policy.

    It goes on where the environments stand: a Collector resets them when it is built, which they
    answer with the current root once they have begun.
    """
    environment = algorithm.environment
    environment.continue_episodes()
    return LeanCollector(
        environment,
        algorithm.rollout_policy,
        frames_per_batch=algorithm.frames_per_batch,
        pre_collect_hook=algorithm.before_collection,
        post_collect_hook=algorithm.after_collection,
    )


@dataclass
class LoopResult:
    """How training ended."""

    status: str
    """``finished`` or ``interrupted``."""
    exit_code: int
    global_step: int
    metrics: dict[str, float]
    evaluation: dict[str, Any] | None = None
    checkpoint: Path | None = None
    digest: str | None = None
    reason: str | None = None
    """Why it ended before its budget."""

    def to_json(self, run: Run) -> dict[str, Any]:
        """Return the content of ``result.json``."""
        seconds = run.wall_time_s
        checkpoint = self.checkpoint
        return {
            "global_step": self.global_step,
            "wall_time_s": round(seconds, 3),
            "steps_per_second": round(self.global_step / max(seconds, 1e-9), 1),
            "eval": None if self.evaluation is None else evaluation.summary(self.evaluation),
            "checkpoint": None
            if checkpoint is None
            else str(checkpoint.relative_to(run.directory)),
            "digest": self.digest,
            "reason": self.reason,
        }


class TrainingLoop:
    """One training: what callbacks see as their context.

    Args:
        algorithm: learns.
        run: the run directory to write, or None.
        total_timesteps: environment steps at which training ends.
        callbacks: the user's own, after the configured ones.
        progress: show a progress line.
    """

    def __init__(
        self,
        algorithm: AlgorithmCore,
        *,
        run: Run | None,
        total_timesteps: int,
        callbacks: Sequence[Callback] = (),
        progress: bool = False,
    ) -> None:
        self.algorithm = algorithm
        self.run = run
        self.total_timesteps = total_timesteps
        self.metrics: dict[str, float] = {}
        self.episodes = evaluation.EpisodeStatistics()
        self.callbacks = [*_configured_callbacks(algorithm, run), *callbacks]
        if progress:
            # Last: states are saved in this order, and a resumed run may show it or not.
            self.callbacks.append(ProgressCallback())
        self._progress = progress
        self._reason: str | None = None
        self._wants_checkpoint = self._wants_best = False
        self._evaluation: dict[str, Any] | None = None
        self._evaluated_at: int | None = None
        self._checkpoint: Path | None = None
        self._rng: dict[str, Any] | None = None
        self._last_logged: int | None = None

    @property
    def global_step(self) -> int:
        """Environment steps done."""
        return self.algorithm.global_step

    # ---- what callbacks ask for

    def stop(self, reason: str) -> None:
        """End training after this iteration."""
        self._reason = reason

    def evaluate(self) -> dict[str, Any]:
        """Evaluate now and tell every callback."""
        with preserve_global_rng():
            record = evaluation.evaluate(self.algorithm)
        self._evaluation, self._evaluated_at = record, self.global_step
        for callback in self.callbacks:
            callback.on_evaluation(self, record)
        return record

    def save_checkpoint(self, *, best: bool = False) -> None:
        """Ask for a checkpoint at the end of the iteration."""
        self._wants_checkpoint = True
        self._wants_best |= best

    # ---- state

    def training_state(self) -> dict[str, Any]:
        """Return what a run's digest is over: nothing of clocks, logs, evaluations or their
        callbacks.
        """
        return {"algorithm": self.algorithm.state_dict(), "episodes": self.episodes.state_dict()}

    def state_dict(self) -> dict[str, Any]:
        """Return everything a checkpoint holds."""
        return {
            "training": self.training_state(),
            "callbacks": [callback.state_dict() for callback in self.callbacks],
            "rng": global_rng_state(),
            "threads": torch.get_num_threads(),
            "evaluation": {"step": self._evaluated_at, "record": self._evaluation},
            "last_logged": self._last_logged,
            "run": None if self.run is None else self.run.state_dict(),
        }

    def load_training(self, state: Mapping[str, Any], *, approximate: bool = False) -> None:
        """Restore ``state_dict()`` but for the run's own part, callbacks as far as they are the
        same in number and order.
        """
        self.algorithm.load_state_dict(state["training"]["algorithm"], approximate=approximate)
        # Replays the running episodes: what does not reproduce is refused with the run untouched.
        self.algorithm.environment  # noqa: B018
        self.episodes.load_state_dict(state["training"]["episodes"])
        for callback, saved in zip(self.callbacks, state["callbacks"], strict=False):
            callback.load_state_dict(saved)
        self._rng = state["rng"]
        self._evaluated_at = state["evaluation"]["step"]
        self._evaluation = state["evaluation"]["record"]
        self._last_logged = state["last_logged"]

    # ---- the loop itself

    def train(self) -> LoopResult:
        """Train to the budget, a callback's stop or a signal, close the run, and return how it
        ended.

        Raises:
            NonFiniteError: training met a NaN or an infinity; the message names the checkpoint that
                is left.
        """
        result: LoopResult | None = None
        try:
            result = self._train()
        except NonFiniteError as error:
            raise NonFiniteError(f"{error}{self._what_is_left()}") from None
        finally:
            if self.run is not None:
                status = "failed" if result is None else result.status
                self.run.close(status, None if result is None else result.to_json(self.run))
        return result

    def _what_is_left(self) -> str:
        if self.run is None:
            return ""
        latest = read_link(self.run.checkpoints, "latest")
        if latest is None:
            return f" Training stopped; {self.run.directory} has no checkpoint yet."
        return f" Training stopped; the latest checkpoint is still {latest}"

    def _train(self) -> LoopResult:
        algorithm = self.algorithm
        algorithm.schedule_horizon = algorithm.schedule_horizon or self.total_timesteps
        if algorithm.scheduled and algorithm.progress() >= 1.0:
            logger.warning(
                "The schedules ended with the first budget: what fell to zero stays zero. "
                "Reschedule to stretch them to the new one."
            )
        set_torch_threads(algorithm.config.torch_threads)
        self._announce()
        with preserve_global_rng(), frozen_garbage(), StopSignals() as signals:
            if self._rng is None:
                seed_everything(algorithm.config.seed)
            else:
                set_global_rng_state(self._rng)
            collector = algorithm.collector()
            started: list[Callback] = []
            try:
                for callback in self.callbacks:
                    started.append(callback)
                    callback.on_train_start(self)
                if self.global_step < self.total_timesteps:
                    self._iterate(iter(collector), signals)
                return self._finish(signals)
            finally:
                for callback in started:
                    callback.on_train_end(self)

    def _iterate(self, batches: Iterator[TensorDictBase], signals: StopSignals) -> None:
        while True:
            self._iteration(batches)
            done = self.global_step >= self.total_timesteps or self._reason is not None
            if done or signals.received is not None:
                return
            self._checkpoint_if_wanted()

    def _iteration(self, batches: Iterator[TensorDictBase]) -> None:
        start = time.perf_counter()
        batch = next(batches)
        check_batch(batch, step=self.global_step)
        collected = time.perf_counter()
        tensors = self.algorithm.update(batch)
        check_update(tensors, self.algorithm.modules, step=self.global_step)
        updated = time.perf_counter()
        self.episodes.add(batch)
        self.metrics = {
            **_to_floats(tensors),
            **self.episodes.metrics(),
            "time/steps_per_second": batch.numel() / (updated - start),
            "time/collect": collected - start,
            "time/update": updated - collected,
        }
        self._log()
        for callback in self.callbacks:
            callback.on_iteration(self, self.metrics)

    def _log(self) -> None:
        interval = self.algorithm.config.tracking.log_interval
        if self.run is None:
            return
        last = self._last_logged if self._last_logged is not None else -1
        if interval is None or last < 0 or self.global_step // interval > last // interval:
            self.run.log(self.global_step, self.metrics)
            self._last_logged = self.global_step

    def _checkpoint_if_wanted(self, *, always: bool = False) -> None:
        if self.run is not None and (always or self._wants_checkpoint):
            saved = self.run.save_checkpoint(
                self.global_step,
                self.state_dict(),
                self.algorithm.policy_state(),
                best=self._wants_best,
            )
            self._checkpoint = saved or self._checkpoint
        self._wants_checkpoint = self._wants_best = False

    def _finish(self, signals: StopSignals) -> LoopResult:
        interrupted = signals.received is not None and self.global_step < self.total_timesteps
        final = self.run is not None and self.algorithm.config.evaluation.final
        if final and not interrupted and self._evaluated_at != self.global_step:
            self.evaluate()
        self._checkpoint_if_wanted(always=True)
        return LoopResult(
            status="interrupted" if interrupted else "finished",
            exit_code=signals.exit_code if interrupted else 0,
            global_step=self.global_step,
            metrics=self.metrics,
            evaluation=self._evaluation,
            checkpoint=self._checkpoint,
            digest=digest(self.training_state()),
            reason=self._reason
            or (signal.Signals(signals.received).name if signals.received else None),
        )

    def _announce(self) -> None:
        if not self._progress:
            return
        lines = self.algorithm.describe()
        frames = self.algorithm.frames_per_batch
        rounded = -(-self.total_timesteps // frames) * frames
        if rounded != self.total_timesteps:
            lines.append(
                f"{self.total_timesteps:,} steps are not a multiple of the {frames:,} "
                f"per iteration: {rounded:,} will be done"
            )
        for line in lines:
            print(line, file=sys.stderr, flush=True)


def require_evaluable(algorithm: AlgorithmCore, *, run: bool) -> None:
    """Raise when training would find out only later that the policy cannot be evaluated.

    Args:
        algorithm: about to be trained.
        run: whether a run directory is written, which ends with an evaluation.

    Raises:
        UserError: the environment does not say how to make another one like it.
    """
    settings = algorithm.config.evaluation
    if settings.interval is not None or (run and settings.final):
        algorithm.require_fresh_environments()


def train(
    algorithm: AlgorithmCore,
    *,
    run: Run | None,
    total_timesteps: int,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
) -> LoopResult:
    """Train from where ``algorithm`` stands to ``total_timesteps``; see `TrainingLoop`."""
    loop = TrainingLoop(
        algorithm, run=run, total_timesteps=total_timesteps, callbacks=callbacks, progress=progress
    )
    return loop.train()


def _configured_callbacks(algorithm: AlgorithmCore, run: Run | None) -> list[Callback]:
    settings = algorithm.config.evaluation
    callbacks: list[Callback] = [
        EvaluationCallback(
            interval=settings.interval,
            keep_best=algorithm.config.checkpoint.keep_best and run is not None,
        )
    ]
    if settings.stop_on_return is not None:
        callbacks.append(StopOnReturn(threshold=settings.stop_on_return))
    if settings.patience is not None:
        callbacks.append(StopOnNoImprovement(patience=settings.patience))
    callbacks.append(CheckpointCallback(interval=algorithm.config.checkpoint.interval))
    if algorithm.config.tracking.video_interval is not None:
        callbacks.append(
            evaluation.VideoCallback(interval=algorithm.config.tracking.video_interval)
        )
    return callbacks


def _to_floats(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """Return metrics as floats, by one transfer for all of them."""
    values = torch.stack([value.detach().float().cpu() for value in tensors.values()]).tolist()
    return dict(zip(tensors, values, strict=True))
