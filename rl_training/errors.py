"""The exception that means "the user can mend this": one line on the command line, and exit 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in what the user gave: a key, a path, a name, a value. Its message is one line."""


class NonFiniteError(RuntimeError):
    """A number of the training became NaN or infinite: training stops, checkpoints stay as they
    were.
    """


class EnvironmentFailedError(RuntimeError):
    """An environment raised in a step or a reset; its own exception is the cause."""


class VideoError(UserError):
    """A video cannot be written, for a full disk most often; no part of it is left."""


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the candidate closest to ``name``, or an empty string."""
    by_lower_case = {each.lower(): each for each in candidates}
    matches = difflib.get_close_matches(name.lower(), list(by_lower_case), n=1, cutoff=0.5)
    return f" Did you mean {by_lower_case[matches[0]]!r}?" if matches else ""


def one_line(given: object) -> str:
    """Return the text of an error, or of anything else, on one line."""
    return " ".join(str(given).split())
