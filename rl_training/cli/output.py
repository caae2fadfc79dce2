"""What a command says of work that does not depend on being heard."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO


def tell(text: str) -> None:
    """Print to standard output at once. Its reader may be gone or its disk full: nothing is said
    from then on, and that is all.
    """
    _print(text, sys.stdout)


def complain(text: str) -> None:
    """Print to standard error in the same way."""
    _print(text, sys.stderr)


def silence(stream: TextIO) -> None:
    """Let what a stream still holds, and whatever follows, go nowhere."""
    with contextlib.suppress(OSError, ValueError):  # in memory, it has none; or it is closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _print(text: str, stream: TextIO | None) -> None:
    if stream is None:  # closed by whoever started this
        return
    try:
        print(text, file=stream, flush=True)
    except (OSError, ValueError):  # an environment may have closed it
        silence(stream)
