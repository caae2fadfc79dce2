"""Progress: a live line on a terminal, plain lines elsewhere, neither in the way of training."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from rl_training.config import TrainConfig
from rl_training.runtime import progress
from rl_training.runtime.progress import EvaluationProgress, ProgressCallback, announce
from tests.runtime.test_callbacks import FakeContext


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def run(callback: ProgressCallback, clock: Clock, iterations: int, start: int = 0) -> FakeContext:
    context = FakeContext([callback])
    context.global_step = start
    callback.on_train_start(context)
    for index in range(iterations):
        clock.now += 1.0
        context.metrics = {"train/return_mean": 20.0 + index} if index else {}
        context.iterate(100, 1)
    callback.on_train_end(context)
    return context


def test_elsewhere_than_on_a_terminal_one_plain_line_comes_every_few_seconds(clock: Clock) -> None:
    stream = io.StringIO()
    run(ProgressCallback(stream=stream, seconds=4.0), clock, 10)
    assert stream.getvalue().splitlines() == [
        "400 / 1,000 steps  40.0%  100 steps/s  return 23.00  0:06 left",
        "800 / 1,000 steps  80.0%  100 steps/s  return 27.00  0:02 left",
        "1,000 / 1,000 steps  100.0%  100 steps/s  return 29.00  0:00 left",
    ]


@pytest.mark.parametrize(
    ("start", "shown"),
    [
        (0, ["300 / 1,200 steps  25.0%", "1,200 / 1,200 steps  100.0%"]),
        (200, ["500 / 1,100 steps  45.5%", "1,100 / 1,100 steps  100.0%"]),
    ],
)
def test_the_end_is_that_of_the_iteration_which_reaches_the_budget(
    start: int, shown: list[str], clock: Clock
) -> None:
    stream = io.StringIO()
    callback = ProgressCallback(stream=stream, seconds=1.0)
    context = FakeContext([callback])
    context.algorithm, context.global_step = SimpleNamespace(frames_per_batch=300), start
    callback.on_train_start(context)
    while context.global_step < 1000:
        clock.now += 1.0
        context.iterate(300, 1)
    callback.on_train_end(context)
    lines = [re.match(r".*?%", line) for line in stream.getvalue().splitlines()]
    assert [line and line[0] for line in (lines[0], lines[-1])] == shown


@pytest.mark.parametrize(("frames", "rounded", "step"), [(256, True, 0), (100, False, 5_000)])
def test_what_begins_is_announced(
    frames: int, rounded: bool, step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    config = TrainConfig(algo="ppo", env_id="X", compile=True)
    algorithm = SimpleNamespace(
        config=config, frames_per_batch=frames, describe=lambda: ["first"], global_step=step
    )
    announce(algorithm, 10_000, Path("runs/one"))
    more = "10,000 steps are not a multiple of the 256 per iteration: 10,240 will be done"
    assert capsys.readouterr().err.splitlines() == [
        "first",
        "compiling in the first iteration: a minute or more",
        *([more] if rounded else []),
        *(["going on from step 5,000"] if step else []),
        "run directory runs/one",
    ]


def test_the_speed_after_a_resume_counts_only_its_own_steps(clock: Clock) -> None:
    stream = io.StringIO()
    run(ProgressCallback(stream=stream, seconds=1.0), clock, 2, start=500)
    # Neither does the first iteration count, which compiles.
    assert stream.getvalue().splitlines() == [
        "600 / 1,000 steps  60.0%",
        "700 / 1,000 steps  70.0%  100 steps/s  return 21.00  0:03 left",
    ]


def test_on_a_terminal_the_line_is_live_and_the_terminal_is_given_back(clock: Clock) -> None:
    stream = Terminal()
    run(ProgressCallback(stream=stream), clock, 10)
    text = stream.getvalue()
    assert "1,000 / 1,000 steps  100.0%" in text
    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    assert text.count(hidden) == text.count(shown)
    assert plain(stream).endswith("\n")


def test_a_stream_that_is_gone_does_not_stop_training(clock: Clock) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    context = run(ProgressCallback(stream=Broken(), seconds=1.0), clock, 3)
    assert context.global_step == 300


def test_progress_keeps_no_state(clock: Clock) -> None:
    callback = ProgressCallback(stream=io.StringIO())
    run(callback, clock, 2)
    assert callback.state_dict() == {}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (61, "1:01"), (3 * 3600 + 62, "3:01:02")]
)
def test_durations_read_like_a_clock(seconds: float, text: str) -> None:
    assert progress._duration(seconds) == text


def test_a_slow_start_is_forgotten_after_a_minute(clock: Clock) -> None:
    stream = io.StringIO()
    callback = ProgressCallback(stream=stream, seconds=10.0)
    context = FakeContext([callback])
    context.total_timesteps = 100_000
    callback.on_train_start(context)
    # The first iteration is over before networks are compiled: the second one takes long.
    for seconds in (1.0, 100.0, *[10.0] * 7):
        clock.now += seconds
        context.iterate(1000, 1)
    rates = [line.split("  ")[2] for line in stream.getvalue().splitlines()]
    assert rates[0] == "10 steps/s"
    assert rates[-1] == "100 steps/s"


def plain(stream: io.StringIO) -> str:
    """Return what was written, without what moves the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())


def evaluate(callback: ProgressCallback, clock: Clock, seconds: float, start: int = 300) -> None:
    """Let ten episodes of ten steps each take so long."""
    context = FakeContext([callback])
    context.global_step = start
    for step in range(1, 101):
        clock.now += seconds / 100
        callback.evaluating(context, (step - 1) // 10, 10, step)
    record = {"return_mean": 1.0, "return_std": 0.5, "episodes": 10}
    callback.on_evaluation(context, record)


def test_elsewhere_an_evaluation_says_ever_more_rarely_how_far_it_is(clock: Clock) -> None:
    stream = io.StringIO()
    callback = ProgressCallback(stream=stream, seconds=4.0)
    context = FakeContext([callback])
    callback.on_train_start(context)
    for _ in range(3):
        clock.now += 1.0
        context.iterate(100, 1)
    evaluate(callback, clock, 3.9)
    ended = "300 / 1,000 steps  evaluation: return 1.00 ± 0.50 over 10 episodes"
    assert stream.getvalue().splitlines() == [ended]
    for _ in range(2):
        evaluate(callback, clock, 100.0)
    lines = [
        f"300 / 1,000 steps  evaluating: {(step - 1) // 10} of 10 episodes, {step} steps"
        for step in (5, 13, 29, 61)  # after 4, 8, 16 and 32 seconds more
    ]
    assert stream.getvalue().splitlines() == [ended, *lines, ended, *lines, ended]
    callback.on_train_end(context)
    # The speed is training's alone.
    last = "300 / 1,000 steps  30.0%  100 steps/s  0:07 left"
    assert stream.getvalue().splitlines()[11:] == [last]


def test_on_a_terminal_an_evaluation_is_followed_and_the_line_is_given_back(clock: Clock) -> None:
    stream = Terminal()
    callback = ProgressCallback(stream=stream)
    context = FakeContext([callback])
    callback.on_train_start(context)
    for _ in range(3):
        clock.now += 1.0
        context.iterate(100, 1)
    before = len(stream.getvalue())
    evaluate(callback, clock, 100.0)
    lines = re.findall(r"evaluating: (\d+) of 10 episodes, (\d+) steps", stream.getvalue()[before:])
    # What stays is written above the line, which is then drawn once more.
    assert [int(steps) for _, steps in lines] == [*range(2, 101), 100]
    assert lines[-1] == ("9", "100")
    assert "evaluation: return 1.00 ± 0.50 over 10 episodes\n" in plain(stream)
    callback.on_train_end(context)
    shown = stream.getvalue().rindex
    assert shown("30.0%  100 steps/s") > shown("evaluating")


def test_an_evaluation_tells_how_far_it_is_every_few_seconds(clock: Clock) -> None:
    stream = io.StringIO()
    with EvaluationProgress(stream=stream, seconds=4.0) as tell:
        for step in range(1, 11):
            clock.now += 1.0
            tell(step // 3, 20, 1_000 * step)
    assert stream.getvalue().splitlines() == [
        "evaluating: 1 of 20 episodes, 4,000 steps",
        "evaluating: 2 of 20 episodes, 8,000 steps",
    ]


def test_an_evaluation_on_a_terminal_gives_it_back_after_a_failure(clock: Clock) -> None:
    stream = Terminal()
    with pytest.raises(KeyboardInterrupt), EvaluationProgress(stream=stream) as tell:
        clock.now += 1.0
        tell(0, 20, 100)
        raise KeyboardInterrupt
    text = stream.getvalue()
    assert "evaluating: 0 of 20 episodes, 100 steps" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") > 0


@pytest.mark.parametrize("lost_at", ["start", "write"])
def test_a_terminal_that_goes_away_ends_neither_training_nor_evaluation(
    clock: Clock, lost_at: str
) -> None:
    class Lost(Terminal):
        gone = lost_at == "start"

        def write(self, text: str) -> int:
            self.gone |= "steps" in text
            if self.gone:
                raise OSError(5, "Input/output error")
            return super().write(text)

    context = run(ProgressCallback(stream=Lost()), clock, 10)
    assert context.global_step == 1_000
    with EvaluationProgress(stream=Lost()) as tell:
        for step in range(5):
            clock.now += 1.0
            tell(step, 20, 100)


def test_without_standard_error_nothing_is_shown(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr", None)
    assert run(ProgressCallback(), clock, 10).global_step == 1_000
    with EvaluationProgress() as tell:
        clock.now += 10.0
        tell(1, 20, 100)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("iterations", [0, 1])
def test_an_iteration_that_fails_tells_no_speed(clock: Clock, iterations: int) -> None:
    stream = io.StringIO()
    callback = ProgressCallback(stream=stream, seconds=4.0)
    context = FakeContext([callback])
    callback.on_train_start(context)
    for _ in range(iterations):
        clock.now += 1.0
        context.iterate(100, 1)
    context.global_step += 100  # counted by the update that raises then
    callback.on_train_end(context)
    assert "steps/s" not in stream.getvalue()
    assert f"{100 * (iterations + 1)} / 1,000 steps" in stream.getvalue()
