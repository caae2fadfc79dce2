"""What an environment does, tried out with random actions: what breaks the contract of gymnasium,
and what a run should know.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_training.envs.answers import plain_reward
from rl_training.envs.masks import LegalChoices, found_mask, mask_in
from rl_training.envs.parts import leaves_of, part_text
from rl_training.envs.spaces import DISCRETE, ActionMap
from rl_training.envs.video import expect_no_screen
from rl_training.errors import UserError, one_line

Array = NDArray[Any]


@dataclass
class _Seen:
    """One finding, and how often it came."""

    text: str
    times: int = 0

    def __str__(self) -> str:
        return self.text if self.times == 1 else f"{self.text} (seen {self.times} times)"


@dataclass(kw_only=True)
class Findings:
    """What was seen, each finding once, with how often."""

    steps: int = 0
    episodes: int = 0
    """How many came to an end."""
    terminated: int = 0
    truncated: int = 0
    repeats: bool | None = None
    """Whether an episode was the same again by its seed and its actions; None: not tried."""
    mask_in_info: bool = False
    _violations: dict[str, _Seen] = field(default_factory=dict)
    _notes: dict[str, _Seen] = field(default_factory=dict)

    @property
    def violations(self) -> list[str]:
        """What training would stop at, or learn wrong things from."""
        return [str(each) for each in self._violations.values()]

    @property
    def notes(self) -> list[str]:
        """What is handled, and worth knowing."""
        return [str(each) for each in self._notes.values()]

    def violation(self, text: str, *, kind: str | None = None) -> None:
        """Note a violation; of those of one ``kind`` (None: of the same text) the first is told."""
        self._violations.setdefault(kind or text, _Seen(text)).times += 1

    def note(self, text: str) -> None:
        """Note something worth knowing."""
        self._notes.setdefault(text, _Seen(text)).times += 1


@dataclass
class _Trace:
    """What an episode showed: observations and rewards as bytes, and the actions."""

    seed: int
    seen: list[bytes] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)


_PAIR = "reset must return (observation, info), info a dict"
_NUMBERS = re.compile(r"[-\d.,\[\]\s]+")
"""What differs between findings of one kind."""


class _BrokenError(Exception):
    """What the environment did makes it pointless to go on."""


def try_out(env: Any, *, steps: int, seed: int) -> Findings:
    """Reset ``env`` and step it with random actions, legal ones where it has masks.

    Args:
        env: a gymnasium environment whose spaces are supported.
        steps: how many in all.
        seed: of the first episode and of the actions.
    """
    found = Findings()
    env.action_space.seed(seed)
    try:
        _same_reset(env, found, seed)
        first = _play(env, found, steps, seed)
        found.repeats = _repeats(env, first)
    except _BrokenError:
        pass
    return found


def _same_reset(env: Any, found: Findings, seed: int) -> None:
    bytes_of = [_bytes(_reset(env, found, seed)[0], env.observation_space) for _ in range(2)]
    if bytes_of[0] != bytes_of[1]:
        found.violation(
            f"two resets with the same seed ({seed}) give different observations: draw from "
            "self.np_random, after super().reset(seed=seed), and reset all that an episode changes"
        )


def _reset(env: Any, found: Findings, seed: int) -> tuple[Any, dict[str, Any]]:
    try:
        result = env.reset(seed=seed)
    except UserError as error:
        found.violation(str(error).rstrip("."))
        raise _BrokenError from error
    except Exception as error:
        # A wrapper takes the pair apart before it is seen here.
        old = isinstance(error, ValueError) and ("to unpack" in str(error) or _PAIR in str(error))
        raised = f"reset(seed={seed}) raises {type(error).__name__}: {error}"
        found.violation(_PAIR if old else raised)
        raise _BrokenError from error
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
        found.violation(_PAIR)
        raise _BrokenError
    _look_at_info(result[1], found)
    _look_at_observation(result[0], env.observation_space, "reset", found)
    return result


def _play(env: Any, found: Findings, steps: int, seed: int) -> _Trace:
    """Play ``steps`` steps, and return the first episode as far as it went."""
    first = trace = _Trace(seed)
    observation, information = _reset(env, found, seed)
    trace.seen.append(_bytes(observation, env.observation_space))
    for _ in range(steps):
        action = _random_action(env, observation, information)
        observation, reward, ended, information = _step(env, found, action)
        trace.actions.append(action)
        trace.seen.append(_bytes(observation, env.observation_space) + _reward_bytes(reward))
        found.steps += 1
        if ended:
            found.episodes += 1
            trace = _Trace(seed + found.episodes)
            observation, information = _reset(env, found, trace.seed)
    return first


def _random_action(env: Any, observation: Any, information: dict[str, Any]) -> Any:
    space = env.action_space
    mask = found_mask(env, observation, information)
    if mask is None or not isinstance(space, DISCRETE):
        return space.sample()
    legal, choices = np.asarray(mask) != 0, LegalChoices(space)
    if legal.shape != (choices.size,) or choices.missing(legal[None]) is not None:
        return space.sample()
    return ActionMap(space).to_env(choices.draw(legal, space.np_random)[None])[0]


def _step(env: Any, found: Findings, action: Any) -> tuple[Any, Any, bool, dict[str, Any]]:
    try:
        result = env.step(action)
    except Exception as error:
        found.violation(
            f"step raises {type(error).__name__} on an action of its own space, {action!r}: {error}"
        )
        raise _BrokenError from error
    if not isinstance(result, tuple) or len(result) != 5:
        got = len(result) if isinstance(result, tuple) else type(result).__name__
        found.violation(
            f"step must return (observation, reward, terminated, truncated, info), not {got} values"
        )
        raise _BrokenError
    observation, reward, terminated, truncated, information = result
    _look_at_reward(reward, found)
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_):
            found.violation(f"{name} must be True or False, not {type(flag).__name__}")
    if not isinstance(information, dict):
        found.violation(f"info must be a dict, not {type(information).__name__}")
        raise _BrokenError
    ended = bool(np.any(terminated) or np.any(truncated))
    if not ended:
        _look_at_info(information, found)
    found.terminated += bool(np.any(terminated))
    found.truncated += bool(np.any(truncated) and not np.any(terminated))
    where = "step at an episode's end" if ended else "step"
    _look_at_observation(observation, env.observation_space, where, found)
    return observation, reward, ended, information


def _look_at_info(information: dict[str, Any], found: Findings) -> None:
    found.mask_in_info |= mask_in(information) is not None


def _look_at_reward(reward: Any, found: Findings) -> None:
    try:
        number = plain_reward(reward)
    except (TypeError, ValueError):
        shape = np.shape(reward) if isinstance(reward, np.ndarray | list | tuple) else ()
        what = f"of shape {shape}" if shape else repr(reward)
        kind = f"a reward is {shape or type(reward).__name__}"
        found.violation(f"a reward must be one number, not {what}", kind=kind)
        return
    if np.shape(reward):
        found.note(f"rewards are arrays of shape {np.shape(reward)}; they are taken as numbers")
    if not math.isfinite(number):
        found.violation(f"a reward is {number}: training stops there")


def _look_at_observation(observation: Any, space: Any, where: str, found: Findings) -> None:
    for path, each in leaves_of(space):
        label = f"{part_text('the observation', path)} of {where}"
        try:
            value = observation
            for step in path:
                value = value[step]
            array = np.asarray(value)
        except (KeyError, IndexError, TypeError, ValueError):
            found.violation(f"{label} is missing, or no array")
            continue
        problem = _problem(array, each)
        if problem is not None:
            found.violation(f"{label} {problem}", kind=f"{label} {_NUMBERS.sub('#', problem)}")
        elif isinstance(each, spaces.Box):
            _look_at_box(array, each, label, found)


def _problem(array: Array, space: Any) -> str | None:
    """Return what of a part cannot be taken."""
    if array.dtype.kind not in "fiub":
        return f"holds no numbers but {array.dtype}"
    if array.shape != tuple(space.shape):
        return f"has the shape {array.shape}, its space says {space.shape}"
    if space.dtype.kind in "iu" and array.dtype.kind == "f":
        return f"is {array.dtype}, its space says {space.dtype}: a cast would cut fractions off"
    if not np.isfinite(array).all():
        return "holds NaN or infinity"
    if not isinstance(space, spaces.Box) and not space.contains(_as_member(array, space)):
        return f"is {array.tolist()}, which is not in its space {space}"
    return None


def _as_member(array: Array, space: Any) -> Any:
    whole = array.astype(space.dtype)
    return whole if space.shape else whole[()]


def _look_at_box(array: Array, space: Any, label: str, found: Findings) -> None:
    if not ((array >= space.low) & (array <= space.high)).all():
        found.note(
            f"{label} leaves the bounds of its space; they are not enforced, and the numbers are "
            "taken as they are"
        )
    if array.dtype != space.dtype:
        found.note(f"{label} is {array.dtype}, its space says {space.dtype}; it is converted")


def _bytes(observation: Any, space: Any) -> bytes:
    parts = []
    for path, _ in leaves_of(space):
        value = observation
        try:
            for step in path:
                value = value[step]
            parts.append(np.asarray(value).tobytes())
        except (KeyError, IndexError, TypeError):
            parts.append(b"")
    return b"|".join(parts)


def _reward_bytes(reward: Any) -> bytes:
    return repr(reward).encode()


def _repeats(env: Any, trace: _Trace) -> bool:
    """Play an episode again by its seed and its actions, and say whether it was the same."""
    quiet = Findings()
    seen = [_bytes(_reset(env, quiet, trace.seed)[0], env.observation_space)]
    for action in trace.actions:
        observation, reward, _, _ = _step(env, quiet, action)
        seen.append(_bytes(observation, env.observation_space) + _reward_bytes(reward))
    return seen == trace.seen


def drawn_frame(make: Callable[[], Any]) -> str | None:
    """Return what is wrong with the first frame that an environment draws; None: nothing.

    Args:
        make: makes it, to be drawn as ``rgb_array``.
    """
    expect_no_screen()
    try:
        env = make()
        try:
            env.reset(seed=0)
            frame = env.render()
        finally:
            env.close()
    except Exception as error:
        return f"{type(error).__name__}: {one_line(error)}"
    array = np.asarray(frame)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[-1] != 3:
        return f"a frame is {array.dtype} of shape {array.shape}, not uint8 (height, width, 3)"
    return None
