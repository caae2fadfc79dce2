"""Encoders and action heads from a model's configuration, by what is observed and what is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from rl_training.errors import UserError
from rl_training.models.heads import (
    ActionHead,
    CategoricalHead,
    GaussianHead,
    StateDependentNoiseHead,
)
from rl_training.models.mlp import MLP
from rl_training.registry import import_object


def encoder_factory(
    *,
    encoder: str | Callable[..., nn.Module],
    observation_shape: Sequence[int],
    hidden_sizes: Sequence[int],
    activation: str,
) -> Callable[[], nn.Module]:
    """Return a function that makes a new encoder at each call.

    Args:
        encoder: ``auto`` or ``mlp``; or a class (``"module:Class"`` or the class itself) called
            with
            ``observation_shape, hidden_sizes, activation`` by keyword, that has an ``output_size``.
        observation_shape: of one observation.
        hidden_sizes: units of each hidden layer.
        activation: a name of `rl_training.models.mlp.ACTIVATIONS`.

    Raises:
        UserError: the class cannot be imported, or the encoder lacks ``output_size``.
    """
    chosen = import_object(encoder) if isinstance(encoder, str) and ":" in encoder else encoder
    cls = MLP if chosen in ("auto", "mlp") else chosen
    if isinstance(cls, str):
        raise UserError(f"model.encoder: unknown {cls!r}; allowed: auto, mlp or 'module:Class'.")

    def make() -> nn.Module:
        module = cls(
            **{"input_shape" if cls is MLP else "observation_shape": tuple(observation_shape)},
            hidden_sizes=tuple(hidden_sizes),
            activation=activation,
        )
        if not isinstance(getattr(module, "output_size", None), int):
            name = type(module).__name__
            raise UserError(f"model.encoder: {name} needs an integer attribute 'output_size'.")
        return module

    return make


def head_factory(
    *,
    num_actions: int,
    discrete: bool,
    log_std_init: float = 0.0,
    gsde: bool = False,
    gsde_resample_interval: int = -1,
) -> Callable[[int], ActionHead]:
    """Return a function from a number of features to the action head.

    Args:
        num_actions: how many discrete actions there are, or how many dimensions a continuous
            one has.
        discrete: Categorical; otherwise Gaussian.
        log_std_init: the Gaussian's first log standard deviation.
        gsde: state-dependent exploration, resampled every ``gsde_resample_interval`` steps.
    """

    def make(num_features: int) -> ActionHead:
        if discrete:
            return CategoricalHead(num_features=num_features, num_actions=num_actions)
        if gsde:
            return StateDependentNoiseHead(
                num_features=num_features,
                num_actions=num_actions,
                log_std_init=log_std_init,
                resample_interval=gsde_resample_interval,
            )
        return GaussianHead(
            num_features=num_features, num_actions=num_actions, log_std_init=log_std_init
        )

    return make
