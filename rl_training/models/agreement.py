"""Whether an actor-critic of one's own says the same where actions are drawn and where they are
scored.

Rollouts draw actions from its encoder and its action head; the losses score them by other methods.
Where those disagree, every ratio of probabilities is wrong, and nothing shows it but the returns.
Only what training asks is compared: ``act``, say, is free. So is ``value`` where it is overridden:
a slow copy of the value function may say how cut episodes go on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.errors import UserError
from rl_training.models.actor_critic import ActorCritic
from rl_training.models.heads import Parameters
from rl_training.models.lstm import LSTMActorCritic

_METHODS = ("forward", "distribution", "evaluate_actions", "auxiliary", "sequence", "step")
_TOLERANCE = 0.02
"""Of numbers in bfloat16, or from other kernels: a contradiction grows larger."""


def require_agreement(
    model: ActorCritic, observation: Tensor, action: Tensor, scored: tuple[Tensor, Tensor]
) -> None:
    """Compare what a model, whose methods are not the library's, says at the first step of a batch.

    Args:
        model: whose.
        observation: ``[N, T, *shape]``.
        action: ``[N, T, *action]``.
        scored: log-probability and value of them, each ``[N, T]``.

    Raises:
        UserError: it scores other distributions than actions are drawn from, or goes on with other
            values than it learns.
    """
    if not _overrides(model, *_METHODS):
        return
    now = observation[:, 0].contiguous()
    with _buffers_kept(model):
        parameters = model.action_head(model.encoder(now))
        value = None if _overrides(model, "value") else model.value(now)
        _require(model, (now,), (parameters, value), action[:, 0], _first(scored), "encoder")


def require_agreement_of_memory(
    model: LSTMActorCritic,
    sequences: tuple[Tensor, Tensor, Tensor, Tensor | None],
    action: Tensor,
    scored: tuple[Tensor, Tensor],
) -> None:
    """Compare the methods for sequences with those for single steps in the same way.

    Args:
        model: whose.
        sequences: observation ``[N, T, *shape]``, state ``[N, K, H]`` before them, is_init
            ``[N, T]`` and, where the model takes it, extra ``[N, T, E]``.
        action: ``[N, T, *action]``.
        scored: log-probability and value of them, each ``[N, T]``.

    Raises:
        UserError: as for `require_agreement`.
    """
    if not _overrides(model, *_METHODS):
        return
    observation, state, is_init, extra = sequences
    now = observation[:, 0].contiguous()
    beside = None if extra is None else extra[:, 0].contiguous()
    with _buffers_kept(model):
        parameters = model.action_head(model.step(now, state, beside)[0])
        free = _overrides(model, "step_value")
        value = None if free else model.step_value(now, state, beside)
        given: list[Tensor | None] = [now.unsqueeze(1), state, is_init[:, :1].contiguous()]
        given.append(None if beside is None else beside.unsqueeze(1))
        drawn = (parameters, value)
        _require(model, tuple(given), drawn, action[:, 0], _first(scored), "step")


def _require(
    model: ActorCritic,
    given: tuple[Any, ...],
    drawn: tuple[Parameters, Tensor | None],
    action: Tensor,
    scored: tuple[Tensor, Tensor],
    source: str,
) -> None:
    """Raise where ``scored``, or what PPG's phase asks of ``given``, is not what is ``drawn``."""
    own, (parameters, value) = type(model).__name__, drawn
    log_probability, _ = model.action_head.evaluate(parameters, action)
    told: list[tuple[str, Any, Any, Tensor | None]] = [
        ("evaluate_actions", scored[:1], (log_probability,), scored[1])
    ]
    auxiliary: Any = getattr(model, "auxiliary", None)
    if auxiliary is not None:
        told.append(("distribution", model.distribution(*given), parameters, None))
        said, _, again = auxiliary(*given)
        told.append(("auxiliary", said, parameters, again))
    for name, found, expected, values in told:
        if not all(map(_alike, found, expected)):
            raise UserError(
                f"model.network: {own}.{name} goes by another distribution than its {source} and "
                "action_head, from which rollouts draw actions: change those two instead."
            )
        if value is not None and values is not None and not _alike(values, value):
            raise UserError(
                f"model.network: {own}.{name} gives another value than the method by which cut "
                "episodes go on (value; step_value of a memory): override that too, or value_head."
            )


def _overrides(model: ActorCritic, *names: str) -> bool:
    """Return whether the class of ``model`` has methods other than the library's."""
    base = next(each for each in type(model).__mro__ if each.__module__.startswith("rl_training."))
    return any(getattr(type(model), name, None) is not getattr(base, name, None) for name in names)


@contextlib.contextmanager
def _buffers_kept(model: nn.Module) -> Iterator[None]:
    """Undo what questions change: a count of what a module has seen is part of training."""
    kept = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        for module, name, buffer, before in kept:
            module._buffers[name] = buffer
            if not torch.equal(buffer, before):
                buffer.copy_(before)


def _first(scored: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return scored[0][:, 0], scored[1][:, 0]


def _alike(found: Tensor, expected: Tensor) -> bool:
    """Whether both say the same; sequences of one step as single ones."""
    return found.numel() == expected.numel() and torch.allclose(
        found.float().reshape(expected.shape),
        expected.float(),
        rtol=_TOLERANCE,
        atol=_TOLERANCE,
        equal_nan=True,
    )
