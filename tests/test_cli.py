from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import rl_training
from rl_training import cli, registry
from rl_training.config import TrainConfig, dump_yaml, find_preset
from rl_training.errors import UserError
from tests import stand_in

CARTPOLE = ["--algo", "ppo", "--env-id", "Nowhere-v0"]  # no preset


@dataclass
class Result:
    run_dir: Path = Path("runs/one")
    metrics: dict[str, float] = field(default_factory=lambda: {"global_step": 1000})
    status: str = "finished"
    exit_code: int = 0
    evaluation: dict[str, Any] | None = None
    reason: str | None = None


REPORT = {
    "return_mean": 10.0,
    "return_std": 1.0,
    "return_iqm": 10.5,
    "return_ci95": [9.0, 11.0],
    "returns": [9.0, 11.0],
    "lengths": [9, 11],
    "episodes": 2,
    "seed": 7,
    "deterministic": True,
    "checkpoint": "runs/one/checkpoints/step_000000001000",
}


class Workflows:
    """Stands for `rl_training.workflows`: notes each call and answers with what the test set."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.answer: Any = Result()

    def _note(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((name, args, kwargs))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def train(self, *args: Any, **kwargs: Any) -> Any:
        return self._note("train", *args, **kwargs)

    def resume_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        return self._note("resume", *args, **kwargs)

    def evaluate_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        return self._note("evaluate", *args, **kwargs)


@pytest.fixture
def workflows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Workflows:
    fake = Workflows()
    (tmp_path / "runs" / "one").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "rl_training.workflows", fake)
    monkeypatch.setattr(rl_training, "workflows", fake, raising=False)
    return fake


@pytest.fixture(autouse=True)
def _stand_in_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, place in stand_in.ALGORITHMS.items():
        monkeypatch.setitem(registry.ALGORITHMS, name, place)


def mistake(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("rl-training: error: ")
    assert err.count("\n") == 1
    return err.removeprefix("rl-training: error: ").rstrip("\n")


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_what_an_evaluation_counted_is_said(
    workflows: Workflows, capsys: pytest.CaptureFixture[str]
) -> None:
    workflows.answer = REPORT
    cli.main(["eval", "runs/one"])
    assert "played      2 episodes, 10.0 steps each, deterministic" in capsys.readouterr().out
    workflows.answer = {**REPORT, "agents": 3, "episodes_cut": 1}
    cli.main(["eval", "runs/one"])
    told = "played      2 games of 3 agents (the return is their mean) (1 cut by evaluation.max_"
    assert told in capsys.readouterr().out


# ---- train


def test_every_field_is_a_typed_flag() -> None:
    words = """--seed 3 --total-timesteps 2e4 --num-envs=4 --tags a b --compile --output-dir out
        --algorithm.num-epochs 7 --algorithm.learning-rate 3e-4 --algorithm.target-kl 2e-2
        --algorithm.schedule linear --algorithm.betas 0.5 0.6 --model.hidden-sizes 32 16
        --checkpoint.interval 10000 --evaluation.interval 10000 --evaluation.episodes 20
        --evaluation.stop-on-return -150 --env.normalize-observation --no-env.normalize-reward
        --tracking.wandb offline --tracking.no-tensorboard --init-from runs/other"""
    given = [*CARTPOLE, *words.split(), "--env-kwargs", "{max_episode_steps: 100, mode: off}"]
    config = cli.parse_train(given)
    assert type(config) is TrainConfig
    assert (config.algo, config.env_id, config.seed) == ("ppo", "Nowhere-v0", 3)
    assert (config.total_timesteps, config.num_envs, config.tags) == (20_000, 4, ["a", "b"])
    assert (config.compile, config.output_dir, config.init_from) == (True, "out", "runs/other")
    assert config.env_kwargs == {"max_episode_steps": 100, "mode": "off"}
    assert config.algorithm == stand_in.PPOConfig(
        num_epochs=7, learning_rate=3e-4, target_kl=0.02, schedule="linear", betas=(0.5, 0.6)
    )
    assert config.model.hidden_sizes == [32, 16]
    assert (config.checkpoint.interval, config.evaluation.interval) == (10_000, 10_000)
    assert (config.evaluation.episodes, config.evaluation.stop_on_return) == (20, -150.0)
    assert (config.env.normalize_observation, config.env.normalize_reward) == (True, False)
    assert (config.tracking.wandb, config.tracking.tensorboard) == ("offline", False)


def test_flags_override_files_and_later_files_earlier_ones(tmp_path: Path) -> None:
    one = write(
        tmp_path / "one.yaml", "algo: ppo\nenv_id: A-v0\nseed: 1\ncompile: true\nnum_envs: 3\n"
    )
    two = write(
        tmp_path / "two.yaml", "seed: 2\nevaluation: {seed: 4}\ncheckpoint: {interval: 5}\n"
    )
    words = [
        "--config",
        one,
        f"--config={two}",
        "--env-id",
        "B-v0",
        "--num-envs",
        "5",
        "--no-compile",
    ]
    config = cli.parse_train([*words, "--checkpoint.interval", "None"])
    assert (config.env_id, config.seed, config.num_envs, config.compile) == ("B-v0", 2, 5, False)
    assert (config.evaluation.seed, config.checkpoint.interval) == (4, None)


def test_without_a_file_the_preset_of_algorithm_and_environment_is_taken() -> None:
    registry.ALGORITHMS["ppo"] = "rl_training.recipes.ppo:PPO"
    expected = cli.parse_train(["--config", str(find_preset("ppo_cartpole"))])
    assert cli.parse_train(["--algo", "ppo", "--env-id", "CartPole-v1"]) == expected
    assert expected.algorithm.num_epochs == 20
    tiny = cli.parse_train(["--config", "tiny", "--algo", "ppo", "--env-id", "CartPole-v1"])
    assert (tiny.total_timesteps, tiny.algorithm.num_epochs) == (256, 20)


def test_without_file_and_preset_the_defaults_are_taken() -> None:
    assert cli.parse_train(CARTPOLE) == TrainConfig(algo="ppo", env_id="Nowhere-v0")


def test_the_config_of_a_run_is_a_file_like_any_other(tmp_path: Path) -> None:
    config = cli.parse_train([*CARTPOLE, "--seed", "5", "--env-kwargs", "{a: [1, null]}"])
    path = write(tmp_path / "config.yaml", dump_yaml(config))
    assert cli.parse_train(["--config", path]) == config


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "what to train is missing"),
        (["--env-id", "A-v0"], "what to train is missing"),
        (["--algo", "ppo"], "the environment is missing"),
        (["--algo", "ppp", "--env-id", "A-v0"], "unknown algorithm 'ppp'. Did you mean"),
        (["--algo", "ppo", "--algo", "ppg"], "--algo is given twice, as ppo and ppg."),
        (["--config"], "--config needs a value."),
        (["--config", "--seed", "3"], "--config needs a value."),
        (["--config", "ppo_cartpol"], "Did you mean 'ppo_cartpole'?"),
        (["--config", "ppo_cartpole", "--algo", "ppg"], "is a config of ppo, not of ppg."),
        ([*CARTPOLE, "--num-env", "3"], "unknown flag '--num-env'. Did you mean '--num-envs'?"),
        ([*CARTPOLE, "--learning-rate=3"], "Did you mean '--algorithm.learning-rate'?"),
        ([*CARTPOLE, "--num-envs", "x"], "--num-envs: expected a whole number, not 'x'."),
        ([*CARTPOLE, "--num-envs", "0"], "command line: num_envs must be at least 1, not 0."),
        ([*CARTPOLE, "--num-envs"], "--num-envs"),
        ([*CARTPOLE, "--compile", "maybe"], "maybe"),
        ([*CARTPOLE, "stray"], "stray"),
        ([*CARTPOLE, "--algorithm.schedule", "cubic"], "'linear'"),
        ([*CARTPOLE, "--algorithm.target-kl", "x"], "expected a number or null, not 'x'."),
        ([*CARTPOLE, "--env-kwargs", "3"], "--env-kwargs: expected a mapping, not 3."),
        ([*CARTPOLE, "--env-kwargs", "{a"], "--env-kwargs: line 1"),
        (
            [*CARTPOLE, "--num-envs", "1"],
            "command line: minibatch_size 64 is above the batch of 32.",
        ),
    ],
)
def test_a_mistake_in_train_is_one_line(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str], workflows: Workflows
) -> None:
    assert complaint in mistake(["train", *words], capsys)
    assert workflows.calls == []


def test_a_mistake_in_a_file_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "bad.yaml", "algo: ppo\nenv_id: A-v0\nnum_envs: 0\n")
    assert (
        mistake(["train", "--config", path], capsys)
        == f"{path}: num_envs must be at least 1, not 0."
    )
    assert cli.parse_train(["--config", path, "--num-envs", "2"]).num_envs == 2
    path = write(tmp_path / "bad.yaml", "algo: ppo\nenv_id: A-v0\nalgorithm: {num_epoch: 0}\n")
    assert mistake(["train", "--config", path], capsys).startswith(
        f"{path}: unknown key 'algorithm.num_epoch'. Did you mean 'algorithm.num_epochs'?"
    )
    # Of another algorithm: no field of another group was meant.
    text = "algo: ppo\nenv_id: A-v0\nalgorithm: {policy_iterations: 2}\n"
    said = mistake(["train", "--config", write(tmp_path / "bad.yaml", text)], capsys)
    assert "unknown key 'algorithm.policy_iterations'. Valid here: algorithm." in said
    text = "algo: ppo\nenv_id: A-v0\nalgorithm: {sticky_action: 2}\n"
    said = mistake(["train", "--config", write(tmp_path / "bad.yaml", text)], capsys)
    assert "Did you mean 'env.atari.sticky_actions'?" in said


def test_train_calls_the_workflow_and_says_what_comes_next(
    workflows: Workflows, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", str)
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/rl-training", "train"])
    workflows.answer = Result(evaluation=REPORT, reason="goal reached")
    assert cli.main(["train", *CARTPOLE, "--seed", "2"]) == 0
    [(name, (config,), options)] = workflows.calls
    assert (name, config.seed) == ("train", 2)
    command = ["rl-training", "train", *CARTPOLE, "--seed", "2"]
    assert options == {"command": command, "progress": True}
    out = capsys.readouterr().out
    assert "finished at step 1,000: goal reached" in out
    assert "return 10.0 ± 1.0 over 2 episodes" in out
    assert "rl-training eval runs/one" in out
    assert "rl-training resume runs/one --total-timesteps N" in out
    workflows.answer = Result(run_dir=Path("the runs/o'ne"))
    assert cli.main(["train", *CARTPOLE]) == 0
    line = next(each for each in capsys.readouterr().out.splitlines() if " eval " in each)
    assert shlex.split(line)[1:] == ["rl-training", "eval", "the runs/o'ne"]


@pytest.mark.parametrize("word", ["null", "None"])
def test_nothing_is_spelled_as_in_files_or_as_in_python(workflows: Workflows, word: str) -> None:
    words = ["--model.critic-hidden-sizes", word, f"--checkpoint.interval={word}"]
    assert cli.main(["train", *CARTPOLE, *words]) == 0
    [(_, (config,), _)] = workflows.calls
    assert (config.model.critic_hidden_sizes, config.checkpoint.interval) == (None, None)


@pytest.mark.parametrize("status", [130, 143])
def test_a_stopped_run_gives_the_status_of_its_signal(
    workflows: Workflows,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    status: int,
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    workflows.answer = Result(status="interrupted", exit_code=status)
    assert cli.main(["train", *CARTPOLE]) == status
    # The program's name is on no path: the words must start it all the same.
    assert " -m rl_training resume runs/one\n" in capsys.readouterr().out


@pytest.mark.parametrize("path", ["rl_training/__main__.py", "rl_training/recipes/ppo.py"])
def test_a_run_started_as_a_module_is_gone_on_with_as_one(
    workflows: Workflows,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    path: str,
) -> None:
    """An environment in the current directory is found in no other way."""
    monkeypatch.setattr("shutil.which", lambda name: {"python": sys.executable}.get(name, name))
    monkeypatch.setattr("sys.argv", [path, "train"])
    workflows.answer = Result()
    assert cli.main(["train", *CARTPOLE]) == 0
    assert "python -m rl_training eval runs/one\n" in capsys.readouterr().out


def test_a_failure_inside_shows_its_traceback(
    workflows: Workflows, capsys: pytest.CaptureFixture[str]
) -> None:
    workflows.answer = ValueError("inside")
    assert cli.main(["train", *CARTPOLE]) == 1
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert "ValueError: inside" in err


def test_a_user_error_from_inside_is_one_line(
    workflows: Workflows, capsys: pytest.CaptureFixture[str]
) -> None:
    workflows.answer = UserError("no such\nenvironment")
    assert mistake(["train", *CARTPOLE], capsys) == "no such environment"


def test_ctrl_c_outside_of_training_is_no_traceback(
    workflows: Workflows, capsys: pytest.CaptureFixture[str]
) -> None:
    workflows.answer = KeyboardInterrupt()
    assert cli.main(["train", *CARTPOLE]) == 130
    assert capsys.readouterr().err == "rl-training: interrupted\n"


def test_a_recipe_trains_its_own_algorithm(
    workflows: Workflows, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ppg.py", "--env-id", "Nowhere-v0"])
    with pytest.raises(SystemExit) as stop:
        cli.recipe_main("ppg")
    assert stop.value.code == 0
    assert workflows.calls[0][1][0].algo == "ppg"
    monkeypatch.setattr(sys, "argv", ["ppg.py", "--config", "ppo_cartpole"])
    with pytest.raises(SystemExit) as stop:
        cli.recipe_main("ppg")
    assert stop.value.code == 2
    assert "is a config of ppo, not of ppg." in capsys.readouterr().err


# ---- eval, resume, list


def test_eval_passes_its_words_on(workflows: Workflows, capsys: pytest.CaptureFixture[str]) -> None:
    workflows.answer = REPORT
    words = ["--best", "--episodes", "5", "--seed", "7", "--stochastic", "--video", "2"]
    words += ["--device", "cpu"]
    assert cli.main(["eval", "runs/one", *words]) == 0
    [(name, paths, options)] = workflows.calls
    assert (name, paths) == ("evaluate", ("runs/one",))
    assert options == {
        "best": True,
        "episodes": 5,
        "seed": 7,
        "deterministic": False,
        "max_episode_steps": None,
        "trust_modules": False,
        "render": False,
        "video": 2,
        "device": "cpu",
        "progress": True,
    }
    out = capsys.readouterr().out
    assert "10.0 ± 1.0 (interquartile mean 10.5, 95% interval 9.0 to 11.0)" in out


def test_eval_as_json_prints_one_object(
    workflows: Workflows, capsys: pytest.CaptureFixture[str]
) -> None:
    workflows.answer = REPORT
    assert cli.main(["eval", "runs/one", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == REPORT
    assert workflows.calls[0][2]["deterministic"] is True


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "Missing from rl-training eval: RUN_OR_CHECKPOINT"),
        (["a", "b"], "b"),
        (["a", "--episodes", "0"], "--episodes must be at least 1, not 0."),
        (["a", "--episode", "3"], "Did you mean '--episodes'?"),
        (["a", "--seed", "x"], "--seed: expected a whole number"),
        (["a", "--seed", "-1"], "--seed must be at least 0, not -1."),
    ],
)
def test_a_mistake_in_eval_is_one_line(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complaint in mistake(["eval", *words], capsys)


def test_resume_passes_its_words_on(
    workflows: Workflows, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["resume", "runs/one"]) == 0
    words = ["--total-timesteps", "2e5", "--reschedule", "--resume", "approximate"]
    words += ["--device", "cuda:1"]
    assert cli.main(["resume", "runs/one", *words]) == 0
    (_, paths, plain), (_, _, changed) = workflows.calls
    assert paths == ("runs/one",)
    common: dict[str, Any] = {
        "progress": True,
        "command": ["rl-training", "resume", "runs/one"],
        "trust_modules": False,
        "device": None,
    }
    assert plain == common | {"total_timesteps": None, "reschedule": False, "approximate": False}
    common["command"] += words
    common["device"] = "cuda:1"
    assert changed == common | {"total_timesteps": 200_000, "reschedule": True, "approximate": True}
    assert "must be at least 1" in mistake_after(capsys, ["resume", "a", "--total-timesteps", "0"])


def mistake_after(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    capsys.readouterr()
    return mistake(words, capsys)


def test_list_shows_algorithms_and_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    out = capsys.readouterr().out
    assert "ppo" in out
    assert "ppo_cartpole" in out
    assert cli.main(["list", "algorithms"]) == 0
    assert "ppo_cartpole" not in capsys.readouterr().out
    assert "Did you mean 'presets'?" in mistake(["list", "preset"], capsys)


def test_presets_are_listed_in_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "presets"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    table = {line.split()[0]: line for line in lines}
    columns = ["ppo_cartpole", "ppo", "CartPole-v1", "100,000", "500.0"]
    assert table["ppo_cartpole"].split() == columns
    assert table["mujoco/sac_humanoid"].split()[-2:] == ["not", "yet"]
    early = ["5746.3", "after", "100,000"]
    assert table["mujoco/sac_halfcheetah"].split()[-3:] == early
    assert "overlay" in table["tiny"]
    assert lines.index(table["tiny"]) > lines.index(table["td3_pendulum"])
    starts = {len(line) - len(line.split(None, 1)[1]) for line in lines if "overlay" not in line}
    assert len(starts) == 1, "the second column begins at one place"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("a2c", "'a2c' is not in the library; the nearest is ppo, which is A2C with"),
        ("TRPO", "'TRPO' is not in the library; the nearest is ppo."),
        ("ddpg", "the nearest is td3"),
        ("QR-DQN", "the nearest is dqn"),
        ("PPO", "Did you mean 'ppo'?"),
        ("RecurrentPPO", "Did you mean 'recurrent_ppo'?"),
    ],
)
def test_an_algorithm_that_the_field_knows(
    name: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hint in mistake(["train", "--algo", name, "--env-id", "A-v0"], capsys)


# ---- the program


def test_an_unknown_command_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Did you mean 'train'?" in mistake(["trian"], capsys)
    assert "a command is missing" in mistake([], capsys)


@pytest.mark.parametrize("command", ["train", "eval", "resume"])
def test_the_help_of_a_command_shows_its_flags(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    flag = {"train": "--total-timesteps", "eval": "--stochastic", "resume": "--reschedule"}[command]
    out = capsys.readouterr().out
    assert flag in out
    assert ("--config FILE" in out) == (command == "train")


def test_the_help_of_train_with_an_algorithm_shows_its_fields(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", *CARTPOLE, "--help"])
    out = capsys.readouterr().out
    assert "--algorithm.num-epochs" in out
    assert "Passes." in out
    assert "--config FILE" in out
