"""Parameters on one flat tensor, and Adam on slices of it.

Networks of reinforcement learning are many small tensors, on which an optimiser's cost is the
number of kernel calls. As views of one tensor, clipping and Adam are a dozen kernels in all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

_PIECE = 2**16
"""Numbers that eager Adam works on at a time: with what it computes of them, a megabyte."""


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

    def select(self, *names: str) -> tuple[list[nn.Parameter], Tensor, slice]:
        """Return the parameters of adjacent groups, ``flat``, and the part of it they are."""
        ranges = [self._ranges[name] for name in names]
        if any(left[1] != right[0] for left, right in itertools.pairwise(ranges)):
            raise ValueError(f"groups {names} are not adjacent in {list(self._ranges)}")
        parameters = [p for name in names for p in self.groups[name]]
        return parameters, self.flat, slice(ranges[0][0], ranges[-1][1])


class FlatAdam(torch.optim.Optimizer):
    """Adam (Kingma and Ba 2015) on one part of a `FlatParameters`, with a tensor learning rate.

    It takes the whole tensor and cuts its part out itself, in the graph when compiled: Inductor's
    cache on disk tells graphs apart by their inputs' shapes, not by the storage behind them, which
    the graph of a part given from outside would depend on.

    ``apply(gradient)`` is the update itself, traceable by `torch.compile`: changing the learning
    rate never recompiles. ``step()`` makes it an ordinary optimiser for loops of one's own.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        storage: Tensor,
        part: slice,
        *,
        learning_rate: float,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        self.learning_rate = torch.tensor(float(learning_rate), device=storage.device)
        super().__init__(list(parameters), {"lr": self.learning_rate})
        self.parameters = list(parameters)
        self.storage, self.part = storage, part
        self.betas = betas
        self.epsilon = epsilon
        self.first_moment = torch.zeros_like(self.flat)
        self.second_moment = torch.zeros_like(self.flat)
        # float64: 1 - 0.999^1 loses four digits in float32.
        self.steps = torch.zeros((), dtype=torch.float64, device=storage.device)
        self._decay = torch.tensor(betas, dtype=torch.float64, device=storage.device)
        # Kept, not computed of ``steps``: a compiled graph repeats what is computed for each vector
        # of parameters, and two powers each take longer than all the rest of Adam.
        self.beta_powers = torch.ones_like(self._decay)

    @property
    def flat(self) -> Tensor:
        """The parameters as one tensor, a view."""
        whole = self.part == slice(0, len(self.storage))
        # The write to a part is, compiled, a write to all of the storage.
        return self.storage if whole else self.storage[self.part]

    def apply(self, gradient: Tensor) -> None:
        """Move the parameters by one step along ``gradient``, a flat tensor like ``flat``."""
        beta1, beta2 = self.betas
        self.steps.add_(1)
        self.beta_powers.mul_(self._decay)
        correction1, correction2 = (1 - self.beta_powers).unbind()
        step_size = self.learning_rate / correction1
        tensors = (self.flat, gradient, self.first_moment, self.second_moment)
        # A compiled graph is one pass anyway; eager, a piece stays in the processor's cache, and
        # so do the temporary results, whose memory the system would have to give anew each time.
        whole = torch.compiler.is_compiling() or gradient.numel() <= _PIECE
        for flat, part, first, second in (
            [tensors]
            if whole
            else zip(*(torch.split(each, _PIECE) for each in tensors), strict=True)
        ):
            first.lerp_(part, 1 - beta1)
            second.mul_(beta2).addcmul_(part, part, value=1 - beta2)
            root = (second / correction2).sqrt_().add_(self.epsilon)
            flat.sub_((step_size * first).div_(root))

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
