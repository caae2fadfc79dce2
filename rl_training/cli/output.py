"""What a command prints: lines that its work does not depend on, and answers that must arrive."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import traceback
from collections.abc import Iterator
from typing import TextIO

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""Errors of a standard output that takes nothing, among others."""


def tell(text: str) -> None:
    """Print to standard output at once. Its reader may be gone or its disk full: nothing is said
    from then on, and that is all.
    """
    _print(text, sys.stdout)


def complain(text: str) -> None:
    """Print to standard error in the same way."""
    _print(text, sys.stderr)


def print_what_can_be_printed() -> None:
    """Let characters that a standard stream's encoding lacks, such as those of a path, become "?":
    no answer is lost for them.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not _takes_all(stream):
            stream.reconfigure(errors="replace")


def _takes_all(stream: io.TextIOWrapper) -> bool:
    unicode = stream.encoding.lower().replace("-", "") == "utf8"
    return unicode and stream.errors != "strict"  # which lacks what is no text in a path


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


@contextlib.contextmanager
def flushed() -> Iterator[None]:
    """Write out what was printed before the program ends, where nobody could say that it failed."""
    try:
        yield
    finally:
        # Whoever started this may have closed it, or what ran in it.
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()


def os_error(error: OSError) -> int:
    """Say what failed, unless the reader of a pipe is gone: `rl-training list | head -1`.

    Returns:
        The exit status.
    """
    if error.errno in _FULL and not _can_print():
        what = error.strerror or error
        complain(f"rl-training: error: standard output cannot be written: {what}")
    elif not isinstance(error, BrokenPipeError):
        traceback.print_exc()
        return 1
    silence(sys.stdout)  # what is left in the buffer would fail once more at the end
    return 1


def _can_print() -> bool:
    try:
        print(flush=True)
    except OSError:
        return False
    return True
