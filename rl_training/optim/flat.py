"""Parameters on one flat tensor, and Adam on slices of it.

Networks of reinforcement learning are many small tensors, on which an optimiser's cost is the
number of kernel calls. As views of one tensor, clipping is a few kernels and Adam one.

A compiled graph is given the parameters alone, never the tensor that they are views of: where
inputs overlap and one is written to, AOTAutograd reads all through a common base, copies that, and
writes the copy back, which costs a large network several times what Adam does. Kernels cost little
there, so it writes parameter by parameter; the numbers are the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class FlatParameters:
    """Makes every parameter of ``groups`` a view of ``flat``, in the order given, without copies
    left behind.

    Restoring must write into ``flat`` (or the parameters) in place; assigning new tensors would cut
    the views. A parameter that appears in an earlier group is not repeated.
    """

    def __init__(self, groups: Mapping[str, Iterable[nn.Parameter]]) -> None:
        self.groups: dict[str, list[nn.Parameter]] = {}
        self._ranges: dict[str, tuple[int, int]] = {}
        seen: set[int] = set()
        start = 0
        for name, parameters in groups.items():
            own = [p for p in parameters if id(p) not in seen]
            seen.update(id(p) for p in own)
            size = sum(p.numel() for p in own)
            self.groups[name] = own
            self._ranges[name] = (start, start + size)
            start += size
        every = [p for own in self.groups.values() for p in own]
        self.flat = torch.cat([p.detach().reshape(-1) for p in every])
        offset = 0
        for parameter in every:
            view = self.flat[offset : offset + parameter.numel()].view(parameter.shape)
            parameter.data = view
            offset += parameter.numel()

    def select(self, *names: str) -> tuple[list[nn.Parameter], Tensor]:
        """Return the parameters of adjacent groups, and the part of ``flat`` that they are."""
        ranges = [self._ranges[name] for name in names]
        if any(left[1] != right[0] for left, right in itertools.pairwise(ranges)):
            raise ValueError(f"groups {names} are not adjacent in {list(self._ranges)}")
        parameters = [p for name in names for p in self.groups[name]]
        return parameters, self.flat[ranges[0][0] : ranges[-1][1]]

    @torch.no_grad()
    def follow(self, trained: FlatParameters, share: float) -> None:
        """Move every parameter by ``share`` of its way to the one of ``trained``: target networks'
        soft update.
        """
        if torch.compiler.is_compiling():
            for name, parameters in self.groups.items():
                for own, other in zip(parameters, trained.groups[name], strict=True):
                    own.lerp_(other, share)
        else:
            self.flat.lerp_(trained.flat, share)


class FlatAdam(torch.optim.Optimizer):
    """Adam (Kingma and Ba 2015) on parameters of a `FlatParameters`, with a tensor learning rate.

    ``apply(gradient)`` is the update itself, traceable by `torch.compile`: changing the learning
    rate never recompiles. ``step()`` makes it an ordinary optimiser for loops of one's own.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        flat: Tensor,
        *,
        learning_rate: float,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        self.learning_rate = torch.tensor(float(learning_rate), device=flat.device)
        super().__init__(list(parameters), {"lr": self.learning_rate})
        self.parameters = list(parameters)
        self.flat = flat
        self.betas = betas
        self.epsilon = epsilon
        self.first_moment = torch.zeros_like(self.flat)
        self.second_moment = torch.zeros_like(self.flat)
        # The fused kernel on a GPU wants float32. It counts to 2**24, where no power is left of the
        # betas.
        self.steps = torch.zeros((), device=flat.device)
        # float64: 1 - 0.999^1 loses four digits in float32.
        self._decay = torch.tensor(betas, dtype=torch.float64, device=flat.device)
        # Kept, not computed of ``steps``: a compiled graph repeats what is computed for each vector
        # of parameters, and two powers each take longer than all the rest of Adam. Eager steps keep
        # them for a resume that compiles.
        self.beta_powers = torch.ones_like(self._decay)

    def apply(self, gradient: Tensor) -> None:
        """Move the parameters by one step along ``gradient``, a flat tensor like ``flat``."""
        self.steps.add_(1)
        self.beta_powers.mul_(self._decay)
        if torch.compiler.is_compiling():
            self._apply_traced(gradient)
            return
        # What `_apply_traced` computes, in one pass over the memory.
        torch._fused_adam_(
            [self.flat],
            [gradient],
            [self.first_moment],
            [self.second_moment],
            [],
            [self.steps],
            lr=self.learning_rate,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=0.0,
            eps=self.epsilon,
            amsgrad=False,
            maximize=False,
        )

    def _apply_traced(self, gradient: Tensor) -> None:
        beta1, beta2 = self.betas
        correction1, correction2 = (1 - self.beta_powers).unbind()
        self.first_moment.lerp_(gradient, 1 - beta1)
        self.second_moment.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (self.second_moment / correction2).sqrt_().add_(self.epsilon)
        change = (self.learning_rate / correction1 * self.first_moment).div_(root)
        sizes = [parameter.numel() for parameter in self.parameters]
        for parameter, part in zip(self.parameters, torch.split(change, sizes), strict=True):
            parameter.sub_(part.view_as(parameter))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Apply the parameters' ``.grad`` (a missing one counts as zero)."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.apply(
            torch.cat(
                [
                    (torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1)
                    for p in self.parameters
                ]
            )
        )
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return moments, step count, powers of the betas and learning rate, all tensors."""
        return {
            "first_moment": self.first_moment,
            "second_moment": self.second_moment,
            "steps": self.steps,
            "beta_powers": self.beta_powers,
            "learning_rate": self.learning_rate,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore ``state_dict()`` in place."""
        for name, target in self.state_dict().items():
            target.copy_(state_dict[name])
