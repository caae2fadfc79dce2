"""Layers that learn in another way than they act, such as dropout and batch normalisation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from torch import nn

_ALIKE = ("rl_training.", "torch.nn.modules.linear", "torch.nn.modules.conv")
"""Where modules are from that do the same in both modes."""


class Modes:
    """Keeps such layers in evaluation mode, but while gradients are taken: acting and evaluating
    change nothing that training goes on from, and repeat themselves.

    Args:
        modules: the networks by name; ``target`` never learns, and neither does what is given in
            evaluation mode. The layers of this library, which know no modes, are left alone, so
            that an update pays nothing for it.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._learners: list[nn.Module] = []
        for name, module in modules.items():
            layers = _with_modes(module)
            if name != "target":
                self._learners += [each for each in layers if each.training]
            for each in layers:
                each.training = False

    @contextlib.contextmanager
    def learning(self) -> Iterator[None]:
        """Put them in training mode for a while."""
        for layer in self._learners:
            layer.training = True
        try:
            yield
        finally:
            for layer in self._learners:
                layer.training = False


def _with_modes(module: nn.Module) -> list[nn.Module]:
    # Hooks before a layer: `torch.nn.utils.spectral_norm` has some that know modes.
    return [
        each
        for each in module.modules()
        if each._forward_pre_hooks or not type(each).__module__.startswith(_ALIKE)
    ]
