"""A user's mistake: one line on stderr, exit status 2, and nothing half-written."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from rl_training import PPG, PPO, cli
from rl_training.errors import UserError
from tests.reliability import environments
from tests.reliability.conftest import Reference
from tests.reliability.runs import (
    checkpoints,
    content,
    digest,
    execute,
    execute_anew,
    started,
    wait_for_lines,
)
from tests.reliability.settings import FRAMES, setting, write_setting

ID = environments.environment_id


def refuse(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """Run the command line, which must refuse; return its one line."""
    capsys.readouterr()
    assert cli.main([str(word) for word in words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("rl-training: error: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"algorithm": {"learnin_rate": 1.0}}, "Did you mean 'algorithm.learning_rate'"),
        ({"num_env": 3}, "Did you mean 'num_envs'"),
        ({"algo": "pppo"}, "unknown algorithm 'pppo'. Did you mean 'ppo'"),
        ({"env_id": "CartPol-v1"}, "Did you mean 'CartPole-v1'"),
        ({"env_id": "CartPole-v9"}, "CartPole-v9"),
        ({"env_id": "no_such_package:Env-v0"}, "'no_such_package'"),
        ({"env_kwargs": {"no_such_argument": 1}}, "no_such_argument"),
        ({"num_envs": "many"}, "num_envs"),
        ({"num_envs": 2.5}, "num_envs"),
        ({"num_envs": 0}, "num_envs"),
        ({"seed": True}, "seed"),
        ({"seed": -1}, "seed"),
        ({"compile": "perhaps"}, "compile"),
        ({"total_timesteps": 0}, "total_timesteps"),
        ({"total_timesteps": -5}, "total_timesteps"),
        ({"device": "abacus"}, "abacus"),
        ({"algorithm": {"minibatch_size": 129}}, "algorithm.minibatch_size must lie in [2, 128]"),
        ({"algorithm": {"minibatch_size": 0}}, "algorithm.minibatch_size"),
        ({"algorithm": {"learning_rate": -1.0}}, "algorithm.learning_rate"),
        ({"algorithm": {"discount": 1.5}}, "algorithm.discount"),
        ({"algorithm": {"num_epochs": 0}}, "algorithm.num_epochs"),
        ({"algorithm": {"gsde": True}}, "continuous actions"),
        ({"env_id": ID("UnusualAction")}, "action space Text"),
        ({"env_id": ID("UnusualObservation")}, "['word']"),
        ({"model": {"activation": "sigmoidal"}}, "model.activation"),
        ({"model": {"encoder": "no_such_module:Encoder"}}, "no_such_module"),
        ({"evaluation": {"episodes": 0}}, "evaluation.episodes"),
        ({"checkpoint": {"interval": 0}}, "checkpoint.interval"),
        ({"checkpoint": {"keep_last": 0}}, "checkpoint.keep_last"),
        ({"init_from": "no/such/run"}, "no/such/run"),
    ],
    ids=str,
)
def test_an_impossible_config_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], complaint: str
) -> None:
    output = tmp_path / "runs"
    output.mkdir()
    given = setting("ppo_cartpole", output_dir=str(output), **changes)
    config = write_setting(tmp_path / "config.yaml", given)
    assert complaint in refuse(capsys, "train", "--config", config)
    assert list(output.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["train", "--config", "ppo_cartpol"], "Did you mean 'ppo_cartpole'"),
        (["train", "--algo", "ppo", "--env-id", "CartPole-v1", "--num-envz", "3"], "--num-envs"),
        (["eval", "no/such/run"], "no/such/run"),
        (["resume", "no/such/run"], "no/such/run"),
        (["eval", "a" * 5000], "there is no run or checkpoint aaa"),
        (["resume", ""], "there is no run or checkpoint "),
        (["eval", "."], ". is neither a run directory nor one of a run's checkpoints"),
        (["resume", "."], "."),
    ],
    ids=str,
)
def test_impossible_words_are_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert complaint in refuse(capsys, *words)
    assert list(tmp_path.iterdir()) == []


def test_an_output_directory_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").write_text("a file", encoding="utf-8")
    for output in (tmp_path / "runs", tmp_path / "runs" / "below"):
        given = setting("ppo_cartpole", output_dir=str(output))
        config = write_setting(tmp_path / "config.yaml", given)
        assert str(output) in refuse(capsys, "train", "--config", config)
    assert (tmp_path / "runs").read_text(encoding="utf-8") == "a file"


def test_in_a_process_of_its_own(tmp_path: Path) -> None:
    output = tmp_path / "runs"
    given = setting("ppo_cartpole", env_id="CartPol-v1", output_dir=str(output))
    done = execute_anew("train", "--config", write_setting(tmp_path / "config.yaml", given))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "Did you mean 'CartPole-v1'" in done.stderr
    assert not output.exists()


# ---- checkpoints of others


def test_a_checkpoint_of_another_algorithm_is_refused(
    tmp_path: Path, reference: Reference, capsys: pytest.CaptureFixture[str]
) -> None:
    run = reference("ppg_cartpole_normalized")
    with pytest.raises(UserError, match="holds a 'ppg' policy, not a 'ppo' one"):
        PPO.load(run)
    assert PPG.load(run).name == "ppg"
    output = tmp_path / "runs"
    given = setting("ppo_cartpole", output_dir=str(output), init_from=str(run))
    config = write_setting(tmp_path / "config.yaml", given)
    complaint = refuse(capsys, "train", "--config", config)
    assert "init_from" in complaint
    assert "'ppg'" in complaint
    assert not output.exists()


def test_a_policy_of_another_shape_is_refused(
    tmp_path: Path, reference: Reference, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "runs"
    run = reference("ppo_cartpole")
    for changes in ({"model": {"hidden_sizes": [8]}}, {"env_id": "Acrobot-v1"}):
        given = setting("ppo_cartpole", output_dir=str(output), init_from=str(run), **changes)
        config = write_setting(tmp_path / "config.yaml", given)
        assert "does not fit" in refuse(capsys, "train", "--config", config)
    assert not output.exists()


def test_a_policy_without_training_state_is_not_resumed(
    tmp_path: Path, reference: Reference, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = checkpoints(reference("ppo_cartpole"))[-1] / "policy"
    copy = shutil.copytree(policy, tmp_path / "policy")
    assert str(copy) in refuse(capsys, "resume", copy)
    assert cli.main(["eval", str(copy), "--episodes", "1"]) == 0


def test_the_best_checkpoint_of_a_run_without_one_is_refused(
    tmp_path: Path, reference: Reference, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(reference("ppo_cartpole"), tmp_path / "run")
    (copy / "checkpoints" / "best").unlink()
    assert "--best" in refuse(capsys, "eval", copy, "--best")


def test_a_run_that_another_process_trains_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "runs"
    given = setting(
        "ppo_cartpole",
        env_id=ID("Stuck"),
        output_dir=str(output),
        checkpoint={"interval": 4 * FRAMES},
        evaluation={"interval": None},
        tracking={"log_interval": None, "tensorboard": False},
    )
    with started("train", "--config", write_setting(tmp_path / "config.yaml", given)) as process:
        wait_for_lines(process, output, 6)  # stuck in the next iteration
        [run] = output.iterdir()
        before = content(run)
        assert "another process" in refuse(capsys, "resume", run)
        assert content(run) == before


def interrupted_run(tmp_path: Path, reference: Reference) -> Path:
    """Return a copy of a run without its last checkpoint."""
    run = shutil.copytree(reference("ppo_cartpole"), tmp_path / "run")
    shutil.rmtree(checkpoints(run)[-1])
    return run


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.yaml", "{spoilt"),
        ("metadata.json", "{spoilt"),
        ("metadata.json", '{"status": 3, "resumes": 4}'),
        ("result.json", "{spoilt"),
    ],
)
def test_a_run_with_a_spoilt_file_can_still_be_gone_on_with(
    tmp_path: Path, reference: Reference, name: str, text: str
) -> None:
    run = interrupted_run(tmp_path, reference)
    (run / name).write_text(text, encoding="utf-8")
    assert cli.main(["resume", str(run)]) == 0
    ended = json.loads((run / "result.json").read_text(encoding="utf-8"))["digest"]
    expected = json.loads((reference("ppo_cartpole") / "result.json").read_text(encoding="utf-8"))
    assert ended == expected["digest"]


def pipe_in_place_of(path: Path) -> None:
    """Put what would keep a reader waiting for ever."""
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("name", ["metadata.json", "result.json", "checkpoints/latest"])
def test_a_pipe_in_place_of_a_small_file_is_as_if_it_were_missing(
    tmp_path: Path, reference: Reference, name: str
) -> None:
    run = interrupted_run(tmp_path, reference)
    pipe_in_place_of(run / name)
    done = execute("resume", run)
    assert done.returncode == 0, done.stderr
    assert digest(run) == digest(reference("ppo_cartpole"))


@pytest.mark.parametrize("name", ["latest", "best"])
def test_a_directory_in_place_of_a_link_is_moved_beside(
    tmp_path: Path, reference: Reference, name: str
) -> None:
    run = interrupted_run(tmp_path, reference)
    link = run / "checkpoints" / name
    link.unlink()
    shutil.copytree(checkpoints(run)[0], link)
    done = execute("resume", run)
    assert done.returncode == 0, done.stderr
    assert f"{link} was a directory" in done.stderr
    assert digest(run) == digest(reference("ppo_cartpole"))
    assert link.read_text() == (reference("ppo_cartpole") / "checkpoints" / name).read_text()
    [moved] = link.parent.glob(f"{name}.moved-*")
    assert (moved / "manifest.json").is_file()


@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluations.jsonl"])
def test_a_pipe_in_place_of_a_log_is_refused(
    tmp_path: Path, reference: Reference, name: str
) -> None:
    run = interrupted_run(tmp_path, reference)
    pipe_in_place_of(run / name)
    done = execute("resume", run)
    assert done.returncode == 2
    assert "cannot be written: it is no regular file" in done.stderr
