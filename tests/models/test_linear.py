"""Linear layers by oneDNN are linear layers."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from rl_training.models import linear as module
from rl_training.models.linear import linear

needs_kernel = pytest.mark.skipif(not module.AVAILABLE, reason="PyTorch without oneDNN")
ROWS, INPUTS, OUTPUTS = 256, 128, 96
assert ROWS * INPUTS * OUTPUTS >= module.SMALLEST_ONEDNN


@pytest.fixture(autouse=True)
def _as_with_avx512(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FASTER", module.AVAILABLE)


def tensors(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    draws = torch.Generator().manual_seed(0)
    shapes = [(ROWS, INPUTS), (OUTPUTS, INPUTS), (OUTPUTS,)]
    return [torch.randn(shape, generator=draws, dtype=dtype).requires_grad_() for shape in shapes]


@needs_kernel
@pytest.mark.parametrize("wanted", [(0, 1, 2), (0,), (1, 2)])
def test_value_and_gradients_are_those_of_double_precision(wanted: tuple[int, ...]) -> None:
    single, double = tensors(), [each.detach().double().requires_grad_() for each in tensors()]
    results = []
    for inputs, function in ((single, linear), (double, functional.linear)):
        output = function(*inputs)
        gradients = torch.autograd.grad(output.square().sum(), [inputs[i] for i in wanted])
        results.append([output.detach(), *gradients])
    for ours, exact in zip(*results, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-3)


@needs_kernel
def test_the_kernel_is_used_for_large_products_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def count(*arguments: torch.Tensor) -> torch.Tensor:
        calls.append(arguments[0].shape)
        return functional.linear(*arguments)

    monkeypatch.setattr(module, "_product", count)
    inputs, weight, bias = tensors()
    with torch.no_grad():
        linear(inputs, weight, bias)
        linear(inputs[:4], weight, bias)
        linear(inputs.double(), weight.double(), bias.double())
        with torch.autocast("cpu", torch.bfloat16):
            linear(inputs, weight, bias)
    assert calls == [(ROWS, INPUTS)]


@needs_kernel
def test_a_processor_that_it_serves_worse_keeps_its_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FASTER", False)
    monkeypatch.setattr(module, "_product", lambda *_: pytest.fail("oneDNN was called"))
    inputs, weight, bias = tensors()
    assert torch.equal(linear(inputs, weight, bias), functional.linear(inputs, weight, bias))


@needs_kernel
def test_transposed_weights_give_the_same() -> None:
    inputs, weight, bias = tensors()
    stored = weight.detach().t().contiguous()
    torch.testing.assert_close(linear(inputs, stored.t(), bias), linear(inputs, weight, bias))


@pytest.mark.parametrize("rows", [8, ROWS])
def test_bfloat16_rounds_factors_and_nothing_else(rows: int) -> None:
    inputs, weight, bias = tensors()
    output = linear(inputs[:rows], weight, bias, bfloat16=True)
    gradients = torch.autograd.grad(output.sum(), [inputs, weight, bias])
    assert output.dtype == torch.float32
    rounded = [each.detach().bfloat16().double() for each in (inputs[:rows], weight, bias)]
    exact = functional.linear(*rounded)
    torch.testing.assert_close(output.detach().double(), exact, rtol=1e-2, atol=1e-1)
    assert not torch.equal(output, linear(inputs[:rows], weight, bias))
    expected = rounded[1].sum(0).expand(rows, -1)
    torch.testing.assert_close(gradients[0][:rows].double(), expected, rtol=1e-2, atol=1e-1)
    assert gradients[2].tolist() == [rows] * OUTPUTS
