"""The parts of observations and actions: which a space has, how each is got at, and what messages
call it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

from gymnasium import spaces

Path = tuple[str | int, ...]
"""Keys and indices that lead to a part."""


def leaves_of(space: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the parts of ``space`` that have none themselves, sorted by key."""
    if isinstance(space, spaces.Dict):
        for key in sorted(space.spaces):
            yield from leaves_of(space.spaces[key], (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, each in enumerate(space.spaces):
            yield from leaves_of(each, (*path, index))
    else:
        yield path, space


def picker(path: Path) -> Callable[[Any], Any]:
    """Return `pick` of one path, as fast as it can be."""
    return operator.itemgetter(path[0]) if len(path) == 1 else functools.partial(pick, path=path)


def pick(observation: Any, path: Path) -> Any:
    """Return the part that a path leads to."""
    for step in path:
        observation = observation[step]
    return observation


def part_of(observation: Any, path: Path) -> Any:
    """Return a part of what an environment returned.

    Raises:
        ValueError: it has no such part.
    """
    try:
        return pick(observation, path)
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(
            f"an environment returned an observation without its part {named(path)}"
        ) from error


def named(path: Path) -> str:
    """Return the keys and indices that lead to a part, as they are written in Python."""
    return f"{''.join(f'[{step!r}]' for step in path)}"


def part_text(whole: str, path: Path) -> str:
    """Return what messages call a part of ``whole``, or ``whole`` itself."""
    return f"{whole}'s part {named(path)}" if path else whole


def missing(observation: Any, path: Path) -> str:
    """Return what to say of an observation without a part, or without a shape."""
    keys = f" with {', '.join(map(repr, observation))}" if isinstance(observation, dict) else ""
    what = f"the observation has no part {named(path)}" if path else "the observation has no shape"
    return f"{what} that fits: it is a {type(observation).__name__}{keys}."
