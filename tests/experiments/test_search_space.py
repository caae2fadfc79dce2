"""Search spaces: every algorithm has one, every preset fits into it, files are read strictly."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest

from rl_training.config import config_to_dict, load_config, preset_paths, replace_config
from rl_training.errors import UserError
from rl_training.experiments.search_space import (
    GIVEN,
    Dimension,
    choice,
    default_space,
    fitted,
    logarithmic,
    own_values,
    read_space,
)
from rl_training.experiments.search_spaces import SEARCH_SPACES
from rl_training.experiments.study import Study
from rl_training.registry import ALGORITHMS, algorithm_class

PRESETS = [name for name in preset_paths() if not name.startswith("tiny")]


class Draws:
    """What a search space asks of a trial, evenly drawn."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def suggest_categorical(self, name: str, choices: list[Any]) -> Any:
        return self._random.choice(choices)

    def suggest_int(self, name: str, low: int, high: int, *, log: bool) -> int:
        return self._random.randint(low, high)

    def suggest_float(self, name: str, low: float, high: float, *, log: bool) -> float:
        if not log:
            return self._random.uniform(low, high)
        return math.exp(self._random.uniform(math.log(low), math.log(high)))


def test_every_algorithm_has_a_space() -> None:
    assert set(SEARCH_SPACES) == set(ALGORITHMS)
    for algo in ALGORITHMS:
        preset = next(
            name for name in PRESETS if load_config(name).algo == algo and "/" not in name
        )
        assert default_space(load_config(preset)) == SEARCH_SPACES[algo]
    names = default_space(load_config("atari/ppo_pong"))
    assert "algorithm.num_steps" in names and "model.hidden_sizes" not in names


def test_there_are_presets() -> None:
    assert len(PRESETS) > 20


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_s_own_values_are_in_its_space(preset: str) -> None:
    config = load_config(preset)
    space = fitted(default_space(config), config)
    own = own_values(space, config)
    assert own is not None
    assert replace_config(config, **{k: space[k].value(v) for k, v in own.items()}) == config


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_what_is_drawn_can_be_trained(algo: str) -> None:
    config = load_config(next(name for name in PRESETS if load_config(name).algo == algo))
    space = fitted(default_space(config), config)
    accepted = 0
    for seed in range(20):
        draws = Draws(seed)
        drawn = {name: each.value(each.suggest(draws, name)) for name, each in space.items()}
        try:
            made = replace_config(config, **drawn)
        except UserError:  # sizes that do not fit together; a study draws anew
            continue
        accepted += 1
        assert made.algorithm.learning_rate == drawn["algorithm.learning_rate"]
    assert accepted >= 10


def test_an_algorithm_may_bring_its_own_space(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"algorithm.num_epochs": choice(1, 2)}
    monkeypatch.setattr(algorithm_class("ppo"), "search_space", own, raising=False)
    assert default_space(load_config("ppo_cartpole")) == own


def test_a_choice_keeps_the_kind_of_its_values() -> None:
    dimension = choice(None, 1.0, "a", [64, 64], True).with_value(2)
    assert dimension is not None
    assert [dimension.value(dimension.drawn(each)) for each in dimension.choices or []] == [
        *(None, 1, "a", [64, 64], True),
        2,
    ]
    assert dimension.with_value(1) is dimension
    assert logarithmic(1e-3, 1.0).with_value(0.0) is None
    assert logarithmic(1e-3, 1.0).with_value(None) is None
    assert Dimension(low=1, high=4, whole=True).with_value(9) == Dimension(
        low=1, high=9, whole=True
    )


def test_a_file_is_read_strictly(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("algorithm.num_steps: {low: 8, high: 64, log: true, whole: true}\n", "utf-8")
    assert read_space(path) == {
        "algorithm.num_steps": Dimension(low=8, high=64, log=True, whole=True)
    }


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[1]", "expected names of fields"),
        ("algorithm.num_steps: 3", "expected choices, or low and high"),
        ("algorithm.num_steps: {lo: 3}", "lo"),
        ("algorithm.num_steps: {low: a, high: 3}", "algorithm.num_steps.low"),
    ],
)
def test_a_mistake_in_a_file_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=complaint) as caught:
        read_space(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("dimension", "complaint"),
    [
        (Dimension(), "needs choices, or low and high"),
        (Dimension(low=2, high=1), "needs a low below its high"),
        (Dimension(choices=[]), "must not be empty"),
        (Dimension(choices=[1], low=1, high=2), "has choices, and so no low"),
    ],
)
def test_a_dimension_that_cannot_be_is_refused(dimension: Dimension, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        fitted({"num_envs": dimension}, load_config("ppo_cartpole"))


@pytest.mark.parametrize(
    ("name", "dimension", "complaint"),
    [
        ("seed", choice(1, 2), "seed is the study's own and cannot be searched"),
        ("output_dir", choice("elsewhere"), "output_dir is the study's own"),
        ("evaluation.interval", choice(100), "evaluation.interval is the study's own"),
        ("algo", choice("ppo", "dqn"), "algo is the study's own"),
        ("algorithm.learning_rate", choice(1e-3, "fast"), "of algorithm.learning_rate: expected"),
        ("model.hidden_sizes", choice([64], 64), "of model.hidden_sizes: expected"),
        (
            "algorithm.num_steps",
            Dimension(low=16, high=64),
            r"of algorithm.num_steps: expected a whole number, not .* Add whole: true",
        ),
        (
            "algorithm.num_steps",
            Dimension(low=16.5, high=64, whole=True),
            "algorithm.num_steps.low must be a whole number where whole is true",
        ),
    ],
)
def test_what_no_trial_could_take_is_refused_before_the_first(
    name: str, dimension: Dimension, complaint: str, tmp_path: Path
) -> None:
    pytest.importorskip("optuna", reason="needs the extra tune")
    with pytest.raises(UserError, match=complaint):
        Study("ppo_cartpole", output_dir=tmp_path / "study", space={name: dimension})
    assert not (tmp_path / "study").exists()


def test_values_that_fit_their_field_are_taken() -> None:
    config = load_config("ppo_cartpole")
    space = {
        "algorithm.num_steps": Dimension(low=16, high=64, whole=True),
        "algorithm.learning_rate": Dimension(low=1, high=3),
        "algorithm.minibatch_size": choice(100_000),  # not with these environments, but by itself
        "model.hidden_sizes": choice([8], [8, 8]),
        "env.normalize_observation": choice(True, False),
    }
    assert set(fitted(space, config)) == set(space)


def test_a_study_sets_what_may_not_be_searched() -> None:
    pytest.importorskip("optuna", reason="needs the extra tune")
    config = load_config("ppo_cartpole")
    before = config_to_dict(config)
    after = config_to_dict(Study(config).config({}, 77, Path("elsewhere")))
    changed = {
        f"{group}.{key}"
        for group in ("evaluation", "checkpoint", "tracking")
        for key in before[group]
        if before[group][key] != after[group][key]
    } | {key for key in ("seed", "output_dir", "total_timesteps") if before[key] != after[key]}
    assert changed <= GIVEN
    assert {"seed", "output_dir", "evaluation.interval"} <= changed
