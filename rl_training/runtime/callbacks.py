"""What happens beside learning: evaluation, checkpoints, early stops.

A user's own callback is a subclass of `Callback`. All intervals are in environment steps. An
interval that has gone by since the last iteration fires once, however often it fits.

The loop calls every callback of one hook before it acts on what they asked for.
`TrainContext.save_checkpoint` in particular is a request: one checkpoint is written after the last
callback of the iteration, so that it holds all callbacks as they are then, and a resumed run
repeats and misses nothing.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any, Protocol

from rl_training.errors import UserError, nearest
from rl_training.runtime.best_checkpoint import restore_best
from rl_training.runtime.run import Run


class TrainContext(Protocol):
    """What a callback sees of the training loop, and what it may ask for."""

    @property
    def global_step(self) -> int:
        """Environment steps done."""

    @property
    def total_timesteps(self) -> int:
        """Environment steps at which training ends."""

    @property
    def algorithm(self) -> Any:
        """The algorithm being trained."""

    @property
    def run(self) -> Run | None:
        """The run directory; None when nothing is written."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """The newest metrics."""

    def stop(self, reason: str) -> None:
        """End training after this iteration, in good order."""

    def evaluate(self) -> dict[str, Any]:
        """Evaluate the policy now and return the record.

        Every callback's `Callback.on_evaluation` gets it too, before this returns. A stop signal
        ends it with an exception, which is for the loop: let it pass.
        """

    def save_checkpoint(self, *, best: bool = False) -> None:
        """Ask for a checkpoint at the end of this iteration, and that ``best`` moves to it."""


HOOKS = ("on_train_start", "on_iteration", "on_evaluation", "on_train_end")
"""What the loop calls, in the order of a run."""
_HOOKS_ELSEWHERE = {
    **dict.fromkeys(
        ("on_step", "on_rollout_end", "on_update", "on_epoch_end", "on_batch_end"), "on_iteration"
    ),
    **dict.fromkeys(
        ("on_training_start", "on_train_begin", "on_fit_start", "on_rollout_start"),
        "on_train_start",
    ),
    **dict.fromkeys(("on_training_end", "on_fit_end"), "on_train_end"),
    **dict.fromkeys(("on_eval", "on_eval_end", "on_validation_end"), "on_evaluation"),
}
"""Hooks of other libraries, and the nearest here."""
_PACKAGE = __name__.partition(".")[0]


def _squeezed(name: str) -> str:
    return name.replace("_", "").lower()


_SPELLINGS = {_squeezed(name): name for name in (*HOOKS, *_HOOKS_ELSEWHERE)}


def looks_like_hook(name: str) -> bool:
    """Return whether a public method's name must be meant for a hook's, and is none:
    ``on_iteraton``, ``onIteration``, ``on_step``.
    """
    if name in HOOKS or name.startswith("_"):
        return False
    return name.startswith("on_") or _squeezed(name) in _SPELLINGS


def no_hook(callback: str, name: str) -> UserError:
    """Return the error for a method of a class ``callback`` that looks like a hook and is none."""
    spelled = _SPELLINGS.get(_squeezed(name))
    known = _HOOKS_ELSEWHERE.get(spelled, spelled) if spelled else None
    hint = f" Did you mean {known!r}?" if known else nearest(name, HOOKS)
    return UserError(
        f"callback {callback}: {name} is no hook and would never be called.{hint} "
        f"Hooks: {', '.join(HOOKS)}."
    )


class Callback:
    """Hooks into the training loop; each does nothing unless overridden.

    `on_train_end` is called however training ends, by an exception too, once `on_train_start` was
    called.

    Names that begin with ``on_`` are the hooks'; all other methods are free.

    Raises:
        UserError: when a subclass is made that has another method ``on_...``, which would never be
            called, or a hook that cannot be called as one.
    """

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Refuse what looks like a hook and is none."""
        super().__init_subclass__(**keywords)
        for name in dir(cls):
            if (looks_like_hook(name) or _overrides_elsewhere(cls, name)) and callable(
                getattr(cls, name)
            ):
                raise no_hook(cls.__name__, name)
        for name in HOOKS:
            if problem := _unfit(cls, name):
                raise UserError(f"callback {cls.__name__}: {name} {problem}.")

    def on_train_start(self, context: TrainContext) -> None:
        """Before the first iteration, of a resumed run too."""

    def on_iteration(self, context: TrainContext, metrics: Mapping[str, float]) -> None:
        """After each update; ``metrics`` are that iteration's."""

    def on_evaluation(self, context: TrainContext, record: Mapping[str, Any]) -> None:
        """After each evaluation; ``record`` has ``return_mean`` and more."""

    def on_train_end(self, context: TrainContext) -> None:
        """After the last iteration."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, as `state.encode_state` takes it.

        No clocks: equal runs save equal states.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``."""


def _overrides_elsewhere(cls: type[Callback], name: str) -> bool:
    """Return whether a private method is what other libraries' callbacks override (``_on_step``).

    Private names are the user's own, where a hook of theirs may call them.
    """
    if not name.startswith("_") or _squeezed(name) not in _SPELLINGS:
        return False
    own = [each for each in cls.__mro__ if each.__module__.partition(".")[0] != _PACKAGE]
    return not any(hook in vars(each) for each in own for hook in HOOKS)


def _unfit(cls: type[Callback], name: str) -> str | None:
    """Return why a class's hook would not be run; None where it would."""
    hook = getattr(cls, name)
    if not callable(hook):
        return f"is {hook!r}, no method"
    for of_kind, what in (
        (inspect.iscoroutinefunction, "async"),
        (inspect.isgeneratorfunction, "a generator"),
        (inspect.isasyncgenfunction, "a generator"),
    ):
        if of_kind(hook):
            return f"is {what}: it would be called, and its body never run"
    if hook is getattr(Callback, name):
        behind = cls.__mro__[cls.__mro__.index(Callback) + 1 :]
        for each in behind:
            if name in vars(each):
                return (
                    f"of {each.__name__} stands behind Callback's own and would never be called; "
                    f"put {each.__name__} before Callback among the base classes"
                )
    return None


class StepInterval:
    """Tells when a multiple of ``interval`` environment steps has gone by."""

    def __init__(self, interval: int | None) -> None:
        """Fire every ``interval`` steps; None never fires.

        Raises:
            UserError: the interval is not positive.
        """
        if interval is not None and interval < 1:
            raise UserError(f"an interval must be at least 1 environment step, not {interval}.")
        self.interval = interval
        self._last_step = 0

    def due(self, step: int) -> bool:
        """Return whether a multiple was reached since the last call, and remember ``step``."""
        last, self._last_step = self._last_step, step
        return self.interval is not None and step // self.interval > last // self.interval

    def state_dict(self) -> dict[str, Any]:
        """Return the last step seen."""
        return {"last_step": self._last_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the last step seen."""
        self._last_step = int(state["last_step"])


class EvaluationCallback(Callback):
    """Evaluates every ``interval`` steps and keeps the checkpoint of the best evaluation.

    Every evaluation is recorded and compared, also one that something else asked for.
    """

    def __init__(self, *, interval: int | None, keep_best: bool = True) -> None:
        """Evaluate every ``interval`` environment steps; None leaves evaluating to others."""
        self._interval = StepInterval(interval)
        self._keep_best = keep_best
        self.best_return = -math.inf
        """Highest mean return so far."""
        self.best_step: int | None = None
        """Environment steps at which it was reached."""

    def on_train_start(self, context: TrainContext) -> None:
        """Name the best checkpoint until here, and none of a future that was left."""
        if context.run is not None and self._keep_best:
            restore_best(context.run.checkpoints, context.global_step, self.best_step)

    def on_iteration(self, context: TrainContext, metrics: Mapping[str, float]) -> None:
        """Evaluate when it is time."""
        if self._interval.due(context.global_step):
            context.evaluate()

    def on_evaluation(self, context: TrainContext, record: Mapping[str, Any]) -> None:
        """Record it; ask for a checkpoint when it is the best so far."""
        if context.run is not None:
            context.run.log_evaluation(context.global_step, record)
        # NaN is greater than nothing.
        if record["return_mean"] > self.best_return:
            self.best_return = float(record["return_mean"])
            self.best_step = context.global_step
            if self._keep_best:
                context.save_checkpoint(best=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the best score and the last step seen."""
        return {
            "interval": self._interval.state_dict(),
            "best_return": self.best_return,
            "best_step": self.best_step,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``."""
        self._interval.load_state_dict(state["interval"])
        self.best_return, self.best_step = state["best_return"], state["best_step"]


class CheckpointCallback(Callback):
    """Asks for a checkpoint every ``interval`` steps."""

    def __init__(self, *, interval: int | None) -> None:
        """Ask every ``interval`` environment steps; None never asks."""
        self._interval = StepInterval(interval)

    def on_iteration(self, context: TrainContext, metrics: Mapping[str, float]) -> None:
        """Ask when it is time."""
        if self._interval.due(context.global_step):
            context.save_checkpoint()

    def state_dict(self) -> dict[str, Any]:
        """Return the last step seen."""
        return self._interval.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``."""
        self._interval.load_state_dict(state)


class StopOnReturn(Callback):
    """Stops training once an evaluation's mean return reaches ``threshold``."""

    def __init__(self, *, threshold: float) -> None:
        """Stop at a mean return of ``threshold`` or more."""
        self._threshold = threshold

    def on_evaluation(self, context: TrainContext, record: Mapping[str, Any]) -> None:
        """Compare."""
        if record["return_mean"] >= self._threshold:
            context.stop(f"mean return {record['return_mean']:.6g} reached {self._threshold:g}")


class StopOnNoImprovement(Callback):
    """Stops training after ``patience`` evaluations in a row without a new best mean return."""

    def __init__(self, *, patience: int) -> None:
        """Stop after ``patience`` evaluations without a new best.

        Raises:
            UserError: the patience is not positive.
        """
        if patience < 1:
            raise UserError(f"patience must be at least 1 evaluation, not {patience}.")
        self._patience = patience
        self._best_return = -math.inf
        self._waited = 0

    def on_evaluation(self, context: TrainContext, record: Mapping[str, Any]) -> None:
        """Count, or start to count again."""
        if record["return_mean"] > self._best_return:
            self._best_return, self._waited = float(record["return_mean"]), 0
            return
        self._waited += 1
        if self._waited >= self._patience:
            context.stop(
                f"no improvement over {self._best_return:.6g} in {self._waited} evaluations"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the best score and how long ago it was."""
        return {"best_return": self._best_return, "waited": self._waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``."""
        self._best_return, self._waited = state["best_return"], state["waited"]
