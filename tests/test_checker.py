"""`check_env` says what is done with an environment, and finds what is wrong with it."""

from __future__ import annotations

import copy
import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rl_training import check_env
from rl_training.checker import refusal
from rl_training.cli import main
from rl_training.errors import UserError
from rl_training.registry import ACTION_SPACES, ALGORITHMS, sees
from tests.recipes.spaces import ACTIONS, OBSERVATIONS, Anything


def anything(observation: str = "Box", action: str = "Discrete") -> Any:
    return copy.deepcopy(Anything(OBSERVATIONS[observation], ACTIONS[action]))


def test_an_environment_of_every_oddity_is_told_in_plain_words() -> None:
    report = check_env(lambda: anything("image among parts", "Dict"), steps=60)
    assert report.ok and not report.notes
    assert report.observation == [
        "camera: an image of 5 x 4 pixels, 1 channel last, 0 to 255, scaled to [0, 1], encoder "
        "impala",
        "inside.0: an image of 3 x 3 pixels, 1 channel first, normalised already, encoder impala",
        "inside.1: one-hot, 3 columns",
        "speed: 2 numbers of float64, shape (2,), as they are",
    ]
    # 9 + 3 + 2 numbers of four bytes, 20 pixels.
    assert report.stored == "stored as uint8 [76], 76 bytes (packed: numbers, then pixels)"
    assert report.action[0] == "gear: one of 4 choices, 2 to 5: a categorical"
    assert "4 choices" not in report.action[1] and report.action[-1].startswith("stored as a row")
    assert "exact, by replaying" in report.resume
    assert report.masks == "none found"
    assert report.time_limit.startswith("none")
    takes = {name for name, reason in report.algorithms.items() if reason is None}
    assert takes == {"ppo", "ppg", "recurrent_ppo", "recurrent_ppg"}
    assert json.loads(json.dumps(report.to_dict()))["ok"] is True
    text = str(report)
    assert "dqn needs Discrete actions, and Dict(" in text and "violations   none" in text


def test_a_registered_environment_is_known_by_its_id() -> None:
    report = check_env("Taxi-v4", steps=20)
    assert report.observation == ["one-hot, 500 columns"]
    assert report.masks.startswith("found in info['action_mask']; not used unless")
    assert report.time_limit.startswith("200 steps")
    assert "videos work" in report.rendering
    with pytest.raises(UserError, match="Did you mean 'Taxi"):
        check_env("Taxy-v4")
    with pytest.raises(UserError, match="is not a gymnasium environment"):
        check_env(3)


def test_kwargs_reach_the_environment_and_an_instance_stays_open() -> None:
    report = check_env("FrozenLake-v1", env_kwargs={"map_name": "8x8"}, steps=5)
    assert report.observation == ["one-hot, 64 columns"]
    env = gymnasium.make("CartPole-v1")
    assert check_env(env, steps=5).environment == "CartPoleEnv"
    env.reset(seed=0)


class Odd(Anything):
    """Breaks one rule."""

    def __init__(self, rule: str) -> None:
        super().__init__(spaces.Box(-9.0, 9.0, (3,), np.float32), spaces.Discrete(2))
        self._rule = rule
        self._time = 0

    def reset(self, **options: Any) -> Any:
        if self._rule == "unseeded":
            return np.random.default_rng().normal(size=3).astype(np.float32).clip(-9, 9), {}
        observation, info = super().reset(**options)
        if self._rule == "old reset":
            return observation
        if self._rule == "reset shape":
            return observation[:2], info
        return observation, info

    def step(self, action: Any) -> Any:
        self._time += 1
        observation, reward, ended, cut, info = super().step(action)
        if self._rule == "drifting":
            observation = observation * 0 + np.float32(self._time % 7)
        last = observation[:1] if ended or cut else observation
        changed = {
            "nan": (observation * np.nan, reward, ended, cut, info),
            "reward nan": (observation, float("nan"), ended, cut, info),
            "reward text": (observation, "much", ended, cut, info),
            "reward array": (observation, np.zeros(2), ended, cut, info),
            "reward of one": (observation, np.zeros(1), ended, cut, info),
            "flag": (observation, reward, 1.0, cut, info),
            "info": (observation, reward, ended, cut, None),
            "four": (observation, reward, ended, info),
            "double": (observation.astype(np.float64), reward, ended, cut, info),
            "outside": (observation + 99, reward, ended, cut, info),
            "terminal": (last, reward, ended, cut, info),
        }
        if self._rule == "raises" and self._time == 3:
            raise ZeroDivisionError("spoon")
        return changed.get(self._rule, (observation, reward, ended, cut, info))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("unseeded", "two resets with the same seed (1) give different observations"),
        ("old reset", "reset must return (observation, info)"),
        ("reset shape", "the observation of reset has the shape (2,), its space says (3,)"),
        ("nan", "the observation of step holds NaN or infinity"),
        ("reward nan", "a reward is nan: training stops there"),
        ("reward text", "a reward must be one number, not '"),
        ("reward array", "a reward must be one number, not of shape (2,)"),
        ("flag", "terminated must be True or False, not float"),
        ("info", "info must be a dict, not NoneType"),
        ("four", "step must return (observation, reward, terminated, truncated, info), not 4"),
        ("raises", "step raises ZeroDivisionError on an action of its own space"),
        ("terminal", "the observation of step at an episode's end has the shape (1,)"),
    ],
)
def test_a_broken_rule_is_a_violation(rule: str, message: str) -> None:
    report = check_env(Odd(rule), steps=60)
    assert not report.ok
    assert any(message in each for each in report.violations), report.violations


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("reward of one", "rewards are arrays of shape (1,)"),
        ("double", "is float64, its space says float32; it is converted"),
        ("outside", "leaves the bounds of its space"),
        ("drifting", "an episode is not the same again"),
    ],
)
def test_what_is_only_odd_is_noted(rule: str, message: str) -> None:
    report = check_env(Odd(rule), steps=30)
    assert report.ok, report.violations
    assert any(message in each for each in report.notes), report.notes
    assert ("not exact" in report.resume) == (rule == "drifting")


def test_a_space_that_nothing_takes_is_the_first_violation() -> None:
    report = check_env(Anything(spaces.Text(3), spaces.Discrete(2)))
    assert len(report.violations) == 1 and "Text" in report.violations[0]
    assert all(report.algorithms.values())


def test_what_leaves_its_discrete_space_is_a_violation() -> None:
    class Astray(Anything):
        def step(self, action: Any) -> Any:
            return (9, *super().step(action)[1:])

    report = check_env(Astray(spaces.Discrete(3), spaces.Discrete(2)), steps=5)
    assert any("is 9, which is not in its space" in each for each in report.violations)


def test_masks_are_found_wherever_they_are() -> None:
    class Masked(Anything):
        def action_masks(self) -> Any:
            return [True, False]

    report = check_env(Masked(OBSERVATIONS["Box"], spaces.Discrete(2)), steps=5)
    assert "found in action_masks(); not used unless env.action_masks is 'method'" in report.masks


@pytest.mark.parametrize("name", ALGORITHMS)
def test_refusals_are_those_of_the_table(name: str) -> None:
    for kind, space in ACTIONS.items():
        reason = refusal(name, OBSERVATIONS["Box"], space)
        assert (reason is None) == (kind in ACTION_SPACES[name])
        assert reason is None or reason.startswith(f"{name} needs ")
    for kind, space in OBSERVATIONS.items():
        for action in ACTION_SPACES[name]:
            reason = refusal(name, space, ACTIONS[action])
            assert (reason is None) == sees(name, kind, action)
    matrix = spaces.Box(-1.0, 1.0, (2, 2))
    if "Box" in ACTION_SPACES[name]:
        refuses = refusal(name, OBSERVATIONS["Box"], matrix)
        assert (refuses is None) == (name not in ("sac", "td3"))


def test_the_command_prints_the_report_and_tells_by_its_status(
    capsys: pytest.CaptureFixture[str], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["check-env", "CartPole-v1", "--steps", "20", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] and report["algorithms"]["ppo"] is None
    assert "needs" in report["algorithms"]["td3"]
    (tmp_path / "odd_module.py").write_text(
        "import gymnasium\n"
        "from tests.test_checker import Odd\n"
        "gymnasium.register('OddOne-v0', entry_point=lambda rule: Odd(rule))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = ["check-env", "odd_module:OddOne-v0", "--steps", "20", "--env-kwargs", "{rule: nan}"]
    assert main(words) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "odd_module:OddOne-v0" in shown and "holds NaN or infinity" in shown
    assert main(["check-env", "CartPol-v1"]) == 2
    assert main(["check-env", "CartPole-v1", "--steps", "0"]) == 2
    assert main(["check-env"]) == 2


class Masked(Anything):
    """Insists on legal actions; says which they are in one of three ways."""

    def __init__(self, source: str, action_space: Any, counts: list[int]) -> None:
        inside = {"action_mask": spaces.MultiBinary(sum(counts)), "x": spaces.Box(-1.0, 1.0, (2,))}
        super().__init__(
            spaces.Dict(inside) if source == "observation" else inside["x"], action_space
        )
        self.source, self.counts = source, counts

    def action_masks(self) -> Any:
        return self.mask

    def _seen(self, observation: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self.mask = np.concatenate([self.np_random.permutation(n) == 0 for n in self.counts])
        if self.source == "observation":
            observation = {**observation, "action_mask": self.mask.astype(np.int8)}
        return observation, {**info, "action_masks": self.mask} if self.source == "info" else info

    def reset(self, **options: Any) -> Any:
        return self._seen(*super().reset(**options))

    def step(self, action: Any) -> Any:
        chosen = np.ravel(action) - np.ravel(getattr(self.action_space, "start", 0))
        starts = np.cumsum([0, *self.counts[:-1]])
        assert self.mask[starts + chosen].all(), "illegal"
        observation, reward, *ends, info = super().step(action)
        observation, info = self._seen(observation, info)
        return observation, reward, *ends, info


@pytest.mark.parametrize("source", ["info", "method", "observation"])
@pytest.mark.parametrize(
    ("action_space", "counts"),
    [
        (spaces.Discrete(5, start=-1), [5]),
        (spaces.MultiDiscrete([3, 4], start=[2, 0]), [3, 4]),
        (spaces.MultiBinary(2), [2, 2]),
    ],
)
def test_an_environment_with_masks_is_tried_out_with_legal_actions(
    source: str, action_space: Any, counts: list[int]
) -> None:
    report = check_env(lambda: Masked(source, copy.deepcopy(action_space), counts), steps=40)
    assert report.ok, report.violations
    assert report.tried.startswith("40 steps") and "exact" in report.resume


@pytest.mark.parametrize("source", ["info", "method", "observation"])
def test_an_empty_mask_in_the_info_is_passed_over_as_in_training(source: str) -> None:
    class Silent(Masked):
        def _seen(self, observation: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            observation, info = super()._seen(observation, info)
            return observation, {"action_mask": None, **info}

    report = check_env(lambda: Silent(source, spaces.Discrete(5), [5]), steps=40)
    assert report.ok, report.violations
    assert ("info['action_mask']" in report.masks) == (source == "info")


def test_an_environment_without_its_spaces_is_refused_in_one_line() -> None:
    class Bare(gymnasium.Env[Any, Any]):
        pass

    with pytest.raises(UserError, match="Bare has no observation_space"):
        check_env(Bare)
    with pytest.raises(UserError, match="several agents: check-env looks at one"):
        check_env("mpe2.simple_spread_v3:parallel_env")


def test_an_episode_that_never_ends_is_worth_a_note() -> None:
    class Endless(Anything):
        def step(self, action: Any) -> Any:
            observation, reward, _, _, info = super().step(action)
            return observation, reward, False, False, info

    report = check_env(lambda: Endless(OBSERVATIONS["Box"], spaces.Discrete(2)), steps=30)
    assert report.ok and "no episode ended in 30 steps" in report.notes[-1]


@pytest.mark.parametrize("answer", [np.array([False, False]), "no", None])
def test_a_flag_that_is_none_is_a_violation(answer: Any) -> None:
    class Flags(Anything):
        def step(self, action: Any) -> Any:
            observation, reward, _, truncated, info = super().step(action)
            return observation, reward, answer, truncated, info

    report = check_env(lambda: Flags(OBSERVATIONS["Box"], spaces.Discrete(2)), steps=5)
    assert any("terminated must be True or False" in each for each in report.violations)


def test_what_nothing_takes_is_said_once() -> None:
    report = check_env(Anything(spaces.Text(3), spaces.Discrete(2)))
    assert str(report).count(report.violations[0]) == 1
    assert str(report).count("its spaces are not supported") == 1


@pytest.mark.parametrize(
    ("reward", "words"),
    [(None, "not None"), ("1.5", "not '1.5'"), ([1.0, 2.0], "not of shape (2,)")],
)
def test_a_reward_that_is_none_is_named_and_counted(reward: Any, words: str) -> None:
    class Rewards(Anything):
        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            return observation, reward, *rest

    report = check_env(lambda: Rewards(OBSERVATIONS["Box"], spaces.Discrete(2)), steps=7)
    (violation,) = report.violations
    assert violation == f"a reward must be one number, {words} (seen 7 times)"


def test_findings_that_differ_in_their_numbers_are_one() -> None:
    class Astray(Anything):
        def step(self, action: Any) -> Any:
            self.shown = getattr(self, "shown", 9) + 1
            return (self.shown, *super().step(action)[1:])

    report = check_env(Astray(spaces.Discrete(3), spaces.Discrete(2)), steps=5)
    found = [each for each in report.violations if "not in its space" in each]
    assert found[0].startswith("the observation of step is 10, which is not in its space")
    assert sum("observation of step is" in each for each in found) == 1


def test_an_info_that_is_none_is_the_reset_s_violation() -> None:
    class Silent(Anything):
        def reset(self, **keywords: Any) -> Any:
            return super().reset(**keywords)[0], None

    report = check_env(lambda: Silent(OBSERVATIONS["Box"], spaces.Discrete(2)), steps=5)
    assert report.violations == ["reset must return (observation, info), info a dict"]


def test_a_game_by_its_id_is_told_of_the_standard_pipeline() -> None:
    pytest.importorskip("ale_py")
    notes = [each for each in check_env("ALE/Pong-v5", steps=2).notes if "env.atari" in each]
    assert len(notes) == 1 and "env.atari.enabled: true, or tags: [atari], turns on" in notes[0]
    assert not [each for each in check_env("CartPole-v1", steps=2).notes if "env.atari" in each]
