"""A list of callbacks as one: checked, saved, restored, ended."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rl_training.errors import UserError
from rl_training.runtime.callbacks import Callback, TrainContext, looks_like_hook, no_hook
from rl_training.runtime.checks import fitting

logger = logging.getLogger(__name__)


def require_callbacks(callbacks: Any) -> None:
    """Raise `UserError` unless ``callbacks`` is a sequence of `Callback` instances."""
    if not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
        raise UserError(f"callbacks must be a list of callbacks, not {callbacks!r}.")
    for each in callbacks:
        if not isinstance(each, Callback):
            hint = " Give an instance, not the class." if isinstance(each, type) else ""
            raise UserError(
                f"callbacks: {each!r} is no instance of rl_training.Callback's subclasses.{hint}"
            )
        for name, value in vars(each).items():
            if looks_like_hook(name) and callable(value):
                raise no_hook(type(each).__name__, name)


def saved_states(callbacks: Iterable[Callback]) -> list[dict[str, Any]]:
    """Return class and state of each."""
    return [{"class": _name(each), "state": each.state_dict()} for each in callbacks]


def restore_states(callbacks: Iterable[Callback], saved: Sequence[Mapping[str, Any]]) -> None:
    """Give each callback the first state of its class that no callback before it took.

    What is left over on either side is named in a warning.

    Raises:
        CheckpointError: a state does not fit its callback.
    """
    left = list(saved)
    anew = []
    for callback in callbacks:
        match = next((each for each in left if each["class"] == _name(callback)), None)
        if match is None:
            anew.append(_name(callback))
            continue
        left.remove(match)
        with fitting(f"the saved state of the callback {_name(callback)} does not fit it"):
            callback.load_state_dict(match["state"])
    if anew:
        logger.warning("the checkpoint has no state of %s: begun anew.", ", ".join(anew))
    if left:
        logger.warning(
            "the run had callbacks that are not given now: %s. It goes on without them.",
            ", ".join(str(each["class"]) for each in left),
        )


def end_all(callbacks: Iterable[Callback], context: TrainContext) -> Exception | None:
    """Call every `Callback.on_train_end`; return the first error of one, the others are logged."""
    errors = [error for error in (_end(each, context) for each in callbacks) if error is not None]
    for error in errors[1:]:
        logger.warning("another callback's on_train_end failed too: %r", error)
    return errors[0] if errors else None


def _end(callback: Callback, context: TrainContext) -> Exception | None:
    try:
        callback.on_train_end(context)
    except Exception as error:
        return error
    return None


def _name(callback: Callback) -> str:
    return type(callback).__qualname__
