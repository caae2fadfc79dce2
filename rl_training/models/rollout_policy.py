"""The policy as a Collector calls it: one forward of the actor per step, noise drawn once per
rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from rl_training.models.actor_critic import ActorCritic
from rl_training.models.heads import ActionHead

FEATURES = "features"
_COSTLY = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class RolloutPolicy(TensorDictModuleBase):
    """Reads ``observation``, writes ``action`` and, where the encoder has convolutions,
    ``features``: what they made of the observation is not computed again after the rollout.

    All of that is on the CPU; it computes where the model is.

    Log-probabilities and values are left to one forward over the whole batch after the rollout, by
    the same parameters: TorchRL's `ProbabilisticActor` computes them at every step, at four times
    the cost. ``begin_rollout`` must run before each rollout.
    """

    def __init__(self, model: ActorCritic, *, generator: torch.Generator) -> None:
        super().__init__()
        self._keeps_features = _as_defined_here(model) and any(
            isinstance(part, _COSTLY) for part in model.encoder.modules()
        )
        self.in_keys = ["observation"]
        self.out_keys: list[Any] = ["action", *([FEATURES] if self._keeps_features else [])]
        self.model = model
        self._encoder = model.encoder.__call__
        self._sample: Callable[[Tensor, Tensor], Tensor]
        self._generator = generator
        self._device = torch.device("cpu")
        self._noise: Iterator[Tensor] = iter(())

    @torch.no_grad()
    def begin_rollout(self, num_steps: int, num_envs: int) -> None:
        """Draw the noise of the next ``num_steps`` steps of ``num_envs`` environments."""
        self._device = next(self.model.parameters()).device
        self._sample = _sampler(self.model.action_head, self._generator)
        noise = self.model.action_head.draw_noise(num_steps, num_envs, self._generator)
        self._noise = iter(_moved(noise, self._device))

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the sampled actions ``[N, *action]`` for observations ``[N, *shape]``."""
        features = self._encoder(tensordict.get("observation").to(self._device))
        if self._keeps_features:
            # A copy: the encoder may give the same tensor at every step.
            tensordict.set(FEATURES, features.to("cpu", copy=True))
        tensordict.set("action", self._sample(features, next(self._noise)).cpu())
        return tensordict


def _as_defined_here(model: ActorCritic) -> bool:
    """Return whether a model of one's own computes log-probabilities and values of the features as
    `ActorCritic` does.
    """
    names = ("forward", "evaluate_actions")
    return all(getattr(type(model), name) is getattr(ActorCritic, name) for name in names)


def _sampler(head: ActionHead, generator: torch.Generator) -> Callable[[Tensor, Tensor], Tensor]:
    """Return how ``head`` samples by features and noise. Where one of one's own has a ``forward``
    or a ``draw`` that its ``sample`` does not know of, or hooks, actions are drawn by those.
    """
    order = type(head).__mro__
    place = {
        name: next(place for place, each in enumerate(order) if name in vars(each))
        for name in ("forward", "draw", "sample")
    }
    newest = min(place.values())
    library = order[newest].__module__.startswith("rl_training.")
    hooks = head._forward_hooks or head._forward_pre_hooks
    if (library or place["sample"] == newest) and not hooks:
        return head.sample
    return lambda features, _: head.draw(head(features), generator)


def _moved(noise: list[Tensor], device: torch.device) -> list[Tensor]:
    """Return every step's noise on ``device``, by one copy; steps that share theirs still do."""
    if device.type == "cpu":
        return noise
    own = {id(each): each for each in noise}
    moved = dict(zip(own, torch.stack(list(own.values())).to(device).unbind(0), strict=True))
    return [moved[id(each)] for each in noise]
