"""Whether an actor-critic of one's own says the same by all of its methods.

Rollouts draw actions from its encoder and its action head; the losses score them by other methods.
Where those disagree, every ratio of probabilities is wrong, and nothing shows it but the returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from rl_training.errors import UserError
from rl_training.models.actor_critic import ActorCritic
from rl_training.models.heads import Parameters
from rl_training.models.lstm import LSTMActorCritic

_METHODS = ("forward", "distribution", "value", "evaluate_actions", "act", "auxiliary")
_OF_MEMORY = ("sequence", "step", "step_value")
_TOLERANCE = 1e-3
"""Sequences and single steps are computed by other kernels; encoders may compute in bfloat16."""


def require_agreement(model: ActorCritic, observation: Tensor, action: Tensor) -> None:
    """Compare the methods of ``model``, where they are not the library's, at the first step of a
    batch: observations ``[N, T, *shape]`` and actions ``[N, T, *action]``.

    Raises:
        UserError: one gives another distribution, or another value.
    """
    if not _has_own_methods(model):
        return
    now = observation[:, 0]
    parameters = model.action_head(model.encoder(now))
    acted, _, value = model.act(now, deterministic=True)
    told = _Told(parameters, model.value(now), action[:, 0], sources=("encoder", "value"))
    told.require(model, (now,), acted, value)


def require_agreement_of_memory(
    model: LSTMActorCritic,
    observation: Tensor,
    action: Tensor,
    state: Tensor,
    is_init: Tensor,
    extra: Tensor | None,
) -> None:
    """Compare the methods for sequences with those for single steps in the same way.

    Args:
        model: whose.
        observation: ``[N, T, *shape]``.
        action: ``[N, T, *action]``.
        state: ``[N, K, H]`` before the first step, zeroed where an episode begins.
        is_init: bool ``[N, T]``.
        extra: ``[N, T, E]``, where the model takes it.

    Raises:
        UserError: one gives another distribution, or another value.
    """
    if not _has_own_methods(model):
        return
    now, beside = observation[:, 0], None if extra is None else extra[:, 0]
    features = model.step(now, state, beside)[0]
    parameters = tuple(each.unsqueeze(1) for each in model.action_head(features))
    acted, _, value, _ = model.act(now, state, extra=beside, deterministic=True)
    expected = model.step_value(now, state, beside).unsqueeze(1)
    told = _Told(parameters, expected, action[:, :1], sources=("step", "step_value"))
    sequences = None if extra is None else extra[:, :1]
    given = (observation[:, :1], state, is_init[:, :1], sequences)
    told.require(model, given, acted.unsqueeze(1), value.unsqueeze(1))


def _has_own_methods(model: ActorCritic) -> bool:
    """Return whether the class of ``model`` overrides what the library's does."""
    base = next(each for each in type(model).__mro__ if each.__module__.startswith("rl_training."))
    return any(
        getattr(type(model), name, None) is not getattr(base, name, None)
        for name in (*_METHODS, *_OF_MEMORY)
    )


class _Told:
    """What rollouts go by: the parameters that actions are drawn from, and values."""

    def __init__(
        self, parameters: Parameters, value: Tensor, action: Tensor, *, sources: tuple[str, str]
    ) -> None:
        self._parameters = parameters
        self._value = value
        self._action = action
        self._sources = sources

    def require(
        self, model: ActorCritic, given: Sequence[Any], acted: Tensor, value: Tensor
    ) -> None:
        own, (features, valued) = type(model).__name__, self._sources
        # Of an action: where two are as likely, either may be chosen.
        likeliest = self._scored(model, model.action_head.mode(self._parameters))
        chosen = (self._scored(model, acted),)
        for name, parts, expected, values in (
            *self._by_method(model, given),
            ("act", chosen, (likeliest,), value),
        ):
            if not all(map(_alike, parts, expected)):
                raise UserError(
                    f"model.network: {own}.{name} gives another distribution than its {features} "
                    "and action_head, from which rollouts draw actions: change those two instead."
                )
            if values is not None and not _alike(values, self._value):
                raise UserError(
                    f"model.network: {own}.{name} gives another value than {own}.{valued}, by "
                    "which cut episodes go on: change both alike, or value_head."
                )

    def _by_method(
        self, model: ActorCritic, given: Sequence[Any]
    ) -> Iterator[tuple[str, Parameters, Parameters, Tensor | None]]:
        """Yield a method, what it says, what it should, and its value."""
        parameters, value = model(*given)
        yield "forward", parameters, self._parameters, value
        yield "distribution", model.distribution(*given), self._parameters, None
        scored, _, value = model.evaluate_actions(given[0], self._action, *given[1:])
        yield "evaluate_actions", (scored,), (self._scored(model, self._action),), value
        auxiliary: Any = getattr(model, "auxiliary", None)
        if auxiliary is not None:
            parameters, _, value = auxiliary(*given)
            yield "auxiliary", parameters, self._parameters, value

    def _scored(self, model: ActorCritic, action: Tensor) -> Tensor:
        return model.action_head.evaluate(self._parameters, action)[0]


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(
        one.float(), other.float(), rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True
    )
