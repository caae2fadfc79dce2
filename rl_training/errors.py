"""The exception that means "the user can mend this": one line on the command line, and exit 2."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from pathlib import Path


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


def lies_here(module: str) -> str:
    """Return what to do about a module that is not found although it lies in the current directory,
    where an installed program such as ``rl-training`` does not look; else an empty string.
    """
    top, here = module.partition(".")[0], Path.cwd()
    there = (here / f"{top}.py").is_file() or (here / top).is_dir()
    searched = {Path(place).resolve() for place in sys.path}  # "" is the current directory
    if not there or here.resolve() in searched:
        return ""
    return (
        f" {top!r} lies in the current directory, where Python does not look: begin with "
        "`python -m rl_training` instead of `rl-training`, or set PYTHONPATH=."
    )


def one_line(given: object) -> str:
    """Return the text of an error, or of anything else, on one line."""
    return " ".join(str(given).split())
