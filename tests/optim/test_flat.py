"""Flat parameters stay views; flat Adam is torch's Adam."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd

from rl_training.optim import FlatAdam, FlatParameters, descend


def make_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def make_adam(network: nn.Module, *, epsilon: float = 1e-8) -> FlatAdam:
    parameters = FlatParameters({"all": network.parameters()})
    return FlatAdam(*parameters.select("all"), learning_rate=3e-3, epsilon=epsilon)


@pytest.mark.parametrize("epsilon", [1e-8, 1e-2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fifty_steps_equal_torchs_adam(dtype: torch.dtype, epsilon: float) -> None:
    network = make_network().to(dtype)
    other = copy.deepcopy(network)
    flat = make_adam(network, epsilon=epsilon)
    flat.learning_rate = flat.learning_rate.to(dtype)
    expected = torch.optim.Adam(other.parameters(), lr=3e-3, eps=epsilon)
    for index in range(50):
        learning_rate = 3e-3 * (1 - index / 50)
        flat.learning_rate.fill_(learning_rate)
        expected.param_groups[0]["lr"] = learning_rate
        batch = torch.randn(16, 3, dtype=dtype)
        optimizer: torch.optim.Optimizer
        for optimizer, each in ((flat, network), (expected, other)):
            optimizer.zero_grad()
            (each(batch) - batch[:, :2].sin()).square().mean().backward()
            optimizer.step()
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    for own, their in zip(network.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(own, their, rtol=0, atol=tolerance)


def test_the_number_of_threads_changes_nothing() -> None:
    """The fused kernel shares a large tensor among threads; each number must be rounded alike."""
    results = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            torch.manual_seed(0)
            flat = make_adam(nn.Linear(700, 131))
            for _ in range(3):
                flat.apply(torch.randn(flat.flat.shape))
            results.append(flat.flat.clone())
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_an_eager_step_leaves_what_a_traced_one_goes_on_from() -> None:
    """A checkpoint of an eager run may be resumed with ``compile``."""
    flat = make_adam(make_network())
    for _ in range(3):
        flat.apply(torch.ones_like(flat.flat))
    assert flat.steps == 3
    assert flat.beta_powers.tolist() == pytest.approx([0.9**3, 0.999**3], rel=1e-12)


def test_a_traced_step_equals_an_eager_one_and_copies_no_storage() -> None:
    """Inputs that overlap would be read through a common base: ``as_strided``, and a copy of it."""
    operations: set[str] = set()

    def note(graph: fx.GraphModule, inputs: Sequence[object]) -> fx.GraphModule:
        operations.update(str(node.target) for node in graph.graph.nodes)
        return graph

    def trained(backend: Callable[..., Any] | None) -> tuple[Tensor, Tensor]:
        network, observation = make_network(), torch.ones(4, 3, dtype=torch.float64)
        own = FlatParameters({"all": network.parameters()})
        adam = FlatAdam(*own.select("all"), learning_rate=3e-3)
        target = FlatParameters({"all": copy.deepcopy(network).parameters()})

        def step() -> None:
            descend(network(observation).square().mean(), adam, max_gradient_norm=0.5)
            target.follow(own, 0.1)

        take = step if backend is None else torch.compile(step, backend=backend, fullgraph=True)
        for _ in range(3):
            take()
        return own.flat, target.flat

    with torch._dynamo.config.patch(trace_autograd_ops=True):
        traced = trained(aot_autograd(fw_compiler=note))
    for eager, each in zip(trained(None), traced, strict=True):
        torch.testing.assert_close(each, eager, rtol=0, atol=1e-12)
    assert "aten.lerp.Scalar" in operations
    assert not [name for name in operations if "as_strided" in name or "scatter" in name]


def test_the_first_step_is_the_learning_rate_in_the_gradients_direction() -> None:
    layer = nn.Linear(1, 1)
    adam = make_adam(layer, epsilon=1e-12)
    before = torch.cat([p.detach().flatten() for p in layer.parameters()])
    adam.apply(torch.tensor([5.0, -0.01]))
    after = torch.cat([p.detach().flatten() for p in layer.parameters()])
    torch.testing.assert_close(after - before, torch.tensor([-3e-3, 3e-3]))


def test_a_parameter_without_a_gradient_counts_as_zero() -> None:
    network = make_network()
    adam = make_adam(network)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    first = network[0]
    assert isinstance(first, nn.Linear)
    first.bias.grad = torch.ones_like(first.bias)
    adam.step()
    moved = [
        not torch.equal(old, new) for old, new in zip(before, network.parameters(), strict=True)
    ]
    assert moved == [False, True, False, False]


def test_parameters_are_views_of_one_tensor_and_remain_so_after_a_load() -> None:
    network = make_network()
    parameters = FlatParameters({"all": network.parameters()})
    flat = parameters.flat
    state = {name: torch.full_like(value, 2.0) for name, value in network.state_dict().items()}
    network.load_state_dict(state)
    assert (flat == 2.0).all()
    flat.fill_(3.0)
    assert all((parameter == 3.0).all() for parameter in network.parameters())
    adam = FlatAdam(*parameters.select("all"), learning_rate=0.1)
    adam.apply(torch.ones_like(flat))
    assert all((parameter < 3.0).all() for parameter in network.parameters())


def test_values_keep_through_the_flattening_in_the_order_of_the_groups() -> None:
    network = make_network()
    expected = torch.cat(
        [p.detach().flatten() for p in [*network[2].parameters(), *network[0].parameters()]]
    )
    output = network(torch.ones(1, 3, dtype=torch.float64))
    parameters = FlatParameters({"head": network[2].parameters(), "trunk": network[0].parameters()})
    assert torch.equal(parameters.flat, expected)
    assert torch.equal(network(torch.ones(1, 3, dtype=torch.float64)), output)


def test_groups_are_slices_that_share_storage_and_a_shared_parameter_appears_once() -> None:
    network = make_network()
    shared = network[0].get_parameter("weight")
    parameters = FlatParameters(
        {"first": network[0].parameters(), "second": [shared, *network[2].parameters()]}
    )
    first, second, both = (
        FlatAdam(*parameters.select(*names), learning_rate=0.1).flat
        for names in (("first",), ("second",), ("first", "second"))
    )
    assert [len(first), len(second), len(both)] == [32, 18, 50]
    second.zero_()
    assert not both[32:].any()
    assert both[:32].any()


def test_groups_that_are_not_adjacent_cannot_share_a_slice() -> None:
    layers = [nn.Linear(2, 2) for _ in range(3)]
    parameters = FlatParameters(
        {name: layer.parameters() for name, layer in zip("abc", layers, strict=True)}
    )
    with pytest.raises(ValueError, match="not adjacent"):
        parameters.select("a", "c")


def test_state_is_restored_in_place_and_goes_on_alike() -> None:
    torch.manual_seed(1)
    gradients = torch.randn(6, 50, dtype=torch.float64)
    one, other = make_network(), make_network()
    first, second = make_adam(one), make_adam(other)
    for gradient in gradients[:3]:
        first.apply(gradient)
    first.learning_rate.fill_(1e-4)
    saved = copy.deepcopy(first.state_dict())
    pointers = {key: tensor.data_ptr() for key, tensor in second.state_dict().items()}
    second.load_state_dict(saved)
    other.load_state_dict(one.state_dict())
    assert {key: t.data_ptr() for key, t in second.state_dict().items()} == pointers
    for gradient in gradients[3:]:
        first.apply(gradient)
        second.apply(gradient)
    assert torch.equal(flatten(one), flatten(other))
    assert all(
        torch.equal(saved[key], first.state_dict()[key]) == (key == "learning_rate")
        for key in saved
    )


def flatten(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
