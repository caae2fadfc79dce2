"""Named random streams, the global generators as plain data, and devices by name."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
import torch

from rl_training.errors import UserError
from rl_training.runtime.devices import device_here, resolve_device, set_torch_threads
from rl_training.runtime.seeding import (
    derive_seed,
    generator,
    global_rng_state,
    preserve_global_rng,
    seed_everything,
    set_global_rng_state,
)
from rl_training.runtime.state import decode_state, encode_state


def draw() -> tuple[float, float, float, float]:
    return random.random(), random.gauss(0, 1), float(np.random.randn()), float(torch.randn(()))


def test_a_seed_is_the_hash_of_its_stream() -> None:
    expected = int.from_bytes(hashlib.sha256(b"1/policy").digest()[:8], "little") >> 1
    assert derive_seed(1, "policy") == expected < 2**63


def test_streams_differ_by_seed_and_by_name_and_repeat() -> None:
    seeds = {derive_seed(seed, name) for seed in range(-50, 50) for name in ("a", "b", "1", "")}
    assert len(seeds) == 400
    one = torch.randn(4, generator=generator(1, "a"))
    assert torch.equal(one, torch.randn(4, generator=generator(1, "a")))
    assert not torch.equal(one, torch.randn(4, generator=generator(1, "b")))
    assert not torch.equal(one, torch.randn(4, generator=generator(2, "a")))


def test_a_named_generator_does_not_touch_the_global_one() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    torch.rand(5, generator=generator(1, "x"))
    assert torch.equal(torch.rand(2), expected)


def test_seeding_everything_repeats_every_global_generator() -> None:
    seed_everything(4)
    first = draw()
    seed_everything(4)
    assert draw() == first
    seed_everything(5)
    assert all(one != other for one, other in zip(draw(), first, strict=True))


def test_the_global_state_survives_a_checkpoint_in_the_middle_of_a_gaussian_pair() -> None:
    seed_everything(6)
    draw()
    state = decode_state(*encode_state(global_rng_state()))
    expected = [draw() for _ in range(700)]
    seed_everything(7)
    set_global_rng_state(state)
    assert [draw() for _ in range(700)] == expected


def test_what_a_block_draws_changes_nothing_outside_even_when_it_fails() -> None:
    seed_everything(8)
    expected = draw()
    seed_everything(8)
    with preserve_global_rng():
        draw()
        torch.manual_seed(99)
    with pytest.raises(RuntimeError), preserve_global_rng():
        draw()
        raise RuntimeError
    assert draw() == expected


@pytest.mark.parametrize("name", ["auto", "cpu"])
def test_auto_and_cpu_are_the_cpu(name: str) -> None:
    assert resolve_device(name) == torch.device("cpu")


def test_cuda_is_itself_or_a_clear_error() -> None:
    if torch.cuda.is_available():
        assert resolve_device("cuda").type == "cuda"
        with pytest.raises(UserError, match="does not exist"):
            resolve_device("cuda:99")
    else:
        with pytest.raises(UserError, match="no CUDA device"):
            resolve_device("cuda:0")


@pytest.mark.parametrize(("name", "here"), [("auto", "cpu"), ("cpu", "cpu"), ("cuda:99", "cpu")])
def test_a_device_that_is_not_here_is_the_cpu(name: str, here: str) -> None:
    assert device_here(name) == here
    with pytest.raises(UserError, match="unknown device 'gpu'"):
        device_here("gpu")


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "", "meta", "Cpu!"])
def test_an_unknown_device_is_the_users_mistake(name: str) -> None:
    with pytest.raises(UserError, match=r"unknown device .* Allowed: auto, cpu, cuda"):
        resolve_device(name)


def test_the_nearest_device_is_offered() -> None:
    with pytest.raises(UserError, match="Did you mean 'cuda'"):
        resolve_device("cudda")


def test_threads_are_set_and_checked() -> None:
    before = torch.get_num_threads()
    try:
        set_torch_threads(1)
        assert torch.get_num_threads() == 1
        with pytest.raises(UserError, match="at least 1"):
            set_torch_threads(0)
    finally:
        set_torch_threads(before)
