"""Mistakes in calls, closed and broken objects, callbacks that do not match: one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training import (
    DQN,
    PPO,
    Callback,
    TrainConfig,
    UserError,
    evaluate_checkpoint,
    load_config,
    predict_checkpoint,
    replace_config,
    resume_checkpoint,
    train,
)
from rl_training.arguments import ATTRIBUTES_ELSEWHERE
from rl_training.cli import main
from rl_training.config import validate
from rl_training.runtime.callbacks import TrainContext
from tests.api.runs import SMALL, make, observations
from tests.recipes.environments import Identity


@pytest.mark.parametrize("steps", ["100", True, 1.5, float("nan"), [64]])
def test_a_budget_is_a_whole_number(steps: Any) -> None:
    with pytest.raises(UserError, match="total_timesteps must be a whole number"):
        make().learn(steps)


def test_any_kind_of_whole_number_will_do() -> None:
    assert make().learn(np.int64(64)).learn(64.0).global_step == 128


@pytest.mark.parametrize("episodes", ["a", True, 0])
def test_episodes_are_a_whole_number(episodes: Any) -> None:
    with pytest.raises(UserError, match="episodes must be"):
        make().evaluate(episodes)


@pytest.mark.parametrize("callbacks", [[Callback], Callback(), ["x"], "x"])
def test_callbacks_are_a_list_of_callbacks(tmp_path: Path, callbacks: Any) -> None:
    with pytest.raises(UserError, match="callbacks"):
        make(output_dir=str(tmp_path)).learn(64, callbacks=callbacks)
    assert list(tmp_path.iterdir()) == []


def test_a_closed_algorithm_only_predicts_and_evaluates(tmp_path: Path) -> None:
    algorithm = make(episodes=1)
    algorithm.learn(64)
    algorithm.close()
    for act in (
        lambda: algorithm.learn(64),
        lambda: algorithm.save(tmp_path / "whole"),
        algorithm.state_dict,
    ):
        with pytest.raises(UserError, match="this ppo is closed"):
            act()
    assert algorithm.predict(observations())[0].shape == (5,)
    assert algorithm.evaluate(1)["episodes"] == 1
    assert algorithm.save(tmp_path / "policy", policy_only=True).is_dir()


class Breaks(Identity):
    def step(self, action: Any) -> Any:
        self.taken = getattr(self, "taken", 0) + 1
        if self.taken == 40:
            raise OSError("the simulator is gone")
        return super().step(action)


def test_after_a_failure_inside_an_iteration_learning_is_refused(tmp_path: Path) -> None:
    algorithm = make(env=Breaks)
    with pytest.raises(RuntimeError, match="the simulator is gone"):
        algorithm.learn(640)
    actions: list[Callable[[], Any]] = [
        lambda: algorithm.learn(64),
        lambda: algorithm.save(tmp_path / "x"),
    ]
    for act in actions:
        with pytest.raises(UserError, match="failed in the middle of an iteration"):
            act()


class Counts(Callback):
    def __init__(self) -> None:
        self.count = 0

    def on_iteration(self, context: TrainContext, metrics: Mapping[str, float]) -> None:
        self.count += 1

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]


class Other(Counts):
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        raise AssertionError("another class's state")


def test_callbacks_find_their_states_by_class_and_the_rest_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = TrainConfig(algo="ppo", env_id="CartPole-v1", output_dir=str(tmp_path))
    config = replace_config(config, **SMALL, final=False, total_timesteps=128)
    run = train(config, callbacks=[Counts()]).run_dir
    other, counts = Other(), Counts()
    resume_checkpoint(run, total_timesteps=192, callbacks=[other, counts])
    assert (other.count, counts.count) == (1, 3)
    assert "no state of Other" in caplog.text
    caplog.clear()
    resume_checkpoint(run, total_timesteps=256)
    assert "callbacks that are not given now: Other, Counts" in caplog.text


class FailsAtTheEnd(Callback):
    def __init__(self, name: str, calls: list[str]) -> None:
        self._name, self._calls = name, calls

    def on_train_end(self, context: TrainContext) -> None:
        self._calls.append(self._name)
        raise RuntimeError(self._name)


def test_every_callback_is_told_of_the_end_though_one_fails() -> None:
    calls: list[str] = []
    with pytest.raises(RuntimeError, match="first"):
        make().learn(64, callbacks=[FailsAtTheEnd("first", calls), FailsAtTheEnd("second", calls)])
    assert calls == ["first", "second"]


@pytest.mark.parametrize(
    ("call", "word", "here"),
    [
        ("learn", "callback", "Here it is callbacks=[...]."),
        ("learn", "progress_bar", "Here it is progress=."),
        ("learn", "log_interval", "Here it is tracking.log_interval, of the constructor"),
        ("learn", "tb_log_name", "Here it is output_dir"),
        ("learn", "reset_num_timesteps", "Here it is a new object"),
        ("learn", "callbaks", "Did you mean 'callbacks'?"),
        ("learn", "n_steps", "Here it is num_steps, of the constructor."),
        ("learn", "zzz", "It takes total_timesteps, callbacks, progress, reschedule."),
        ("evaluate", "n_eval_episodes", "Here it is episodes=."),
        ("save", "include", "save() takes no 'include'."),
    ],
)
def test_a_call_s_unknown_keyword_is_named_in_our_words(call: str, word: str, here: str) -> None:
    algorithm = make()
    with pytest.raises(UserError) as refused:
        getattr(algorithm, call)(**{word: 1})
    assert str(refused.value).startswith(f"{call}() takes no {word!r}.")
    assert here in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("call", "word", "here"),
    [
        (train, "callback", "Here it is callbacks=[...]."),
        (train, "eval_freq", "Here it is evaluation.interval, of the config."),
        (train, "n_steps", "Here it is num_steps, of the config."),
        (train, "progres", "Did you mean 'progress'?"),
        (resume_checkpoint, "callback", "Here it is callbacks=[...]."),
        (evaluate_checkpoint, "n_eval_episodes", "Here it is episodes=."),
        (evaluate_checkpoint, "callback", "'callback'. It takes path, best, episodes, "),
        (predict_checkpoint, "determinstic", "Did you mean 'deterministic'?"),
    ],
)
def test_so_is_that_of_a_workflow(call: Callable[..., Any], word: str, here: str) -> None:
    with pytest.raises(UserError) as refused:
        call("nothing is read", **{word: 1})
    assert str(refused.value).startswith(f"{call.__name__}() takes no {word!r}.")
    assert here in str(refused.value)


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("num_timesteps", "global_step"),
        ("set_env", "PPO.load(path, env=...), of what save(path) wrote"),
        ("get_env", "environment"),
    ],
)
def test_an_attribute_of_another_library_is_named_in_our_words(name: str, here: str) -> None:
    algorithm = make()
    with pytest.raises(AttributeError) as refused:
        getattr(algorithm, name)
    assert str(refused.value) == f"PPO has no {name!r}. Here it is {here}."
    assert not hasattr(algorithm, name)


def test_names_of_another_library_lead_to_names_of_ours() -> None:
    algorithm = DQN("CartPole-v1", n_steps=3)
    assert algorithm.n_steps == 3, "a name that an algorithm has itself stays"
    places = (ATTRIBUTES_ELSEWHERE[name].partition("(")[0] for name in ATTRIBUTES_ELSEWHERE)
    plain = [place for place in places if place.isidentifier()]
    assert len(plain) > 5
    for place in plain:
        assert hasattr(algorithm, place), place


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({"algo": "ppo"}, r"not a dict: config_from_dict\(data, source=...\)"),
        ("ppo_cartpole", r"not a str: load_config\(path\)"),
        (None, r"not a NoneType: TrainConfig\(algo=..., env_id=...\)"),
    ],
)
def test_a_config_is_a_config(given: Any, made: str) -> None:
    calls: list[Callable[[Any], Any]] = [train, validate, replace_config]
    calls += [] if given is None else [PPO.from_config]
    for call in calls:
        with pytest.raises(UserError, match=f"a TrainConfig is needed, {made}"):
            call(given)


@pytest.mark.parametrize("value", ["lin_3e-4", lambda left: 3e-4 * left])
@pytest.mark.parametrize(
    ("algo", "key", "field"),
    [
        ("ppo", "learning_rate", "learning_rate_schedule"),
        ("ppo", "clip_epsilon", "clip_schedule"),
        ("dqn", "learning_rate", "learning_rate_schedule"),
    ],
)
def test_a_schedule_in_a_number_s_place_is_told_its_field(
    algo: str, key: str, field: str, value: Any
) -> None:
    config = TrainConfig(algo=algo, env_id="CartPole-v1")
    told = f" Its schedule is a field of its own, beside the number: {field}, constant or linear."
    with pytest.raises(UserError) as refused:
        replace_config(config, **{key: value})
    assert str(refused.value).endswith(told)
    assert getattr(replace_config(config, **{field: "linear"}).algorithm, field) == "linear"
    with pytest.raises(UserError, match=r"expected a number, not 'three'\.$"):
        replace_config(config, **{key: "three"})


def test_a_schedule_in_a_file_is_told_its_field(tmp_path: Path) -> None:
    path = tmp_path / "zoo.yaml"
    lines = "algo: ppo\nenv_id: CartPole-v1\nalgorithm: {learning_rate: lin_3e-4}\n"
    path.write_text(lines, encoding="utf-8")
    with pytest.raises(UserError, match=r"zoo\.yaml.*'lin_3e-4'\. .*: learning_rate_schedule, "):
        load_config(path)


def test_so_is_one_in_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--algo", "ppo", "--env-id", "CartPole-v1", "--algorithm.learning-rate"]
    for value in ("lin_3e-4", "three"):
        assert main([*words, value]) == 2
        err = capsys.readouterr().err
        assert f"--algorithm.learning-rate: expected a number, not '{value}'." in err
        assert ("beside the number: learning_rate_schedule" in err) == (value == "lin_3e-4")


def test_a_callback_given_to_the_constructor_is_named_too() -> None:
    with pytest.raises(UserError, match=r"'callback'\. Here it is learn\(callbacks="):
        make(callback=[])
