"""TensorDict modules of a user's own in the place of the built networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from rl_training.errors import UserError
from rl_training.models.actor_critic import MLPActorCritic
from rl_training.models.heads import ActionHead, CategoricalHead, GaussianHead, Parameters
from rl_training.models.multi_categorical import MultiCategoricalHead


def require_networks(networks: Any) -> tuple[TensorDictModuleBase, TensorDictModuleBase]:
    """Return a policy and a value module.

    Raises:
        UserError: this is something else; says how plain modules are wrapped.
    """
    if isinstance(networks, tuple | list) and len(networks) == 2:
        policy, value = networks
        if isinstance(policy, TensorDictModuleBase) and isinstance(value, TensorDictModuleBase):
            return policy, value
        given = f"({type(policy).__name__}, {type(value).__name__})"
    else:
        given = f"a {type(networks).__name__}"
    raise UserError(
        f"networks must be two TensorDict modules, (policy, value), not {given}. Wrap each: "
        'TensorDictModule(network, in_keys=["observation"], out_keys=["logits"]), of the value '
        'out_keys=["state_value"]; or give hidden_sizes, encoder or model.network.'
    )


class _ModuleCategoricalHead(CategoricalHead):
    """Categorical over the ``logits`` that a TensorDict module writes."""

    def __init__(self, module: TensorDictModuleBase, num_actions: int) -> None:
        nn.Module.__init__(self)
        self.num_actions = num_actions
        self.module = module

    def forward(self, features: Tensor) -> Parameters:
        return (_run(self.module, features)["logits"],)


class _ModuleMultiCategoricalHead(MultiCategoricalHead):
    """Several categoricals over the ``logits`` that a TensorDict module writes."""

    def __init__(
        self, module: TensorDictModuleBase, sizes: Sequence[int], action_shape: Sequence[int]
    ) -> None:
        nn.Module.__init__(self)
        self._describe(sizes, action_shape)
        self.module = module

    def forward(self, features: Tensor) -> Parameters:
        return (_run(self.module, features)["logits"],)


class _ModuleGaussianHead(GaussianHead):
    """Gaussian of the ``loc`` and ``scale`` that a TensorDict module writes."""

    def __init__(self, module: TensorDictModuleBase, action_shape: Sequence[int]) -> None:
        nn.Module.__init__(self)
        self.action_shape = tuple(action_shape)
        self.num_actions = math.prod(self.action_shape)
        self.module = module

    def forward(self, features: Tensor) -> Parameters:
        written = _run(self.module, features)
        return self._flat(written["loc"]), self._flat(written["scale"]).log()

    def _flat(self, written: Tensor) -> Tensor:
        """Return ``[*batch, A]`` for what is either that or ``[*batch, *action_shape]``."""
        dimensions = len(self.action_shape)
        if dimensions == 1 or written.shape[written.ndim - dimensions :] != self.action_shape:
            return written
        batch = written.shape[: written.ndim - dimensions]
        return written.reshape(*batch, self.num_actions)

    def draw_noise(self, steps: int, num_envs: int, generator: torch.Generator) -> list[Tensor]:
        noise = torch.randn(steps, num_envs, self.num_actions, generator=generator)
        return list(noise.unbind(0))

    def sample(self, features: Tensor, noise: Tensor) -> Tensor:
        mean, log_std = self(features)
        return self._shaped(mean + log_std.exp() * noise)


class TensorDictActorCritic(MLPActorCritic):
    """An actor-critic from two TensorDict modules that both read ``observation``.

    Args:
        policy: writes ``logits`` ``[*batch, n]`` (discrete actions; of several at once, one after
            the other), or ``loc`` and ``scale``
            ``[*batch, A]`` or ``[*batch, *action_shape]`` (continuous ones).
        value: writes ``state_value`` ``[*batch, 1]``.
        num_actions: n or A.
        discrete: which of the two.
        action_shape: of one action that has a shape; None: ``(num_actions,)``.
        sizes: of several discrete actions at once, how many choices each has.
    """

    def __init__(
        self,
        *,
        policy: TensorDictModuleBase,
        value: TensorDictModuleBase,
        num_actions: int,
        discrete: bool,
        action_shape: Sequence[int] | None = None,
        sizes: Sequence[int] | None = None,
    ) -> None:
        nn.Module.__init__(self)
        missing = {"logits"} if discrete else {"loc", "scale"}
        missing -= set(policy.out_keys)
        if missing:
            raise UserError(f"the policy module must write {sorted(missing)}.")
        if "state_value" not in value.out_keys:
            raise UserError("the value module must write 'state_value'.")
        self.architecture = "dual"
        self.encoder: nn.Module = nn.Identity()
        self.value_encoder = None
        shape = (num_actions,) if action_shape is None else action_shape
        self.action_head: ActionHead
        if sizes is not None:
            self.action_head = _ModuleMultiCategoricalHead(policy, sizes, shape)
        elif discrete:
            self.action_head = _ModuleCategoricalHead(policy, num_actions)
        else:
            self.action_head = _ModuleGaussianHead(policy, shape)
        self.value_module = value

    def value_parameters(self) -> list[nn.Parameter]:
        """Return the value module's parameters that the policy does not share."""
        shared = {id(parameter) for parameter in self.policy_parameters()}
        own = self.value_module.parameters()
        return [each for each in own if each.requires_grad and id(each) not in shared]

    def _value(self, observation: Tensor, features: Tensor | None) -> Tensor:
        return _run(self.value_module, observation)["state_value"].squeeze(-1)


def _run(module: TensorDictModuleBase, observation: Tensor) -> Any:
    return module(TensorDict({"observation": observation}, []))
