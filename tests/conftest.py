"""What tests of several folders share."""

from __future__ import annotations

import os
import signal

import pytest

# One thread each, set before torch is imported: workers share the cores, small networks gain
# nothing from more, and what tests start (trainings, benchmarks) inherits it.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write tests/golden/*.json anew from this code; say in the commit why they changed",
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


def pytest_configure() -> None:
    """Take SIGINT as at a terminal: a job that a script starts in the background ignores it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
