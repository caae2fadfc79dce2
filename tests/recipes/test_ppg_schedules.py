"""PPG's auxiliary phase over the latest iterations, ended early, and on the disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.data import replay_storage
from rl_training.errors import UserError
from rl_training.recipes.ppg import PPG
from rl_training.runtime.state import digest
from tests.recipes.runs import BRIEF, iterate, make, make_ppg, parameters
from tests.recipes.test_ppg_auxiliary import watched

EVERY: dict[str, Any] = {"policy_iterations": 1, "auxiliary_iterations": 3}
"""A phase after every iteration, over the latest three."""
NAMES = ("ppg", "recurrent_ppg")


@pytest.mark.parametrize("name", NAMES)
def test_as_many_latest_iterations_as_lie_between_two_phases_are_the_usual_phase(name: str) -> None:
    found = []
    for latest in (None, 2):
        algorithm = make(name, **BRIEF[name], auxiliary_iterations=latest)
        iterate(algorithm, 5)
        found.append(digest(algorithm.state_dict()))
    assert found[0] == found[1]


def test_every_phase_is_over_the_latest_iterations() -> None:
    algorithm = make_ppg(auxiliary_minibatches=6, auxiliary_epochs=1, **EVERY)
    observations = []
    for iteration in range(5):
        with watched(algorithm) as seen:
            (batch,), _ = iterate(algorithm, 1)
        observations.append(batch["observation"].flatten(0, 1))
        expected = torch.cat(observations[-3:])
        held = torch.cat([data["observation"][rows] for data, rows in seen])
        assert torch.equal(torch.unique(held, dim=0), torch.unique(expected, dim=0))
        assert len(held) == len(expected)
        # As large minibatches at first, when there are fewer iterations, as later.
        assert len(seen) == 2 * min(iteration + 1, 3)
        assert {len(rows) for _, rows in seen} == {64}
    assert len(algorithm._phase) == 2, "of which the next phase sees two"


def test_the_order_is_that_of_collection_wherever_the_oldest_lies() -> None:
    algorithm = make_ppg(policy_iterations=99, auxiliary_iterations=3)
    batches, _ = iterate(algorithm, 5)
    data, order = algorithm._phase.joined(), algorithm._phase.order()
    expected = torch.cat([batch["observation"].flatten(0, 1) for batch in batches[-3:]])
    assert torch.equal(data["observation"][order], expected)
    rows = algorithm._phase.order(unit=32)
    by_row = data["observation"].view(-1, 32, 4)
    assert torch.equal(by_row[rows].flatten(0, 1), expected)


@pytest.mark.parametrize("name", NAMES)
def test_each_iteration_has_the_first_divergence_zero(name: str) -> None:
    algorithm = make(name, **EVERY)
    _, metrics = iterate(algorithm, 5)
    assert all(each["aux/kl_first"] == 0.0 < each["aux/kl_last"] for each in metrics)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="compiling needs a C++ compiler")
def test_compiled_it_is_compiled_for_one_size_of_minibatches() -> None:
    """Twelve numbers of iterations, and torch.compile gives up after eight compilations."""
    changes = {"policy_iterations": 1, "auxiliary_iterations": 12, "auxiliary_minibatches": 24}
    algorithm = make_ppg(compile=True, **changes)
    _, metrics = iterate(algorithm, 13)
    assert all(abs(each["aux/kl_first"].item()) < 1e-6 for each in metrics)


def test_a_phase_ends_after_as_many_gradient_steps_as_it_may_take() -> None:
    # Two passes of 8 minibatches of 32, cut in the second, and in the first.
    for steps in (11, 3):
        algorithm = make_ppg(auxiliary_steps=steps)
        with watched(algorithm) as seen:
            iterate(algorithm, 2)
        assert [len(rows) for _, rows in seen] == [32] * steps
        _, metrics = iterate(algorithm, 2)
        assert metrics[1]["aux/kl_first"] == 0.0 < metrics[1]["aux/kl"]
        assert algorithm.optimizers["auxiliary"].steps.item() == 2 * steps


@pytest.mark.parametrize("name", NAMES)
def test_data_on_the_disk_is_learnt_from_alike(name: str, tmp_path: Path) -> None:
    found = []
    for changes in ({}, {"auxiliary_storage": "disk", "auxiliary_directory": str(tmp_path)}):
        algorithm = make(name, **BRIEF[name], **EVERY, **changes)
        iterate(algorithm, 5)
        found.append(digest(algorithm.state_dict()))
        # Of an iteration of 32 samples: observations, targets, and of sequences more.
        size = algorithm._phase.size_in_bytes
        assert size == 3 * 32 * (4 * 4 + 4) if name == "ppg" else size > 3 * 32 * (4 * 4 + 4)
    assert found[0] == found[1]
    assert os.listdir(tmp_path) == [], "the files have no names"


def test_nothing_lies_in_the_temporary_directory_that_a_killed_process_would_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    reserve, names = os.posix_fallocate, []

    def watching(descriptor: int, *place: int) -> None:
        names.append(os.listdir(tmp_path))
        reserve(descriptor, *place)

    monkeypatch.setattr(os, "posix_fallocate", watching)
    phase = make_ppg(auxiliary_storage="disk", **EVERY)
    iterate(phase, 1)
    assert names == [[], []], "not even while observations and targets get their room"
    replay = make("sac", replay_storage="disk")
    assert len(names) > 2
    assert os.listdir(tmp_path) == []
    phase.close()
    replay.close()


def test_what_was_saved_in_memory_goes_on_on_the_disk(tmp_path: Path) -> None:
    digests = []
    for first, then in (("ram", "disk"), ("disk", "ram"), ("ram", "ram")):
        path = tmp_path / f"{first}_{then}"
        brief = {**BRIEF["ppg"], **EVERY}
        algorithm = make_ppg("CartPole-v1", auxiliary_storage=first, **brief).learn(128)
        loaded = PPG.load(algorithm.save(path), auxiliary_storage=then)
        assert loaded._phase.storage == then
        loaded.learn(64)
        digests.append(digest(loaded.state_dict()))
    assert len(set(digests)) == 1


def test_a_smaller_memory_than_what_was_saved_is_refused(tmp_path: Path) -> None:
    path = make_ppg("CartPole-v1", **EVERY).learn(512).save(tmp_path / "saved")
    with pytest.raises(UserError, match="of 2 iterations, and at most 1 are kept"):
        PPG.load(path, auxiliary_iterations=1)


def test_a_phase_too_large_for_the_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # An iteration is of 128 samples of 20 bytes.
    monkeypatch.setattr(replay_storage, "available_memory", lambda: 7 * 128 * 20 + 1)
    make_ppg(policy_iterations=7)
    with pytest.raises(UserError, match=r"data of 8 iterations takes 20\.5 kB.*: 7 would fit"):
        make_ppg(policy_iterations=8)
    make_ppg(policy_iterations=8, auxiliary_epochs=0)


def _parts_seen(step: Any) -> list[int]:
    """Return a list that fills with the numbers of samples of which gradients are computed."""
    seen: list[int] = []
    compute = step._piece

    def spy(batch: Any, indices: Any) -> Any:
        seen.append(len(indices))
        return compute(batch, indices)

    step._piece = spy
    return seen


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("ppg", {}),
        ("ppg", {"value_epochs": 1, "minibatch_size": 48}),
        ("ppg", {"target_kl": 1.0}),
        ("recurrent_ppg", {}),
    ],
)
def test_accumulated_gradients_of_the_policy_phase_are_those_of_whole_minibatches(
    name: str, changes: dict[str, Any]
) -> None:
    """Three parts of 32 samples, or two of two sequences: what is left over counts too."""
    found = []
    for parts in (1, 3):
        algorithm = make(name, policy_accumulation=parts, adam_epsilon=1e-3, **changes)
        steps = [algorithm._step, *([] if algorithm._joint else [algorithm._value_step])]
        sizes = [_parts_seen(step) for step in steps]
        _, (metrics,) = iterate(algorithm, 1)
        found.append((parameters(algorithm), metrics))
        largest = [max(each) for each in sizes]
        whole_size = 2 if name == "recurrent_ppg" else changes.get("minibatch_size", 32)
        assert largest == [-(-whole_size // parts)] * len(steps)
    (whole, expected), (split, metrics) = found
    for name, value in whole.items():
        torch.testing.assert_close(split[name], value, rtol=1e-3, atol=2e-5, msg=name)
    for key in ("loss/value", "train/gradient_norm", "train/gradient_steps", "train/entropy"):
        torch.testing.assert_close(metrics[key], expected[key], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("ppg", {"auxiliary_iterations": 0}, "auxiliary_iterations must be at least 1, or null"),
        (
            "ppg",
            {"compile": True, "auxiliary_iterations": 3},
            "auxiliary_minibatches must be a multiple of auxiliary_iterations with compile",
        ),
        ("ppg", {"auxiliary_steps": 0}, "auxiliary_steps must be at least 1, or null"),
        ("ppg", {"policy_accumulation": 0}, "policy_accumulation must be at least 1"),
        (
            "ppg",
            {"policy_accumulation": 2, "normalize_advantage": "minibatch"},
            "policy_accumulation must be 1 with normalize_advantage 'minibatch'",
        ),
        (
            "recurrent_ppg",
            {"policy_accumulation": 2, "minibatch_size": 48},
            "policy_accumulation must be 1 where minibatch_size does not divide the rollout",
        ),
        (
            "ppg",
            {"auxiliary_iterations": 1, "auxiliary_minibatches": 129},
            "at most the 128 samples of a phase",
        ),
    ],
)
def test_what_cannot_be_is_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make(name, **changes)
