"""One call of `rl_training.experiments.study.Study.run`."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rl_training.errors import UserError, one_line
from rl_training.experiments import worker
from rl_training.experiments.backends import Backend, Handle
from rl_training.experiments.jobs import Job, locked, read_curve, write_plan
from rl_training.experiments.manager import STOPPED, how_it_died
from rl_training.experiments.study import Study, StudyOutcome, require_optuna
from rl_training.experiments.study_results import write_results
from rl_training.runtime.seeding import derive_seed
from rl_training.runtime.signals import StopSignals

_POLL_SECONDS = 0.1
_REFUSALS = 1000
"""Draws in a row whose values do not fit together, after which a study gives up."""
_FIRST_PRUNED = 5
"""How many trials there must be before one is pruned."""


class RunningTrial:
    """A trial whose runs are not all done."""

    def __init__(self, study: Study, trial: Any, drawn: dict[str, Any], reported: int) -> None:
        """Write down what its runs are.

        Raises:
            UserError: the values do not fit together.
        """
        self.trial = trial
        self.number: int = trial.number
        self._reported = reported
        name = f"trial_{self.number:04d}"
        self.jobs = [
            Job(name, seed, study.directory / f"{name}__seed{seed}")
            for seed in study.settings.seeds
        ]
        configs = [study.config(drawn, job.seed, job.directory) for job in self.jobs]
        for job, config in zip(self.jobs, configs, strict=True):
            write_plan(job, config, study.settings.episodes)
        count, budget = study.settings.evaluations, study.base.total_timesteps
        interval = study.evaluation_interval
        self._moments = [min(interval * (place + 1), budget) for place in range(count)]
        self.waiting = deque(job for job in self.jobs if job.state().status != "done")

    def scores(self) -> list[float] | None:
        """Return each seed's score; None when one is missing."""
        found = [job.scores() for job in self.jobs]
        known = [float(each["final"]["return_mean"]) for each in found if each is not None]
        return known if len(known) == len(self.jobs) else None

    def report(self, *, comparable: bool) -> bool:
        """Tell Optuna the evaluations that are new; return whether the trial is to be pruned, which
        it is not where too few are done to be ``comparable``: the pruner reads all from the disk.

        The seeds count one after the other: the value at an evaluation of a seed is the mean over
        that seed and those before it, so that trials are compared with their equals.
        """
        curves = [_curve(job) for job in self.jobs]
        last = len(self._moments) * len(self.jobs) - 1
        while True:
            # Not at the very end: nothing is spared any more.
            if comparable and 0 < self._reported <= last and self.trial.should_prune():
                return True
            seed, place = divmod(self._reported, len(self._moments))
            values = [_value_at(curve, self._moments[place]) for curve in curves[: seed + 1]]
            known = [value for value in values if value is not None]
            if seed >= len(self.jobs) or len(known) < len(values):
                return False
            self.trial.report(statistics.fmean(known), self._reported)
            self._reported += 1


class StudySession:
    """Runs trials until there are enough, or a signal comes."""

    def __init__(
        self,
        study: Study,
        trials: int,
        limit: int,
        say: Callable[[str], None],
        backend: Backend,
    ) -> None:
        self._study = study
        self._wanted = trials
        self._limit = limit
        self._say = say
        self._backend = backend
        self._optuna = require_optuna()
        self._states = self._optuna.trial.TrialState
        self._search = self._open()
        self._active: dict[int, RunningTrial] = {}
        self._processes: dict[Job, Handle] = {}
        self._stopping = False
        self._refused = 0
        begun = [each for each in self._search.trials if each.state != self._states.WAITING]
        self._drawn = len(begun)
        self._counted = sum("refused" not in each.user_attrs for each in begun)
        self._done = sum(each.state == self._states.COMPLETE for each in begun)

    def run(self) -> StudyOutcome:
        """Work until the study has its trials; write the results.

        Raises:
            UserError: the storage cannot be written, for a full disk most often; runs are stopped.
        """
        from sqlalchemy.exc import SQLAlchemyError  # Optuna brings it

        try:
            return self._run()
        except (SQLAlchemyError, self._optuna.exceptions.StorageInternalError) as error:
            cause = error.__cause__ or error
            reason = one_line(getattr(cause, "orig", None) or cause)
            raise UserError(
                f"{self._study.directory / 'study.db'} cannot be written ({reason}): the same "
                "command goes on with the study once it can."
            ) from error

    def _run(self) -> StudyOutcome:
        for frozen in self._search.trials:
            if frozen.state == self._states.RUNNING:
                trial = self._optuna.trial.Trial(self._search, frozen._trial_id)
                self._begin(trial, "go on", len(frozen.intermediate_values))
        with StopSignals() as signals:
            try:
                self._work(signals)
            except BaseException:
                for _ in range(2):  # at once
                    self._stop(list(self._processes))
                raise
        outcome = write_results(self._study, self._search.trials)
        outcome.exit_code = signals.exit_code or outcome.exit_code
        return outcome

    def _open(self) -> Any:
        optuna, settings = self._optuna, self._study.settings
        pruner = optuna.pruners.NopPruner()
        if settings.pruner == "median":
            pruner = optuna.pruners.MedianPruner(n_startup_trials=_FIRST_PRUNED, n_warmup_steps=1)
        path = (self._study.directory / "study.db").resolve()
        from sqlalchemy.exc import SQLAlchemyError  # Optuna brings it

        try:
            search = optuna.create_study(
                storage=optuna.storages.RDBStorage(f"sqlite:///{path}"),
                study_name="study",
                direction="maximize",
                load_if_exists=True,
                pruner=pruner,
            )
            search.get_trials(deepcopy=False)
        except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            raise UserError(
                f"{path} is damaged: delete it, and trials that are done are run again."
            ) from error
        own = self._study.own()
        if not search.trials and own is not None:
            search.enqueue_trial(own, user_attrs={"own": True})
        return search

    # ---- trials

    def _next_trial(self) -> None:
        # A sampler for each trial: a study that goes on draws what it would have drawn anyway.
        settings, samplers = self._study.settings, self._optuna.samplers
        seed = derive_seed(settings.sampler_seed, f"trial {self._drawn}") % 2**32
        kind = samplers.TPESampler if settings.sampler == "tpe" else samplers.RandomSampler
        self._search.sampler = kind(seed=seed)
        self._drawn += 1
        self._counted += 1
        self._begin(self._search.ask(), "begin", 0)

    def _begin(self, trial: Any, word: str, reported: int) -> None:
        drawn = {name: each.suggest(trial, name) for name, each in self._study.space.items()}
        try:
            running = RunningTrial(self._study, trial, drawn, reported)
        except UserError as error:
            trial.set_user_attr("refused", str(error))
            self._search.tell(trial, state=self._states.PRUNED)
            self._refused += 1
            self._counted -= 1
            if self._refused >= _REFUSALS:
                raise UserError(f"no values of the search space fit together: {error}") from error
            return
        self._refused = 0
        self._active[running.number] = running
        self._say(f"{word:<8} trial {running.number}")

    def _end(self, running: RunningTrial, line: str, **told: Any) -> None:
        del self._active[running.number]
        self._stop([job for job in running.jobs if job in self._processes])
        self._search.tell(running.trial, **told)
        self._say(line)
        write_results(self._study, self._search.trials)

    def _fail(self, running: RunningTrial, error: str) -> None:
        running.trial.set_user_attr("error", error)
        line = f"{'failed':<8} trial {running.number}: {error}"
        self._end(running, line, state=self._states.FAIL)

    def _look(self) -> None:
        """Report evaluations; end the trials that are pruned or done."""
        for running in list(self._active.values()):
            what = f"trial {running.number}"
            if running.report(comparable=self._done >= _FIRST_PRUNED):
                self._end(running, f"{'pruned':<8} {what}", state=self._states.PRUNED)
            elif not running.waiting and not set(running.jobs) & set(self._processes):
                scores = running.scores()
                if scores is None:
                    self._fail(running, "a scores.json of its runs is missing or damaged")
                    continue
                running.trial.set_user_attr("scores", scores)
                mean = statistics.fmean(scores)
                self._done += 1
                self._end(running, f"{'done':<8} {what}: {mean:.1f}", values=mean)

    # ---- processes

    def _work(self, signals: StopSignals) -> None:
        while True:
            if signals.received is not None and not self._stopping:
                self._stopping = True
                self._say("stopping: every run writes a checkpoint first")
                self._stop(list(self._processes))
            while not self._stopping and len(self._processes) < self._limit:
                job = self._next_job()
                if job is None:
                    break
                self._start(job)
            self._collect()
            if not self._stopping:
                self._look()
            more = not self._stopping and (self._active or self._counted < self._wanted)
            if not self._processes and not more:
                return
            time.sleep(_POLL_SECONDS)

    def _next_job(self) -> Job | None:
        while True:
            for running in self._active.values():
                if running.waiting:
                    return running.waiting.popleft()
            self._look()  # of a trial that goes on, all may be done
            if self._counted >= self._wanted:
                return None
            self._next_trial()

    def _start(self, job: Job) -> None:
        left = locked(job.directory)
        self._processes[job] = (
            _Left(job) if left else self._backend.start(job, job.state().attempts, self._limit)
        )

    def _stop(self, jobs: list[Job]) -> None:
        for job in jobs:
            self._processes[job].stop()

    def _collect(self) -> None:
        for job, handle in list(self._processes.items()):
            status = handle.poll()
            if status is None:
                continue
            del self._processes[job]
            owner = next((each for each in self._active.values() if job in each.jobs), None)
            if owner is not None and not self._stopping:
                self._ended(owner, job, status)

    def _ended(self, owner: RunningTrial, job: Job, status: int) -> None:
        state = job.state()
        if state.status == "done":
            return
        if state.status != "failed" and status in (worker.TAKEN, *STOPPED):
            owner.waiting.append(job)
            return
        error = state.error if state.status == "failed" else how_it_died(status, job)
        self._fail(owner, f"seed {job.seed}: {error or 'it left no message'}")


class _Left:
    """A handle on a process that an earlier manager started, and that outlived it."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._stopped = False

    def poll(self) -> int | None:
        return None if locked(self._job.directory) and not self._stopped else worker.TAKEN

    def stop(self) -> None:
        self._stopped = True  # it ends by itself


def _curve(job: Job) -> list[tuple[int, float]]:
    run = job.run
    return [] if run is None else read_curve(run / "evaluations.jsonl", "return_mean")


def _value_at(curve: list[tuple[int, float]], moment: int) -> float | None:
    """Return the first evaluation at or after a step."""
    return next((value for step, value in curve if step >= moment), None)
