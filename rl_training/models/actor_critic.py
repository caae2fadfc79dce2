"""Policies with a value function: what PPO trains (two heads) and what PPG trains (three)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from rl_training.config import ModelConfig
from rl_training.envs.flatten import flat_space
from rl_training.envs.layout import layout_of
from rl_training.envs.spaces import require_supported, space_to_dict
from rl_training.models.cnn import fix_norm
from rl_training.models.heads import ActionHead, Parameters
from rl_training.models.mlp import orthogonal_

Architecture = Literal["dual", "detach", "shared"]
"""How policy and value function share an encoder (Cobbe et al. 2020, sections 2 and 3.4)."""

Model = TypeVar("Model", bound="ActorCritic")


class ActorCritic(nn.Module):
    """An encoder, an action head and a value head: ``[*batch, *observation]`` to distribution and
    value.

    Args:
        make_encoder: returns a new module from observations to ``[*batch, output_size]``, with an
            ``output_size`` attribute. Called twice for ``dual``, once otherwise.
        make_head: from the number of features to the action head.
        architecture: ``dual`` (an encoder each), ``shared`` (one encoder, trained by both) or
            ``detach`` (one encoder, on which the value loss has no influence).
        orthogonal_init: orthogonal weights with gains sqrt(2), 0.01 (policy) and 1 (value).
            Otherwise the encoder's own, and PyTorch's or those that the encoder asks for
            (``head_norm``) in the heads.
    """

    masks_its_features: ClassVar[bool] = False
    """Whether it puts the mask of legal actions behind the head's features itself: something stands
    between the encoder and the head.
    """

    def __init__(
        self,
        *,
        make_encoder: Callable[[], nn.Module],
        make_head: Callable[[int], ActionHead],
        make_value_encoder: Callable[[], nn.Module] | None = None,
        architecture: Architecture = "dual",
        orthogonal_init: bool = True,
    ) -> None:
        super().__init__()
        self.architecture = architecture
        self.encoder = make_encoder()
        self.action_head = make_head(output_size(self.encoder))
        self.value_encoder = (
            (make_value_encoder or make_encoder)() if architecture == "dual" else None
        )
        read = self.encoder if self.value_encoder is None else self.value_encoder
        self.value_head = nn.Linear(output_size(read), 1)
        self._orthogonal_init = orthogonal_init
        if orthogonal_init:
            for module, gain in (
                (self.encoder, math.sqrt(2)),
                (self.action_head, 0.01),
                (self.value_encoder, math.sqrt(2)),
                (self.value_head, 1.0),
            ):
                if module is not None:
                    orthogonal_(module, gain)
        else:
            self._fix_norms(self.action_head, self.value_head)

    def _fix_norms(self, *heads: nn.Module) -> None:
        """Scale the first weights of ``heads`` as the encoder asks for."""
        norm = getattr(self.encoder, "head_norm", None)
        for layer in (layer for head in heads for layer in head.modules()):
            if norm is not None and isinstance(layer, nn.Linear):
                fix_norm(layer, norm)

    @classmethod
    def for_spaces(
        cls: type[Model],
        observation_space: Any,
        action_space: Any,
        *,
        architecture: Architecture = "dual",
        log_std_init: float = 0.0,
        model_options: Mapping[str, Any] | None = None,
        **model: Any,
    ) -> Model:
        """Return a model for gymnasium spaces, in one line::

            MLPActorCritic.for_spaces(env.observation_space, env.action_space, hidden_sizes=[32])

        Args:
            observation_space: a Box, or what is flattened to one.
            action_space: Discrete, MultiDiscrete, MultiBinary or a Box.
            architecture: as for the class.
            log_std_init: of a Box's Gaussian, its first log standard deviation.
            model_options: of the class itself (the memory of an `LSTMActorCritic`).
            **model: any field of `rl_training.config.ModelConfig`: ``hidden_sizes``,
                ``activation``, ``orthogonal_init``, ``encoder``.

        Raises:
            UserError: a space of another kind, or an unknown encoder.
        """
        from rl_training.models.build import build_actor_critic  # which builds on this module

        require_supported(observation_space, action_space, cls.__name__)
        layout, observation_space = layout_of(observation_space), flat_space(observation_space)
        made = build_actor_critic(
            cls,
            model=ModelConfig(**model),
            observation_shape=observation_space.shape,
            observation_dtype=observation_space.dtype.name,
            layout=layout,
            action_space=space_to_dict(action_space),
            architecture=architecture,
            model_options=model_options,
            log_std_init=log_std_init,
        )
        assert isinstance(made, cls)
        return made

    def forward(self, observation: Tensor) -> tuple[Parameters, Tensor]:
        """Return the action distribution's parameters and the value ``[*batch]``."""
        features = self.encoder(observation)
        return self.action_head(features), self._value(observation, features)

    def distribution(self, observation: Tensor) -> Parameters:
        """Return the action distribution's parameters alone."""
        parameters: Parameters = self.action_head(self.encoder(observation))
        return parameters

    def value(self, observation: Tensor) -> Tensor:
        """Return the value ``[*batch]`` alone."""
        features = None if self.value_encoder is not None else self.encoder(observation)
        return self._value(observation, features)

    def act(
        self,
        observation: Tensor,
        *,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return action, its log-probability ``[N]`` and value ``[N]`` for observations ``[N,
        *shape]``.
        """
        features = self.encoder(observation)
        parameters = self.action_head(features)
        head = self.action_head
        action = head.mode(parameters) if deterministic else head.draw(parameters, generator)
        log_probability, _ = head.evaluate(parameters, action)
        return action, log_probability, self._value(observation, features)

    def evaluate_actions(
        self, observation: Tensor, action: Tensor, *, features: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probability, entropy and value, each ``[*batch]``, of stored actions.

        Args:
            observation: ``[*batch, *shape]``.
            action: ``[*batch, *action]``.
            features: what the encoder made of the observations, ``[*batch, F]``, if known.
        """
        if features is None:
            parameters, value = self(observation)
        else:
            parameters, value = self.action_head(features), self._value(observation, features)
        log_probability, entropy = self.action_head.evaluate(parameters, action)
        return log_probability, entropy, value

    def policy_parameters(self) -> list[nn.Parameter]:
        """Return what the policy loss trains: the encoder and the action head."""
        return trainable(self.encoder, self.action_head)

    def value_parameters(self) -> list[nn.Parameter]:
        """Return what only the value loss trains: the value head and, if it has its own, its
        encoder.
        """
        return trainable(self.value_encoder, self.value_head)

    def _value(self, observation: Tensor, features: Tensor | None) -> Tensor:
        if self.value_encoder is not None:
            features = self.value_encoder(observation)
        assert features is not None
        if self.architecture == "detach":
            features = features.detach()
        return scalar(self.value_head, features)


class MLPActorCritic(ActorCritic):
    """The two-headed model that PPO trains."""


class MLPPPGModel(ActorCritic):
    """An actor-critic with a third head, the auxiliary value, on the policy's encoder.

    Its other parameters are made first and alike, so that with the same random state a
    `MLPPPGModel` and a `MLPActorCritic` of one architecture hold equal policies and values.
    """

    def __init__(
        self,
        *,
        make_encoder: Callable[[], nn.Module],
        make_head: Callable[[int], ActionHead],
        make_value_encoder: Callable[[], nn.Module] | None = None,
        architecture: Architecture = "dual",
        orthogonal_init: bool = True,
    ) -> None:
        super().__init__(
            make_encoder=make_encoder,
            make_head=make_head,
            make_value_encoder=make_value_encoder,
            architecture=architecture,
            orthogonal_init=orthogonal_init,
        )
        self.auxiliary_head = nn.Linear(output_size(self.encoder), 1)
        if orthogonal_init:
            orthogonal_(self.auxiliary_head, 1.0)
        else:
            self._fix_norms(self.auxiliary_head)

    def auxiliary(self, observation: Tensor) -> tuple[Parameters, Tensor, Tensor]:
        """Return distribution parameters, auxiliary value and true value, both ``[*batch]``."""
        features = self.encoder(observation)
        auxiliary_value = scalar(self.auxiliary_head, features)
        return self.action_head(features), auxiliary_value, self._value(observation, features)

    def auxiliary_parameters(self) -> list[nn.Parameter]:
        """Return what only the auxiliary phase trains: the auxiliary value's head."""
        return trainable(self.auxiliary_head)


def scalar(head: nn.Linear, features: Tensor) -> Tensor:
    """Return a one-dimensional head's output ``[*batch]``."""
    return functional.linear(features, head.weight, head.bias).squeeze(-1)


def trainable(*modules: nn.Module | None) -> list[nn.Parameter]:
    """Return the parameters of ``modules`` that take part in training, in order."""
    found: Iterable[nn.Parameter] = (
        parameter for module in modules if module is not None for parameter in module.parameters()
    )
    return [parameter for parameter in found if parameter.requires_grad]


def output_size(encoder: nn.Module) -> int:
    """Return how many features ``encoder`` gives."""
    size = getattr(encoder, "output_size", None)
    if not isinstance(size, int):
        raise TypeError(
            f"encoder {type(encoder).__name__} needs an integer attribute 'output_size'."
        )
    return size
