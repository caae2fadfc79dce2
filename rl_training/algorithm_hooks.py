"""What an algorithm gives to the training loop: its names, its networks and its update, and what it
does before and after each rollout.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from rl_training.models.parts import describe_parts

if TYPE_CHECKING:
    from rl_training.config import TrainConfig
    from rl_training.envs.layout import Layout
    from rl_training.optim import FlatAdam


class AlgorithmHooks(ABC):
    """What a recipe fills in. Those without a body have to be; the others do what most need."""

    name: ClassVar[str]
    Config: ClassVar[type[Any]]
    action_spaces: ClassVar[tuple[str, ...]] = ("Box", "integer Box", "unbounded Box", "Discrete")
    """Kinds of action spaces it takes; of registered algorithms, from `rl_training.registry`."""

    modules: dict[str, nn.Module]
    optimizers: dict[str, FlatAdam]
    rollout_policy: TensorDictModuleBase
    config: TrainConfig
    device: torch.device
    observation_layout: Layout
    """What stands where in an observation."""

    @abstractmethod
    def make(self) -> None:
        """Build models, losses and optimisers for ``observation_space`` and ``action_space``."""

    @abstractmethod
    def _update(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """Learn from a batch ``[N, T]``; ``global_step`` still counts the steps before it."""

    @abstractmethod
    def action(
        self, observation: Tensor, *, deterministic: bool, generator: torch.Generator | None
    ) -> Tensor:
        """Return actions ``[N, *action]`` for normalised observations ``[N, *shape]``."""

    def act(
        self, root: TensorDictBase, *, deterministic: bool, generator: torch.Generator | None
    ) -> None:
        """Write ``action`` into a root ``[N]`` of the environments; a policy with memory also
        writes into ``next`` what they carry on.
        """
        observation = root.get("observation").to(self.device)
        action = self.action(observation, deterministic=deterministic, generator=generator)
        root.set("action", action.cpu())

    @property
    @abstractmethod
    def frames_per_batch(self) -> int:
        """Environment steps between two updates, over all environments together."""

    @property
    @abstractmethod
    def policy(self) -> TensorDictModuleBase:
        """The policy as a TorchRL module on TensorDict keys."""

    @property
    def squash_actions(self) -> bool:
        """Whether actions pass through tanh and are scaled to the bounds on their way out."""
        return False

    @property
    def scale_actions(self) -> bool:
        """Whether actions lie in [-1, 1] and are scaled to the bounds on their way out."""
        return False

    @property
    def discount(self) -> float:
        """Gamma, which the reward normaliser needs too."""
        return float(self.config.algorithm.discount)

    @property
    def scheduled(self) -> bool:
        """Whether anything follows a schedule over the budget."""
        return False

    def before_collection(self) -> None:  # noqa: B027  optional
        """Prepare a rollout: called by the Collector before its first step."""

    def after_collection(self, batch: TensorDictBase) -> None:  # noqa: B027  optional
        """Complete a rollout's batch with what the rollout policy left out."""

    def describe(self) -> list[str]:
        """Return lines worth printing when training starts: images, encoders, buffers."""
        return describe_parts(self.observation_layout, self.config.model)

    def extra_state(self) -> dict[str, Any]:
        """Return training state that no module, optimiser, generator or counter holds."""
        return {}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027  optional
        """Restore ``extra_state()``."""
