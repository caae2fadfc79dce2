"""A buffer that was saved and loaded goes on as the one that was not."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.data import episode_ends, transition_ring
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.errors import UserError
from rl_training.runtime.checkpoint import digest, load_checkpoint, save_checkpoint
from tests.data.experience import Stream, assert_holds_the_latest, make_buffer


@pytest.fixture(scope="module", autouse=True)
def tiny_shards() -> Iterator[None]:
    """Let files be full and linked in buffers as small as these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transition_ring, "_SHARD_TRANSITIONS", 4)
        patch.setattr(episode_ends, "_SHARD_EPISODES", 2)
        yield


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def train(buffer: ReplayBuffer, stream: Stream, lengths: list[int], draws: torch.Generator) -> None:
    """Extend, sample and, with priorities, write them back."""
    for length in lengths:
        buffer.extend(stream.batch(length))
        if buffer.priorities is None:
            buffer.sample(4, draws)
            continue
        sample = buffer.sample(4, draws, beta=0.5)
        buffer.update_priorities(sample["indices"], torch.randn(4, generator=draws))


def through_a_checkpoint(buffer: ReplayBuffer, into: ReplayBuffer, place: Path) -> None:
    state = {"replay": buffer.state_dict()}
    path = save_checkpoint(
        place, step=buffer.written, state=state, policy={}, config={}, keep_last=2
    )
    loaded = load_checkpoint(path).state
    assert digest(loaded) == digest(state)
    into.load_state_dict(loaded["replay"])


@settings(max_examples=25, deadline=None)
@given(
    num_envs=st.integers(1, 3),
    steps=st.integers(1, 7),
    before=st.lists(st.integers(1, 9), max_size=5),
    after=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    prioritised=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_resumed_equals_uninterrupted(
    tmp_path_factory: pytest.TempPathFactory,
    num_envs: int,
    steps: int,
    before: list[int],
    after: list[int],
    prioritised: bool,
    seed: int,
) -> None:
    def make() -> ReplayBuffer:
        return make_buffer(steps * num_envs, num_envs, n_steps=2, prioritised=prioritised)

    place = tmp_path_factory.mktemp("checkpoints")
    stream, buffer, draws = Stream(num_envs, seed), make(), generator(seed)
    train(buffer, stream, before, draws)
    resumed = make()
    # What was there before is gone after a load.
    train(resumed, Stream(num_envs, seed + 1), [3, 2], generator())
    through_a_checkpoint(buffer, resumed, place)
    assert digest(resumed.state_dict()) == digest(buffer.state_dict())
    other_stream, other_draws = copy.deepcopy(stream), generator()
    other_draws.set_state(draws.get_state())
    train(buffer, stream, after, draws)
    train(resumed, other_stream, after, other_draws)
    assert digest(resumed.state_dict()) == digest(buffer.state_dict())
    assert torch.equal(draws.get_state(), other_draws.get_state())
    through_a_checkpoint(resumed, make(), place)
    beta = 0.5 if prioritised else None
    samples = [each.sample(64, generator(9), beta=beta) for each in (buffer, resumed)]
    for key, value in samples[0].items():
        assert torch.equal(value, samples[1][key]), key
    assert_holds_the_latest(resumed, other_stream, other_draws, beta=beta)


def test_memory_and_disk_give_the_same_digest_and_load_each_other(tmp_path: Path) -> None:
    buffers = []
    for storage in ("ram", "disk"):
        buffer = make_buffer(12, 2, storage=storage, directory=tmp_path / "scratch")
        train(buffer, Stream(2, 3), [4, 5, 6], generator())
        buffers.append(buffer)
    memory, disk = buffers
    before = digest(memory.state_dict())
    assert digest(disk.state_dict()) == before
    fresh = make_buffer(12, 2, storage="disk", directory=tmp_path / "scratch")
    through_a_checkpoint(memory, fresh, tmp_path / "a")
    assert digest(fresh.state_dict()) == before


def test_episodes_that_end_after_a_save_are_saved_next_time(tmp_path: Path) -> None:
    """An episode abandoned at a resume changes a row that was saved already."""
    stream, buffer = Stream(1, 3, end_probability=0.0), make_buffer(64, 1)
    buffer.extend(stream.batch(16))
    through_a_checkpoint(buffer, make_buffer(64, 1), tmp_path)
    stream.abandon()
    buffer.extend(stream.batch(16))
    again = make_buffer(64, 1)
    through_a_checkpoint(buffer, again, tmp_path)
    assert_holds_the_latest(again, stream, generator())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 14}, "has capacity 12, this one 14"),
        ({"num_envs": 3}, "has num_envs 2, this one 3"),
        ({"dtype": torch.uint8}, "does not fit"),
        ({"prioritised": True}, "only one has priorities"),
    ],
)
def test_the_state_of_another_buffer_is_refused(options: dict[str, Any], message: str) -> None:
    buffer = make_buffer(12, 2)
    buffer.extend(Stream(2, 1).batch(3))
    with pytest.raises(UserError, match=message):
        make_buffer(**{"capacity": 12, "num_envs": 2, **options}).load_state_dict(
            buffer.state_dict()
        )
