"""The only training loop: collect, update, and whatever else happens on the way. It knows nothing
of learning.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.collectors import Collector

from rl_training import evaluation
from rl_training.data.episode_statistics import EpisodeStatistics
from rl_training.data.lean_collector import LeanCollector
from rl_training.errors import EnvironmentFailedError, NonFiniteError, UserError
from rl_training.finite import UpdateCheck, check_batch
from rl_training.garbage import frozen_garbage
from rl_training.runtime.callback_states import (
    end_all,
    require_callbacks,
    restore_states,
    saved_states,
)
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint import digest
from rl_training.runtime.checks import fitting
from rl_training.runtime.devices import set_torch_threads
from rl_training.runtime.loop_record import LoopRecord
from rl_training.runtime.progress import ProgressCallback, announce
from rl_training.runtime.run import Run
from rl_training.runtime.run_records import require_log_state
from rl_training.runtime.seeding import (
    global_rng_state,
    preserve_global_rng,
    seed_everything,
    set_global_rng_state,
)
from rl_training.runtime.signals import StopSignals
from rl_training.runtime.threads import training_thread
from rl_training.runtime.training_result import LoopResult, what_is_left

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


class TrainingLoop:
    """One training: what callbacks see as their context.

    Args:
        algorithm: learns.
        run: the run directory to write, or None.
        total_timesteps: environment steps at which training ends.
        callbacks: the user's own, after the configured ones.
        progress: show a progress line.
        save_first: write a checkpoint before the first iteration: the state that training begins
            with does not follow from the config.

    Raises:
        UserError: ``callbacks`` is no list of callbacks.
    """

    def __init__(
        self,
        algorithm: AlgorithmCore,
        *,
        run: Run | None,
        total_timesteps: int,
        callbacks: Sequence[Callback] = (),
        progress: bool = False,
        save_first: bool = False,
    ) -> None:
        require_callbacks(callbacks)
        self.algorithm = algorithm
        self.run = run
        self.total_timesteps = total_timesteps
        self.metrics: dict[str, float] = {}
        self.episodes = EpisodeStatistics()
        configured = evaluation.configured_callbacks(algorithm.config, keeps_runs=run is not None)
        self._saved_callbacks = [*configured, *callbacks]
        # Progress keeps no state: a resumed run may show it or not.
        self.callbacks = [*self._saved_callbacks, *([ProgressCallback()] if progress else [])]
        self._check_update = UpdateCheck(algorithm.modules)
        self._progress = progress
        self._save_first = save_first
        self._record = LoopRecord()
        self._told_of_false: set[str] = set()
        self._wants_checkpoint = self._wants_best = False
        self._saved_at: int | None = None
        self._checkpoint: Path | None = None
        self._rng: dict[str, Any] | None = None

    @property
    def global_step(self) -> int:
        """Environment steps done."""
        return self.algorithm.global_step

    # ---- what callbacks ask for

    def stop(self, reason: str) -> None:
        """End training after this iteration."""
        self._record.stopped = reason

    def evaluate(self) -> dict[str, Any]:
        """Evaluate now and tell every callback."""
        self._record.evaluation_due = True  # until it is done: a signal may end it
        with preserve_global_rng():
            record = evaluation.evaluate(self.algorithm, tell=self._evaluating())
        self._record.evaluation_due = False
        self._record.evaluation, self._record.evaluated_at = record, self.global_step
        for callback in self.callbacks:
            callback.on_evaluation(self, record)
        return record

    def _evaluating(self) -> Callable[[int, int, int], None] | None:
        lines = [each for each in self.callbacks if isinstance(each, ProgressCallback)]
        return functools.partial(lines[0].evaluating, self) if lines else None

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
            "callbacks": saved_states(self._saved_callbacks),
            "rng": global_rng_state(),
            "threads": torch.get_num_threads(),
            **self._record.state_dict(),
            "run": None if self.run is None else self.run.state_dict(),
        }

    def load_training(self, state: Mapping[str, Any], *, approximate: bool = False) -> None:
        """Restore ``state_dict()`` but for the run's own part, which is only checked, and each
        callback's state as far as one of its class was saved.

        Raises:
            CheckpointError: the state holds something else than `state_dict` returns.
            UserError: the environments do not reproduce.
        """
        with fitting("the checkpoint's training state cannot be used"):
            require_log_state(state["run"] or {})
            with preserve_global_rng():
                set_global_rng_state(state["rng"])
            self.algorithm.load_state_dict(state["training"]["algorithm"], approximate=approximate)
            self.episodes.load_state_dict(state["training"]["episodes"])
            self._rng = state["rng"]
            self._record.load_state_dict(state)
            restore_states(self._saved_callbacks, state["callbacks"])
        # Replays the running episodes: what does not reproduce is refused with the run untouched.
        self.algorithm.environment  # noqa: B018
        self._saved_at = self.global_step

    def go_on(self) -> None:
        """Forget that a callback had stopped training: the budget is larger now."""
        self._record.stopped = None

    # ---- the loop itself

    def train(self) -> LoopResult:
        """Train to the budget, a callback's stop or a signal, close the run, and return how it
        ended.

        Raises:
            NonFiniteError: training met a NaN or an infinity; the message names the checkpoint that
                is left.
            EnvironmentFailedError: an environment raised; the message names it and the checkpoint.
            UserError: a mistake that only playing shows; a run that has learned nothing yet is
                removed.
        """
        result: LoopResult | None = None
        try:
            result = self._train()
        except (NonFiniteError, EnvironmentFailedError) as error:
            told = str(error)
            if self.run is not None:
                stop = "" if told.endswith((".", "!", "?")) else "."
                told += f"{stop} Training stopped; {what_is_left(self.run)}"
            raise type(error)(told) from error.__cause__
        except UserError:
            if self.run is not None:
                self.run.close("failed")
                self.run.discard_unused()
            raise
        finally:
            if self.run is not None:
                status = "failed" if result is None else result.status
                self.run.close(status, None if result is None else result.to_json(self.run))
        return result

    def _train(self) -> LoopResult:
        algorithm = self.algorithm
        algorithm.schedule_horizon = algorithm.schedule_horizon or self.total_timesteps
        if algorithm.scheduled and algorithm.progress() >= 1.0:
            logger.warning(
                "The schedules ended with the first budget: what fell to zero stays zero, and at a "
                "learning rate or a clipping of zero nothing more is learnt. --reschedule "
                "(reschedule=True) stretches them to the new one."
            )
        set_torch_threads(algorithm.config.torch_threads)
        if self._progress:
            place = None if self.run is None else self.run.directory
            announce(algorithm, self.total_timesteps, place)
        with training_thread(), preserve_global_rng(), frozen_garbage(), StopSignals() as signals:
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
                self._iterate(iter(collector), signals)
                result = self._finish(signals)
            except BaseException:
                end_all(started, self)  # what happened first is what is told
                raise
            failure = end_all(started, self)
        if failure is not None:
            raise failure
        return result

    @property
    def _done(self) -> bool:
        return self.global_step >= self.total_timesteps or self._record.stopped is not None

    def _iterate(self, batches: Iterator[TensorDictBase], signals: StopSignals) -> None:
        if self._record.evaluation_due and not self._done:
            self._unless_interrupted(self.evaluate)
        self._checkpoint_if_wanted(always=self._save_first)
        while not self._done and signals.received is None:
            self._iteration(batches)
            if not self._done and signals.received is None:
                self._checkpoint_if_wanted()

    def _unless_interrupted(self, action: Callable[..., Any], *arguments: Any) -> Any:
        """Call what may evaluate; where a signal ended that, a resumed run evaluates first."""
        with contextlib.suppress(evaluation.EvaluationInterruptedError):
            return action(*arguments)

    def _tell_of_false(self, callback: Callback) -> None:
        """Say once that training goes on: of other libraries' callbacks, False ends it."""
        name = type(callback).__name__
        if name not in self._told_of_false:
            self._told_of_false.add(name)
            logger.warning(
                "%s.on_iteration returned False, and training goes on: context.stop(reason) ends "
                "it.",
                name,
            )

    def _iteration(self, batches: Iterator[TensorDictBase]) -> None:
        start = time.perf_counter()
        with self.algorithm.iteration():
            batch = next(batches)
            check_batch(batch, step=self.global_step, layout=self.algorithm.observation_layout)
            collected = time.perf_counter()
            metrics = _to_floats(self.algorithm.update(batch))
            self._check_update(metrics, step=self.global_step)
        updated = time.perf_counter()
        self.episodes.add(batch)
        self.metrics = {
            **metrics,
            **self.episodes.metrics(),
            "time/steps_per_second": batch.numel() / (updated - start),
            "time/collect": collected - start,
            "time/update": updated - collected,
        }
        self._log()
        for callback in self.callbacks:
            if self._unless_interrupted(callback.on_iteration, self, self.metrics) is False:
                self._tell_of_false(callback)

    def _log(self) -> None:
        interval = self.algorithm.config.tracking.log_interval
        if self.run is not None and self._record.log_due(self.global_step, interval):
            self.run.log(self.global_step, self.metrics)
            self._record.last_logged = self.global_step

    def _checkpoint_if_wanted(self, *, always: bool = False, draft: bool = False) -> None:
        if self.run is not None and (always or self._wants_checkpoint):
            saved = self.run.save_checkpoint(
                self.global_step,
                self.state_dict(),
                self.algorithm.policy_state(),
                best=self._wants_best,
                draft=draft,
            )
            if saved is not None:
                self._checkpoint, self._saved_at = saved, self.global_step
        self._wants_checkpoint = self._wants_best = False

    def _finish(self, signals: StopSignals) -> LoopResult:
        number = signals.received
        interrupted = number is not None and (not self._done or self._record.evaluation_due)
        final = self.run is not None and self.algorithm.config.evaluation.final
        if final and not interrupted and self._record.evaluated_at != self.global_step:
            # It may take long, or never end: what was learned is safe before.
            if self._saved_at != self.global_step:
                self._checkpoint_if_wanted(always=True, draft=True)
            self._unless_interrupted(self.evaluate)
            number, interrupted = signals.received, self._record.evaluation_due
        self._checkpoint_if_wanted(always=True)
        return self._result(number if interrupted else None)

    def _result(self, number: int | None) -> LoopResult:
        by_signal = None if number is None else signal.Signals(number).name
        result = LoopResult(
            status="finished" if number is None else "interrupted",
            exit_code=0 if number is None else 128 + number,
            global_step=self.global_step,
            metrics=self.metrics,
            evaluation=self._record.evaluation,
            checkpoint=self._checkpoint,
            digest=digest(self.training_state()),
            reason=self._record.stopped or by_signal,
            signal=number,
        )
        if self.run is not None and self._saved_at != self.global_step:
            result.status, result.exit_code = "failed", 1
            left = what_is_left(self.run)
            result.reason = f"nothing of the end was saved: no checkpoint was written; {left}"
            logger.error("%s", result.reason)
        return result


def _to_floats(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """Return metrics as floats, by one transfer for all of them."""
    values = torch.stack([value.detach().float().cpu() for value in tensors.values()]).tolist()
    return dict(zip(tensors, values, strict=True))
