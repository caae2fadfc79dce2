"""Learning, predicting, and loops of one's own."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl_training import Callback
from rl_training.errors import UserError
from tests.api.runs import CHECKPOINTS, make, observations, parameters


@pytest.mark.parametrize("name", ["ppo", "ppg"])
def test_learn_adds_steps_and_writes_nothing_unless_told_where(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    algorithm = make(name)
    before = parameters(algorithm).clone()
    assert algorithm.learn(100) is algorithm
    assert algorithm.global_step == 128, "a budget is rounded up to whole iterations"
    assert not torch.equal(parameters(algorithm), before)
    algorithm.learn(64)
    assert algorithm.global_step == 192
    assert list(tmp_path.iterdir()) == []


def test_learning_twice_is_learning_once() -> None:
    twice, once = make().learn(128).learn(128), make().learn(256)
    assert torch.equal(parameters(twice), parameters(once))


def test_with_an_output_directory_each_learn_is_a_run(tmp_path: Path) -> None:
    algorithm = make(output_dir=str(tmp_path), **CHECKPOINTS)
    assert algorithm.run_dir is None
    places = [algorithm.learn(64).run_dir, algorithm.learn(64).run_dir]
    assert places == sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    with pytest.raises(AttributeError):
        algorithm.run_dir = tmp_path
    first, second = sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    results = [json.loads((run / "result.json").read_text()) for run in (first, second)]
    assert sorted(result["global_step"] for result in results) == [64, 128]
    assert algorithm.global_step == 128


def test_where_the_run_is_is_said_before_it_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Path | None] = []

    class Looks(Callback):
        def on_train_start(self, context: Any) -> None:
            seen.append(context.algorithm.run_dir)

    algorithm = make(output_dir=str(tmp_path), **CHECKPOINTS)
    algorithm.learn(64, progress=True, callbacks=[Looks()])
    before, after = capsys.readouterr().err.split(f"run directory {algorithm.run_dir}\n")
    assert "64 / 64 steps" in after and "steps" not in before
    assert seen == [algorithm.run_dir] == [next(tmp_path.iterdir())]
    assert make().learn(64, progress=True).run_dir is None
    assert "run directory" not in capsys.readouterr().err


def test_trainings_side_by_side_in_threads_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    class LearnsBeside(Callback):
        def __init__(self, *, thread: bool) -> None:
            self.thread = thread

        def on_train_start(self, context: Any) -> None:
            if not self.thread:
                make().learn(64)
                return
            beside = threading.Thread(target=make().learn, args=(64,))
            beside.start()
            beside.join()

    make().learn(64, callbacks=[LearnsBeside(thread=False)])
    assert "another thread" not in caplog.text, "one within the other is no disturbance"
    make().learn(64, callbacks=[LearnsBeside(thread=True)])
    assert caplog.text.count("Another training goes on in another thread") == 1
    caplog.clear()
    thread = threading.Thread(target=make().learn, args=(64,))
    thread.start()
    thread.join()
    assert "another thread" not in caplog.text, "the others are over"


@pytest.mark.parametrize("steps", [0, -5])
def test_a_budget_of_nothing_is_refused(steps: int) -> None:
    with pytest.raises(UserError, match="total_timesteps must be at least 1"):
        make().learn(steps)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"num_env": 2}, "Did you mean 'num_envs'"),
        ({"learning_rates": 1.0}, r"Did you mean 'learning_rate'\?"),
        ({"num_envs": 0}, "num_envs must be at least 1"),
        ({"minibatch_size": 65}, "minibatch_size"),
        ({"squash": True}, "need a Box action space"),
        ({"gsde": True}, "continuous actions"),
    ],
)
def test_a_mistake_in_the_constructor_is_named(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        make(**changes)


@pytest.mark.parametrize("name", ["ppo", "ppg"])
def test_predict_takes_one_observation_or_many(name: str) -> None:
    algorithm = make(name)
    many, state = algorithm.predict(observations())
    assert (many.shape, many.dtype.kind, state) == ((5,), "i", None)
    singles = [algorithm.predict(each)[0] for each in observations()]
    assert all(np.ndim(single) == 0 for single in singles)
    assert many.tolist() == [int(single) for single in singles]
    assert algorithm.predict(observations().tolist())[0].tolist() == many.tolist()
    with torch.no_grad():
        given = TensorDict({"observation": torch.from_numpy(observations())}, [5])
        distribution = algorithm.policy.get_dist(given)  # the same policy as a TorchRL module
    assert distribution.probs.argmax(-1).tolist() == many.tolist()


def test_samples_differ_and_do_not_touch_training() -> None:
    one, other = make(), make()
    one.learn(64)
    drawn = [one.predict(observations(1)[0], deterministic=False)[0] for _ in range(40)]
    assert {int(action) for action in drawn} == {0, 1}
    assert len({int(one.predict(observations(1)[0])[0]) for _ in range(5)}) == 1
    one.evaluate(episodes=2)
    assert torch.equal(parameters(one.learn(64)), parameters(other.learn(128)))


@pytest.mark.parametrize("shape", [(3,), (5, 3), (), (2, 5, 4), (4, 1)])
def test_an_observation_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"observation of shape .* fits neither \(4,\) nor"):
        make().predict(np.zeros(shape, np.float32))


def test_masks_are_refused() -> None:
    with pytest.raises(UserError, match="action_masks: this policy takes none"):
        make().predict(observations(), action_masks=np.ones((5, 2), bool))


@pytest.mark.parametrize("name", ["ppo", "ppg"])
def test_collector_and_update_are_what_learn_does(name: str) -> None:
    managed = make(name).learn(192)
    own = make(name)
    for batch in own.collector():
        metrics = own.update(batch)
        assert all(value.ndim == 0 for value in metrics.values())
        if own.global_step >= 192:
            break
    assert batch.shape == (2, 32)
    assert torch.equal(parameters(own), parameters(managed))


def test_a_loop_of_one_s_own_may_use_the_parts_alone() -> None:
    algorithm = make()
    batch = next(iter(algorithm.collector()))
    algorithm.advantages(batch)
    samples = batch.reshape(-1)
    losses = algorithm.loss_module(
        samples.select("observation", "action", "action_log_prob").update(
            {key: samples[key].squeeze(-1) for key in ("advantage", "value_target", "state_value")}
        )
    )
    (losses["loss_objective"] + losses["loss_critic"]).backward()
    before = parameters(algorithm).clone()
    algorithm.optimizers["policy"].step()
    assert not torch.equal(parameters(algorithm), before)
