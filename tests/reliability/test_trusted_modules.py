"""Code that a checkpoint's config names is imported only with its user's consent."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_training import PPO, evaluate_checkpoint, predict_checkpoint, resume_checkpoint, train
from rl_training.cli import main
from rl_training.config import config_from_dict
from rl_training.errors import UserError
from rl_training.workflows import load_algorithm

ENVIRONMENT = """
import gymnasium
gymnasium.register("Planted-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv",
                   max_episode_steps=20)
"""
NETWORK = """
from rl_training.models.mlp import MLP
class Encoder(MLP):
    def __init__(self, *, observation_shape, hidden_sizes, activation):
        super().__init__(input_shape=observation_shape, hidden_sizes=hidden_sizes,
                         activation=activation)
"""
BOTH = r"planted_environment, planted_network.*trust_modules=True.*--trust-modules"


def forget() -> None:
    for name in ("planted_environment", "planted_network"):
        sys.modules.pop(name, None)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "planted_environment.py").write_text(ENVIRONMENT)
    (tmp_path / "planted_network.py").write_text(NETWORK)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings: dict[str, Any] = {
        "algo": "ppo",
        "env_id": "planted_environment:Planted-v0",
        "num_envs": 2,
        "total_timesteps": 64,
        "output_dir": str(tmp_path / "runs"),
        "algorithm": {"num_steps": 16, "minibatch_size": 16},
        "model": {"encoder": "planted_network:Encoder", "hidden_sizes": [8]},
        "evaluation": {"final": False},
        "tracking": {"tensorboard": False},
    }
    result = train(config_from_dict(settings, source="test"))
    forget()
    yield result.run_dir
    forget()


CALLS: list[Callable[..., Any]] = [
    lambda run, **trust: evaluate_checkpoint(run, episodes=1, **trust),
    lambda run, **trust: resume_checkpoint(run, total_timesteps=96, **trust),
    lambda run, **trust: predict_checkpoint(run, [0.0] * 4, **trust),
    lambda run, **trust: load_algorithm(run, **trust),
    lambda run, **trust: PPO.load(run, **trust),
]


@pytest.mark.parametrize("call", CALLS)
def test_nothing_is_imported_unasked(call: Callable[..., Any], run: Path) -> None:
    with pytest.raises(UserError, match=BOTH) as caught:
        call(run)
    assert "\n" not in str(caught.value)
    assert not {"planted_environment", "planted_network"} & set(sys.modules)
    call(run, trust_modules=True)


def test_what_is_imported_already_needs_no_consent(run: Path) -> None:
    import planted_environment  # type: ignore[import-not-found]  # noqa: F401

    with pytest.raises(UserError, match=r"\(planted_network\)"):
        evaluate_checkpoint(run, episodes=1)
    import planted_network  # type: ignore[import-not-found]  # noqa: F401

    assert evaluate_checkpoint(run, episodes=1)["episodes"] == 1


def test_an_environment_that_is_given_needs_no_module(run: Path) -> None:
    with pytest.raises(UserError, match=r"\(planted_network\)"):
        evaluate_checkpoint(run, episodes=1, env="CartPole-v1")


def test_the_command_line_asks_and_says_how(run: Path, capsys: Any) -> None:
    for words in (["eval", str(run), "--episodes", "1"], ["resume", str(run)]):
        assert main(words) == 2
        assert "--trust-modules" in capsys.readouterr().err
        assert main([*words, "--trust-modules"]) == 0
        forget()
    assert main(["resume", str(run), "--total-timesteps", "96", "--trust-modules"]) == 0
    printed = capsys.readouterr().out
    assert f" eval {run} --trust-modules" in printed
    assert f" resume {run} --total-timesteps N --trust-modules" in printed


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("encoder", "os:system", "model.encoder: os:system must be a class"),
        ("network", "os:system", "model.network: os:system must be a subclass"),
        ("network", "subprocess:Popen", "model.network: subprocess:Popen must be a subclass"),
    ],
)
def test_what_is_no_network_is_never_called(
    key: str, value: str, complaint: str, run: Path
) -> None:
    data = json.loads((next(run.glob("checkpoints/step_*")) / "config.json").read_text())
    data["model"] = {key: value}
    data["env_id"] = "CartPole-v1"
    with pytest.raises(UserError, match=complaint):
        PPO(config=config_from_dict(data, source="test"))
