"""A policy with memory as a Collector calls it, and as a TorchRL module for loops of one's own."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs.utils import ExplorationType, exploration_type

from rl_training.models.carried_state import zeroed_where
from rl_training.models.lstm import MEMORY, LSTMActorCritic
from rl_training.models.rollout_policy import RolloutPolicy


def recall(model: LSTMActorCritic, root: TensorDictBase) -> dict[str, Tensor]:
    """Return what ``root`` carries for the model, on the model's device; where nothing was carried
    yet, zeros, which are put there.
    """
    if root.get(MEMORY, None) is None:
        for key, value in model.initial_carried(root.batch_size[0]).items():
            root.set(key, value.to(root.device or value.device))
    device = model.value_head.weight.device
    return {key: root.get(key).to(device) for key in (MEMORY, *model.carried_sizes)}


def remember(
    model: LSTMActorCritic, root: TensorDictBase, action: Tensor, state: Tensor
) -> TensorDictBase:
    """Write ``action`` into ``root``, and into its ``next`` what is carried on."""
    device = root.device or action.device
    carried = model.carried(action, state)
    root.set("action", action.to(device))
    source = {key: value.to(device) for key, value in carried.items()}
    root.set("next", TensorDict(source, root.batch_size))
    return root


class RecurrentRolloutPolicy(RolloutPolicy):
    """Reads ``observation`` and what is carried, writes ``action`` and what is carried on.

    The environment must carry what stands in ``next`` to the next root, zeroed where an episode
    begins, as `rl_training.envs.VectorEnv` does. Log-probabilities and values are left to one
    forward over the whole batch. ``begin_rollout`` must run before each rollout.
    """

    model: LSTMActorCritic

    def __init__(self, model: LSTMActorCritic, *, generator: torch.Generator) -> None:
        super().__init__(model, generator=generator)
        keys = (MEMORY, *model.carried_sizes)
        self.in_keys = ["observation", *keys]
        self.out_keys = ["action", *(("next", key) for key in keys)]
        self._weights: Any = None

    @torch.no_grad()
    def begin_rollout(self, num_steps: int, num_envs: int) -> None:
        """Draw the noise, and put the memories' weights together once."""
        super().begin_rollout(num_steps, num_envs)
        self._weights = self.model.memory.weights()

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the sampled actions ``[N, *action]`` for observations ``[N, *shape]``."""
        model = self.model
        carried = recall(model, tensordict)
        observation = tensordict.get("observation").to(carried[MEMORY].device)
        features, _, _, state = model.step(
            observation, carried[MEMORY], model.extra(carried), self._weights
        )
        return remember(model, tensordict, self._sample(features, next(self._noise)), state)


class RecurrentPolicy(TensorDictModuleBase):
    """The policy of an `LSTMActorCritic` for any TorchRL loop, one step at a time.

    Reads ``observation``, ``is_init`` and the carried keys (missing ones count as zeros); writes
    ``action``, ``action_log_prob`` and, in ``next``, what is carried on. TorchRL's exploration
    type says whether actions are sampled. The state is zeroed wherever ``is_init`` is set.
    """

    def __init__(self, model: LSTMActorCritic) -> None:
        super().__init__()
        keys = (MEMORY, *model.carried_sizes)
        self.in_keys = ["observation", "is_init", *keys]
        self.out_keys = ["action", "action_log_prob", *(("next", key) for key in keys)]
        self.model = model

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write actions ``[N, *action]`` for observations ``[N, *shape]``."""
        carried = recall(self.model, tensordict)
        state = carried[MEMORY]
        is_init = tensordict.get("is_init", None)
        if is_init is not None:
            carried = zeroed_where(carried, is_init.reshape(-1).to(state.device))
        action, log_probability, _, after = self.model.act(
            tensordict.get("observation").to(state.device),
            carried[MEMORY],
            extra=self.model.extra(carried),
            deterministic=exploration_type() in _GREEDY,
        )
        tensordict.set("action_log_prob", log_probability)
        return remember(self.model, tensordict, action, after)


_GREEDY = (ExplorationType.DETERMINISTIC, ExplorationType.MODE, ExplorationType.MEAN)
