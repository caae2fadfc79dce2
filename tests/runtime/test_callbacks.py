"""Callbacks fire at the right steps, also after a resume, and ask for the right things."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rl_training.errors import UserError
from rl_training.runtime.callback_states import require_callbacks
from rl_training.runtime.callbacks import (
    HOOKS,
    Callback,
    CheckpointCallback,
    EvaluationCallback,
    StepInterval,
    StopOnNoImprovement,
    StopOnReturn,
)
from rl_training.runtime.progress import ProgressCallback
from rl_training.runtime.state import decode_state, encode_state


class FakeRun:
    def __init__(self) -> None:
        self.evaluations: list[tuple[int, Mapping[str, Any]]] = []

    def log_evaluation(self, step: int, record: Mapping[str, Any]) -> None:
        self.evaluations.append((step, record))


class FakeContext:
    """A training loop of fixed steps whose evaluations return what the test says."""

    def __init__(self, callbacks: Sequence[Callback], returns: Sequence[float] = ()) -> None:
        self.callbacks = list(callbacks)
        self.returns = list(returns)
        self.global_step = 0
        self.total_timesteps = 1000
        self.algorithm: Any = None
        self.run: Any = FakeRun()
        self.metrics: dict[str, float] = {}
        self.reasons: list[str] = []
        self.evaluated: list[int] = []
        self.saved: list[tuple[int, bool]] = []

    def stop(self, reason: str) -> None:
        self.reasons.append(reason)

    def evaluate(self) -> dict[str, Any]:
        self.evaluated.append(self.global_step)
        record = {"return_mean": self.returns.pop(0) if self.returns else 0.0}
        for callback in self.callbacks:
            callback.on_evaluation(self, record)
        return record

    def save_checkpoint(self, *, best: bool = False) -> None:
        self.saved.append((self.global_step, best))

    def iterate(self, steps: int, times: int) -> None:
        for _ in range(times):
            self.global_step += steps
            for callback in self.callbacks:
                callback.on_iteration(self, self.metrics)


def reload(source: Callback, target: Callback) -> None:
    target.load_state_dict(decode_state(*encode_state(source.state_dict())))


@pytest.mark.parametrize(
    ("interval", "batch", "expected"),
    [
        (100, 100, [100, 200, 300, 400]),
        (100, 64, [128, 256, 320, 448]),
        (100, 250, [250, 500, 750, 1000]),
        (1, 100, [100, 200, 300, 400]),
        (None, 100, []),
    ],
)
def test_an_interval_fires_once_when_a_multiple_has_gone_by(
    interval: int | None, batch: int, expected: list[int]
) -> None:
    trigger = StepInterval(interval)
    fired = [step for step in range(batch, 2000, batch) if trigger.due(step)]
    assert fired[:4] == expected


@pytest.mark.parametrize("interval", [0, -5])
def test_an_interval_that_is_not_positive_is_the_users_mistake(interval: int) -> None:
    for make in (CheckpointCallback, EvaluationCallback):
        with pytest.raises(UserError, match="at least 1"):
            make(interval=interval)


def test_an_interval_goes_on_after_a_resume_where_it_was() -> None:
    whole, first, second = (CheckpointCallback(interval=100) for _ in range(3))
    context = FakeContext([whole])
    context.iterate(64, 10)
    part = FakeContext([first])
    part.iterate(64, 3)
    reload(first, second)
    rest = FakeContext([second])
    rest.global_step = part.global_step
    rest.iterate(64, 7)
    assert part.saved + rest.saved == context.saved
    assert second.state_dict() == whole.state_dict()


def test_evaluations_are_recorded_and_each_new_best_asks_for_a_checkpoint() -> None:
    callback = EvaluationCallback(interval=100)
    context = FakeContext([callback], returns=[5.0, 5.0, 4.0, 6.0, math.nan])
    context.iterate(100, 5)
    assert context.evaluated == [100, 200, 300, 400, 500]
    assert [step for step, _ in context.run.evaluations] == context.evaluated
    assert context.run.evaluations[0] == (100, {"return_mean": 5.0})
    assert context.saved == [(100, True), (400, True)]
    assert (callback.best_return, callback.best_step) == (6.0, 400)


def test_the_best_is_remembered_across_a_resume() -> None:
    first, second = EvaluationCallback(interval=100), EvaluationCallback(interval=100)
    FakeContext([first], returns=[5.0]).iterate(100, 1)
    reload(first, second)
    context = FakeContext([second], returns=[4.0, 5.5])
    context.global_step = 100
    context.iterate(100, 2)
    assert context.saved == [(300, True)]


def test_the_state_before_any_evaluation_can_be_saved() -> None:
    first, second = EvaluationCallback(interval=100), EvaluationCallback(interval=100)
    reload(first, second)
    assert second.best_return == -math.inf
    assert second.best_step is None


def test_without_a_run_directory_nothing_is_recorded_and_the_best_still_counts() -> None:
    callback = EvaluationCallback(interval=100, keep_best=False)
    context = FakeContext([callback], returns=[5.0])
    context.run = None
    context.iterate(100, 1)
    assert callback.best_return == 5.0
    assert context.saved == []


def test_training_stops_once_the_return_is_reached() -> None:
    context = FakeContext(
        [EvaluationCallback(interval=100), StopOnReturn(threshold=475)], returns=[474.9, 475.0]
    )
    context.iterate(100, 1)
    assert context.reasons == []
    context.iterate(100, 1)
    assert context.reasons == ["mean return 475 reached 475"]


def test_training_stops_after_so_many_evaluations_without_improvement() -> None:
    stopper = StopOnNoImprovement(patience=2)
    returns = [1.0, 0.0, 2.0, 2.0, math.nan]
    context = FakeContext([EvaluationCallback(interval=100), stopper], returns=returns)
    context.iterate(100, 4)
    assert context.reasons == []
    context.iterate(100, 1)
    assert context.reasons == ["no improvement over 2 in 2 evaluations"]


def test_patience_goes_on_counting_after_a_resume() -> None:
    first, second = StopOnNoImprovement(patience=2), StopOnNoImprovement(patience=2)
    context = FakeContext([EvaluationCallback(interval=100), first], returns=[3.0, 1.0])
    context.iterate(100, 2)
    reload(first, second)
    resumed = FakeContext([EvaluationCallback(interval=100), second], returns=[2.0])
    resumed.iterate(100, 1)
    assert resumed.reasons == ["no improvement over 3 in 2 evaluations"]


def test_a_patience_below_one_is_the_users_mistake() -> None:
    with pytest.raises(UserError, match="patience"):
        StopOnNoImprovement(patience=0)


def test_a_callback_without_hooks_does_nothing() -> None:
    callback = Callback()
    context = FakeContext([callback])
    callback.on_train_start(context)
    callback.on_iteration(context, {})
    callback.on_evaluation(context, {"return_mean": 0.0})
    callback.on_train_end(context)
    assert callback.state_dict() == {}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("on_step", "on_iteration"),
        ("on_iteraton", "on_iteration"),
        ("on_training_start", "on_train_start"),
        ("on_train_ends", "on_train_end"),
        ("on_eval", "on_evaluation"),
        ("_on_step", "on_iteration"),
        ("_on_training_end", "on_train_end"),
        ("onIteration", "on_iteration"),
        ("OnStep", "on_iteration"),
        ("_on_iteration", "on_iteration"),
    ],
)
@pytest.mark.parametrize("base", [Callback, EvaluationCallback, StopOnReturn, ProgressCallback])
def test_a_hook_that_is_none_is_refused_when_the_class_is_made(
    name: str, meant: str, base: type[Callback]
) -> None:
    with pytest.raises(UserError) as refused:
        type("Mine", (base,), {name: lambda self, *_: None})
    assert str(refused.value) == (
        f"callback Mine: {name} is no hook and would never be called. Did you mean {meant!r}? "
        "Hooks: on_train_start, on_iteration, on_evaluation, on_train_end."
    )


def test_a_mixin_s_method_is_looked_at_too() -> None:
    class Mixin:
        def on_step(self) -> None: ...

    with pytest.raises(UserError, match="on_step is no hook"):
        type("Mine", (Mixin, Callback), {})


class BehindMixin:
    def on_iteration(self, context: Any, metrics: Any) -> None: ...


async def waits(self: Any, *_: Any) -> None: ...


def yields(self: Any, *_: Any) -> Any:
    yield


@pytest.mark.parametrize(
    ("bases", "content", "message"),
    [
        ((Callback, BehindMixin), {}, "of BehindMixin stands behind Callback's own"),
        ((Callback,), {"on_iteration": waits}, "is async"),
        ((Callback,), {"on_iteration": yields}, "is a generator"),
        ((Callback,), {"on_iteration": None}, "is None, no method"),
    ],
)
def test_a_hook_whose_body_would_never_run_is_refused(
    bases: tuple[type, ...], content: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=rf"callback Mine: on_iteration {message}"):
        type("Mine", bases, content)
    type("Right", (BehindMixin, Callback), {})


def test_a_hook_that_is_none_is_refused_on_an_instance_too() -> None:
    callback = Callback()
    callback.on_iteraton = print  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"on_iteraton is no hook.*'on_iteration'"):
        require_callbacks([callback])


@pytest.mark.parametrize("base", [Callback, EvaluationCallback])
def test_methods_of_ones_own_are_free(base: Any) -> None:
    class Mine(base):
        on_gpu = True

        def once(self) -> None: ...

        def only(self) -> None: ...

        def on_iteration(self, context: Any, metrics: Any) -> None:
            self._on_step()

        def _on_step(self) -> None: ...

    mine = Mine() if base is Callback else Mine(interval=None)
    mine.on_iteration(None, {})


def test_the_hooks_are_those_of_the_class() -> None:
    assert {name for name in vars(Callback) if name.startswith("on_")} == set(HOOKS)
