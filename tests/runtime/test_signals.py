"""The first signal is noted, the second stops at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from rl_training.runtime.signals import StopSignals

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_is_noted_and_handlers_come_back(number: int, code: int) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with StopSignals() as signals:
        assert signals.received is None
        assert signals.exit_code == 0
        os.kill(os.getpid(), number)
        assert signals.received == number
        assert signals.exit_code == code
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_second_interrupt_raises_as_python_does() -> None:
    with pytest.raises(KeyboardInterrupt), StopSignals():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


PROGRAM = """
import sys, time, signal
from rl_training.runtime.signals import StopSignals
with StopSignals() as signals:
    print("ready", flush=True)
    while signals.received is None:
        time.sleep(0.01)
    print(signals.received, flush=True)
    time.sleep(30)
"""


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize(
    ("first", "second"), [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM)]
)
def test_a_second_signal_ends_the_process(first: int, second: int, ignored: bool) -> None:
    # A job that a script starts in the background begins with SIGINT ignored.
    prefix = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" if ignored else ""
    with subprocess.Popen(
        [sys.executable, "-c", prefix + PROGRAM], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(first)
        assert process.stdout.readline() == f"{int(first)}\n"
        process.send_signal(second)
        assert process.wait(timeout=10) == -second


def test_outside_the_main_thread_nothing_is_installed() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def work() -> None:
        with StopSignals() as signals:
            seen.append(signal.getsignal(signal.SIGINT))
            seen.append(signals.received)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before, None]
