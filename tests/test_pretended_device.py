"""The pretended device refuses what PyTorch refuses, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn

from tests.pretended_device import DEVICE, PretendedDevice

REFUSED: dict[str, Callable[[Tensor, Tensor], object]] = {
    "add": lambda there, here: there + here,
    "stack": lambda there, here: torch.stack([there.sum(), here.sum()]),
    "linear": lambda there, here: nn.functional.linear(there, here),
    "gather": lambda there, here: there.gather(0, here.long()),
    "index_select": lambda there, here: there.index_select(0, here.long()),
    "indices of another device": lambda there, here: here[there.long()],
    "write at places": lambda there, here: there.index_put_((here.long(),), here),
    "generator": lambda there, _: there.normal_(generator=torch.Generator()),
    "factory": lambda *_: torch.randn(3, device="cuda", generator=torch.Generator()),
    "a TensorDict's own": lambda there, here: torch.stack(
        [TensorDict({"a": each}, []) for each in (there, here)]
    ),
}
TAKEN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "number": lambda there, _: there * torch.tensor(2.0),
    "places": lambda there, here: there[here.long()],
    "copy": lambda there, here: there.copy_(here),
    "view": lambda there, _: there[1:].view(-1, 1),
    "parameter": lambda there, _: nn.Parameter(there),
    "new": lambda there, _: there.new_zeros(2),
    "like": lambda _, here: torch.empty_like(here, device="cuda"),
}


@pytest.fixture(autouse=True)
def pretended() -> Iterator[PretendedDevice]:
    with PretendedDevice() as device:
        yield device


@pytest.mark.parametrize("call", REFUSED)
def test_what_is_of_two_devices_is_refused(call: str) -> None:
    with pytest.raises(RuntimeError, match=r"device"):
        REFUSED[call](torch.zeros(3, device="cuda"), torch.zeros(3))


@pytest.mark.parametrize("call", TAKEN)
def test_what_comes_of_a_tensor_there_is_there(call: str) -> None:
    result = TAKEN[call](torch.zeros(3, device="cuda"), torch.zeros(3))
    assert result.device == DEVICE
    assert result.is_cuda


def test_no_numpy_array_is_made_of_it() -> None:
    there = torch.ones(3).to("cuda")
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    assert there.cpu().numpy().tolist() == [1, 1, 1]


def test_a_copy_there_and_back_shares_no_memory() -> None:
    here = torch.ones(3)
    there = here.to("cuda")
    back = there.cpu()
    there.zero_()
    assert here.sum() == back.sum() == 3
    assert there.to("cuda:0") is there
    assert not back.is_cuda


def test_parts_are_written_as_by_pytorch() -> None:
    there, here = torch.zeros(3, device="cuda"), torch.ones(3)
    there[:2] = here[:2]
    assert there.tolist() == [1, 1, 0]
    with pytest.raises(RuntimeError, match="same device"):
        there[here.long()] = here


def test_modules_and_gradients_are_there() -> None:
    module = nn.Linear(3, 1).to("cuda")
    assert all(each.device == DEVICE for each in module.parameters())
    loss = module(torch.ones(3, device="cuda")).sum()
    assert all(each.is_cuda for each in torch.autograd.grad(loss, list(module.parameters())))
    with pytest.raises(RuntimeError, match="same device"):
        module(torch.ones(3))
