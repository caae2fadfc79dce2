"""One gradient step as one function: loss, gradients, clipping and Adam, compiled to one graph on
request.
"""

from __future__ import annotations

import shutil
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from rl_training.errors import UserError
from rl_training.optim.flat import FlatAdam
from rl_training.optim.gradients import clip_, flat_gradient

Minibatch = Mapping[str, Tensor]
LossFunction = Callable[[dict[str, Tensor]], tuple[Tensor, dict[str, Tensor]]]
"""From a minibatch to the loss (a scalar) and detached scalar metrics."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


class GradientStep:
    """Indexes a minibatch, and moves the optimiser's parameters down the gradient of a loss on it.

    Args:
        loss: the function to minimise.
        optimizer: owns the parameters and their flat storage.
        max_gradient_norm: gradients of a larger global L2 norm are scaled down to it; None: never.
        compile: trace everything into one graph. It is compiled from the first call on: a step that
            was eager first and compiled later would not repeat itself bit for bit after a resume.
        max_kl: when given, a minibatch whose ``approx_kl`` metric exceeds it changes nothing, and
            ``stopped`` tells so. The check needs the value, so the step becomes two graphs.
        pieces: compute a minibatch's gradient in so many parts, one after another, which takes less
            memory. Their weighted sum is the whole one's where the loss is a mean over samples.
    """

    def __init__(
        self,
        loss: LossFunction,
        optimizer: FlatAdam,
        *,
        max_gradient_norm: float | None,
        compile: bool = False,
        max_kl: float | None = None,
        pieces: int = 1,
    ) -> None:
        self._pieces = pieces
        self.optimizer = optimizer
        self.metric_names: tuple[str, ...] = ()
        self.max_kl = max_kl
        self.stopped = False
        self._loss = loss
        self._max_gradient_norm = max_gradient_norm
        if max_kl is None:
            self._step = _maybe_compile(self._full_step, compile)
        else:
            self._compute = _maybe_compile(self._gradient, compile)
            self._apply = _maybe_compile(self._apply_gradient, compile)

    def __call__(self, batch: Minibatch, indices: Tensor) -> Tensor:
        """Take one step on ``batch[indices]`` and return its metrics as one vector (see
        ``metric_names``).

        Args:
            batch: tensors ``[M, ...]`` and 0-dim coefficients, which are passed on as they are.
            indices: int64 ``[B]``, of any device.
        """
        indices = indices.to(self.optimizer.flat.device)
        if self.max_kl is None:
            return self._step(dict(batch), indices)
        gradient, metrics = self._compute(dict(batch), indices)
        approx_kl = metrics[self.metric_names.index("approx_kl")]
        self.stopped = bool(approx_kl > self.max_kl)
        if not self.stopped:
            self._apply(gradient)
        return metrics

    def _full_step(self, batch: dict[str, Tensor], indices: Tensor) -> Tensor:
        gradient, metrics = self._gradient(batch, indices)
        self._apply_gradient(gradient)
        return metrics

    def _gradient(self, batch: dict[str, Tensor], indices: Tensor) -> tuple[Tensor, Tensor]:
        gradient, metrics = self._accumulate(batch, indices)
        metrics = {**metrics, "gradient_norm": clip_(gradient, self._max_gradient_norm)}
        self.metric_names = tuple(metrics)
        return gradient, torch.stack(list(metrics.values()))

    def _accumulate(
        self, batch: dict[str, Tensor], indices: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return gradient and metrics of ``batch[indices]``, computed piece by piece."""
        if self._pieces == 1:
            return self._piece(batch, indices)
        gradient = torch.zeros_like(self.optimizer.first_moment)
        metrics: dict[str, Tensor] = {}
        # No sample is left over: of an uneven number, some pieces have one more.
        for piece in torch.tensor_split(indices, min(self._pieces, len(indices))):
            share = len(piece) / len(indices)
            part, measured = self._piece(batch, piece)
            gradient = gradient + share * part
            for name, value in measured.items():
                metrics[name] = metrics.get(name, torch.zeros_like(value)) + share * value
        return gradient, metrics

    def _piece(self, batch: dict[str, Tensor], indices: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        # Whole rows are copied; `value[indices]` would go from number to number.
        minibatch = {
            key: value.index_select(0, indices) if value.ndim else value
            for key, value in batch.items()
        }
        loss, metrics = self._loss(minibatch)
        return flat_gradient(loss, self.optimizer.parameters), metrics

    @torch.no_grad()
    def _apply_gradient(self, gradient: Tensor) -> None:
        self.optimizer.apply(gradient)


def _maybe_compile(function: _Function, compile: bool) -> _Function:
    return compile_isolated(function) if compile else function


def compile_isolated(function: _Function) -> _Function:
    """Compile a bound method so that it shares no compilation with other instances of its class.

    Dynamo keys its cache by code object. A code object of its own lets every instance have its own
    graph, however many there are in the process, and makes it safe to keep only tensor guards: what
    is constant for an instance (hyperparameters, modules) is not checked again at every call.

    Raises:
        UserError: there is no C++ compiler.
    """
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        raise UserError(
            "compile needs a C++ compiler and none was found: "
            "install one, or switch it off with --no-compile."
        )
    torch._dynamo.config.trace_autograd_ops = True
    method = cast("types.MethodType", function)
    plain = cast("types.FunctionType", method.__func__)
    own = types.FunctionType(
        plain.__code__.replace(),
        plain.__globals__,
        plain.__name__,
        plain.__defaults__,
        plain.__closure__,
    )
    compiled = torch.compile(
        types.MethodType(own, method.__self__),
        dynamic=False,
        fullgraph=True,
        options={"guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe},
    )
    return cast("_Function", compiled)
