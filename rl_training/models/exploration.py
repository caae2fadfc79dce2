"""The policy as a Collector calls it for replay: random actions, then its own with noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor


class ExplorationPolicy(TensorDictModuleBase):
    """Reads ``observation``, writes ``action``. ``begin_rollout`` must run before each rollout.

    Args:
        act: from observations ``[N, *shape]`` and one step's noise to actions ``[N, *action]``.
    """

    def __init__(self, act: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.in_keys = ["observation"]
        self.out_keys = ["action"]
        self._act = act
        self._random: Iterator[Tensor] = iter(())
        self._noise: Iterator[Tensor] = iter(())

    def begin_rollout(self, random: Iterable[Tensor], noise: Iterable[Tensor]) -> None:
        """Take actions ``random``, one entry a step, and then act with ``noise``, likewise."""
        self._random, self._noise = iter(random), iter(noise)

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the actions ``[N, *action]``."""
        action = next(self._random, None)
        if action is None:
            action = self._act(tensordict.get("observation"), next(self._noise))
        tensordict.set("action", action)
        return tensordict
