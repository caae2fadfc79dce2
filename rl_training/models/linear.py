"""Linear layers whose larger float32 products run on oneDNN where it is the faster library.

PyTorch gives float32 products to its BLAS. Processors with AVX-512 are served up to twice as fast
by oneDNN, which PyTorch carries too: on an AMD EPYC, 256 x 256 by 256 x 256 takes 317 microseconds
by MKL and 155 by oneDNN, 80 when it is given bfloat16. Below ``SMALLEST_ONEDNN`` multiplications
oneDNN's cost per call outweighs that. With AVX2 alone the BLAS is the faster one: such a layer,
forward and backward, takes 1.45 to 1.7 milliseconds by MKL and 1.75 to 2.3 by oneDNN.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

SMALLEST_ONEDNN = 3 * 2**19
"""Multiplications (rows x inputs x outputs) from which oneDNN takes a product."""

_kernel = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
_mkldnn: Any = torch.backends.mkldnn
AVAILABLE = _kernel is not None and bool(_mkldnn.is_available())
"""Whether this build of PyTorch has the kernel."""
FASTER = AVAILABLE and torch.backends.cpu.get_cpu_capability() == "AVX512"
"""Whether large float32 products are given to it."""
_has_bfloat16 = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
BFLOAT16 = AVAILABLE and bool(_has_bfloat16())
"""Whether the kernel takes bfloat16 on this processor."""

# An operator of its own, because Inductor takes the kernel for constant weights only.
_torch_library: Any = torch.library
_library = _torch_library.Library("rl_training", "DEF")
_library.define("linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor")


def _on_onednn(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    assert _kernel is not None
    if inputs.dtype == torch.bfloat16 and not BFLOAT16:
        # The same numbers: products of rounded factors, summed in float32, rounded once.
        factors = (None if each is None else each.float() for each in (inputs, weight, bias))
        return functional.linear(*factors).bfloat16()  # type: ignore[arg-type]
    output: Tensor = _kernel(inputs, weight, bias, "none", [], "")
    return output


def _shape_only(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return inputs.new_empty(inputs.shape[0], weight.shape[0])


_library.impl("linear", _on_onednn, "CPU")
_torch_library.register_fake("rl_training::linear", _shape_only, lib=_library)
_product = torch.ops.rl_training.linear.default


class _Linear(torch.autograd.Function):
    """The three products of a linear layer, forward and backward, each on oneDNN; factors are
    rounded to ``dtype``, results are float32.
    """

    @staticmethod
    def forward(
        context: Any, inputs: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype
    ) -> Tensor:
        inputs, weight = inputs.to(dtype), weight.to(dtype)
        context.save_for_backward(inputs, weight)
        output: Tensor = _product(inputs, weight, bias.to(dtype))
        return output.float()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = context.saved_tensors
        for_inputs, for_weight, for_bias = context.needs_input_grad[:3]
        rounded = gradient.to(weight.dtype)
        return (
            _product(rounded, weight.t(), None).float() if for_inputs else None,
            _product(rounded.t(), inputs.t(), None).float() if for_weight else None,
            gradient.sum(0) if for_bias else None,
            None,
        )


def linear(inputs: Tensor, weight: Tensor, bias: Tensor, *, bfloat16: bool = False) -> Tensor:
    """Return ``inputs @ weight.T + bias``, as `torch.nn.functional.linear` does.

    Differentiable once. Which library computes it depends on shapes, dtypes and the kind of
    processor alone, so that equal calls give equal bits.

    Args:
        inputs: ``[*batch, inputs]``.
        weight: ``[outputs, inputs]``, of any strides.
        bias: ``[outputs]``.
        bfloat16: round the factors of all products to bfloat16; sums and results are float32.
    """
    if torch.compiler.is_exporting() and not bfloat16:
        # Another runtime has no such kernel, and its number of rows is not known yet.
        return functional.linear(inputs, weight, bias)
    kernel = AVAILABLE and inputs.ndim == 2 and inputs.device.type == "cpu"
    large = FASTER and len(inputs) * weight.numel() >= SMALLEST_ONEDNN
    single = inputs.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    if kernel and single and (bfloat16 or large):
        dtype = torch.bfloat16 if bfloat16 else torch.float32
        result: Tensor = _Linear.apply(inputs, weight, bias, dtype)
        return result
    if bfloat16:
        factors = (each.bfloat16() for each in (inputs, weight, bias))
        return functional.linear(*factors).to(inputs.dtype)
    return functional.linear(inputs, weight, bias)
