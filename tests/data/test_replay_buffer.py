"""The buffer against plain lists: every sample, through wraps, ends and write heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.data import replay_storage
from rl_training.data.replay_buffer import ReplayBuffer, replay_size_in_bytes
from rl_training.errors import UserError
from tests.data.experience import Stream, assert_holds_the_latest, make_buffer


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(max_examples=120, deadline=None)
@given(
    num_envs=st.integers(1, 3),
    steps=st.integers(1, 9),
    n_steps=st.integers(1, 5),
    lengths=st.lists(st.integers(1, 14), min_size=1, max_size=9),
    end_probability=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 10_000),
    prioritised=st.booleans(),
)
def test_every_sample_is_what_lists_give(
    num_envs: int,
    steps: int,
    n_steps: int,
    lengths: list[int],
    end_probability: float,
    seed: int,
    prioritised: bool,
) -> None:
    stream = Stream(num_envs, seed, end_probability)
    buffer = make_buffer(steps * num_envs, num_envs, n_steps=n_steps, prioritised=prioritised)
    draws = generator(seed)
    for length in lengths:
        buffer.extend(stream.batch(length))
        assert_holds_the_latest(buffer, stream, draws, beta=0.5 if prioritised else None)


@settings(max_examples=40, deadline=None)
@given(
    events=st.lists(st.sampled_from(["step", "steps", "abandon"]), min_size=2, max_size=12),
    num_envs=st.integers(1, 3),
    n_steps=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_episodes_abandoned_without_an_end_count_as_truncated(
    events: list[str], num_envs: int, n_steps: int, seed: int
) -> None:
    stream = Stream(num_envs, seed, end_probability=0.2)
    buffer = make_buffer(4 * num_envs, num_envs, n_steps=n_steps)
    for event in events:
        if event == "abandon":
            stream.abandon()
        buffer.extend(stream.batch(3 if event == "steps" else 1))
        assert_holds_the_latest(buffer, stream, generator(seed))


def test_a_full_buffer_holds_exactly_the_latest_and_draws_all_of_them() -> None:
    stream, buffer, draws = Stream(3, 1), make_buffer(30, 3), generator()
    for _ in range(37):
        buffer.extend(stream.batch(1))
        drawn = assert_holds_the_latest(buffer, stream, draws)
    assert len(buffer) == 30
    assert drawn == set(range(81, 111))


def test_uniform_sampling_is_uniform() -> None:
    stream, buffer = Stream(2, 1), make_buffer(40, 2)
    buffer.extend(stream.batch(33))
    indices = buffer.sample(80_000, generator(5))["indices"] - (66 - 40)
    counts = torch.bincount(indices, minlength=40).double()
    chi_square = float(((counts - 2000) ** 2 / 2000).sum())
    assert len(counts) == 40
    assert chi_square < 72.05  # the 0.1 % point with 39 degrees of freedom


def test_the_generator_alone_decides_what_is_drawn() -> None:
    stream, buffer = Stream(2, 1), make_buffer(40, 2)
    buffer.extend(stream.batch(20))
    torch.manual_seed(1)
    first = buffer.sample(16, generator(3))
    torch.manual_seed(2)
    again = buffer.sample(16, generator(3))
    assert all(torch.equal(first[key], again[key]) for key in first)
    other = buffer.sample(16, generator(4))
    assert not torch.equal(first["indices"], other["indices"])


def test_dtypes_are_kept_and_samples_are_copies() -> None:
    stream = Stream(2, 1)
    buffer = make_buffer(8, 2, dtype=torch.uint8)
    buffer.extend(stream.batch(9, torch.uint8))
    sample = buffer.sample(5, generator())
    dtypes = {key: value.dtype for key, value in sample.items()}
    assert dtypes == {
        "observation": torch.uint8,
        "action": torch.int64,
        "reward": torch.float32,
        "next_observation": torch.uint8,
        "terminated": torch.bool,
        "discount": torch.float32,
        "indices": torch.int64,
    }
    for value in sample.values():
        value.zero_()
    assert_holds_the_latest(buffer, stream, generator())


def test_a_batch_goes_in_whatever_becomes_of_its_tensors_later() -> None:
    stream, buffer = Stream(2, 1), make_buffer(8, 2)
    batch = stream.batch(5)
    buffer.extend(batch)
    batch.zero_()
    assert_holds_the_latest(buffer, stream, generator())


def test_many_short_episodes_need_no_more_than_the_capacity() -> None:
    stream = Stream(1, 1, end_probability=1.0)
    buffer = make_buffer(3000, 1)
    for length in (1000, 1500, 2000, 7000, 1):
        buffer.extend(stream.batch(length))
    assert buffer._ring._ends.size_in_bytes == 3000 * 8
    assert_holds_the_latest(buffer, stream, generator())


def test_the_disk_holds_the_same_and_leaves_no_file(tmp_path: Path) -> None:
    stream = Stream(2, 1)
    buffer = make_buffer(12, 2, storage="disk", directory=tmp_path / "new" / "scratch", n_steps=3)
    for length in (1, 4, 9):
        buffer.extend(stream.batch(length))
        assert_holds_the_latest(buffer, stream, generator())
    assert list((tmp_path / "new" / "scratch").iterdir()) == []


def test_the_size_is_known_before_allocation_and_is_what_the_tensors_take() -> None:
    for prioritised in (False, True):
        size = replay_size_in_bytes(
            1001, 4, (3, 8), torch.uint8, (2,), torch.float32, prioritised=prioritised
        )
        buffer = ReplayBuffer(
            1001,
            4,
            (3, 8),
            torch.uint8,
            (2,),
            torch.float32,
            discount=0.9,
            prioritised=prioritised,
        )
        assert buffer.size_in_bytes == size
        # 251 rows of 4: 24 + 8 + 4 + 1 + 8 bytes; 1000 ends; and the tree of 2 * 1024 sums.
        assert size == 1004 * 45 + 1000 * 24 + (16_384 if prioritised else 0)
    assert buffer.capacity == 1000
    assert buffer.describe() == (
        "replay buffer (prioritised): 1,000 transitions, 85.6 kB of memory"
    )


@pytest.mark.parametrize("storage", ["ram", "disk"])
def test_what_does_not_fit_is_refused_with_what_would(
    storage: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(replay_storage, "available_memory", lambda: 1_000_000_000)
    monkeypatch.setattr(replay_storage, "available_disk", lambda _: 1_000_000_000)

    def make(capacity: int) -> ReplayBuffer:
        return ReplayBuffer(
            capacity,
            2,
            (4, 84, 84),
            torch.uint8,
            (),
            torch.int64,
            discount=0.99,
            storage=storage,
            directory=tmp_path,
        )

    with pytest.raises(UserError, match=r"1,000,000 transitions takes 28\.3 GB, and 1 GB of") as e:
        make(1_000_000)
    fits = int(str(e.value).split(": ")[1].split(" ")[0].replace(",", ""))
    size = (4, 84, 84), torch.uint8, (), torch.int64
    assert replay_size_in_bytes(fits, 2, *size) <= 1_000_000_000
    assert replay_size_in_bytes(fits + 2, 2, *size) > 1_000_000_000
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 1}, "capacity is 1; with 2 environments it has to be 2 or more"),
        ({"n_steps": 0}, "n_steps is 0"),
        ({"alpha": -0.1}, "alpha is -0.1"),
        ({"priority_epsilon": 0.0}, "priority_epsilon"),
        ({"storage": "tape"}, "allowed: 'ram', 'disk'"),
        ({"storage": "disk"}, "needs a directory"),
    ],
)
def test_impossible_values_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_buffer(options.pop("capacity", 8), 2, **options)


def test_mistakes_of_the_caller_are_named() -> None:
    buffer = make_buffer(8, 2)
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(4, generator())
    with pytest.raises(ValueError, match="3 environments; expected 2"):
        buffer.extend(Stream(3, 1).batch(1))
    with pytest.raises(ValueError, match="samples uniformly"):
        buffer.update_priorities(torch.tensor([0]), torch.tensor([1.0]))
