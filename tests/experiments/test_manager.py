"""Many runs: each once, whatever is killed, whatever fails."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rl_training.cli import main
from rl_training.config.yaml_text import format_yaml, parse_yaml
from rl_training.errors import UserError
from rl_training.experiments import worker
from rl_training.experiments.jobs import Job, measured_as_now, prepare
from rl_training.experiments.manager import STOPPED, ExperimentManager
from rl_training.experiments.manifest import load_manifest
from rl_training.runtime.files import json_bytes
from rl_training.runtime.run_lock import RunLock
from tests.experiments.forks import Forks
from tests.processes import Process, command_line, run_job

MANIFEST = """
title: Tiny
seeds: [1, 2]
episodes: 3
evaluations: 2
overlays: [tiny]
presets:
  ppo_cartpole: {expected: 1}
"""
NOWHERE = "algo: ppo\nenv_id: Nowhere-v0\n"


def manager(directory: Path, text: str = MANIFEST, **options: Any) -> ExperimentManager:
    path = directory / "tiny.yaml"
    path.write_text(text, encoding="utf-8")
    return ExperimentManager(path, output_dir=directory / "out", **options)


def ready(directory: Path, text: str = MANIFEST) -> list[Job]:
    made = manager(directory, text)
    return prepare(made.manifest, made.directory)


def work(job: Job, attempts: int = 0) -> int:
    return worker.main([str(job.directory), str(attempts), "1"])


def digest(job: Job) -> Any:
    assert job.run is not None
    return json.loads((job.run / "result.json").read_text("utf-8"))["digest"]


def states(made: ExperimentManager) -> list[str]:
    return [state.status for state in made.status().values()]


def test_a_benchmark_runs_skips_and_goes_on_past_a_failure(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere.yaml"
    nowhere.write_text(NOWHERE, encoding="utf-8")
    text = MANIFEST.replace("seeds: [1, 2]", "seeds: [1]") + f'  "{nowhere}":\n'
    text = text.replace('  "', "  ? '").replace('":', "'\n  :")
    made = manager(tmp_path, text)
    assert states(made) == ["waiting", "waiting"]
    said: list[str] = []
    outcome = made.run(jobs=2, say=said.append, backend=Forks())
    assert [job.preset for job in outcome.done] == ["ppo_cartpole"]
    [(failed, error)] = outcome.failed.items()
    assert failed.preset == str(nowhere) and "Nowhere" in error
    assert outcome.exit_code == 1
    assert states(made) == ["done", "failed"]
    scores = json.loads((outcome.done[0].directory / "scores.json").read_text("utf-8"))
    assert scores["final"]["episodes"] == scores["best"]["episodes"] == 3
    assert any(line.startswith("done") for line in said)

    again = manager(tmp_path, text, presets=["ppo_cartpole"])
    before = outcome.done[0].state()
    assert again.run(say=said.append).exit_code == 0
    assert said[-1] == "1 done already"
    assert outcome.done[0].state() == before


def test_a_killed_run_goes_on_and_ends_as_one_that_was_left_alone(tmp_path: Path) -> None:
    text = MANIFEST.replace("cartpole: {", "cartpole: {total_timesteps: 1600, ")
    alone = ready(tmp_path, text)[0]
    assert work(alone) == 0
    (tmp_path / "other").mkdir()
    killed = ready(tmp_path / "other", text)[0]
    with Process(run_job, str(killed.directory), "0", "1") as process:
        deadline = time.monotonic() + 60
        while not any(killed.directory.glob("*/checkpoints/latest")):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        assert killed.state().status == "running"
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert killed.state().status == "stopped"
    assert work(killed, attempts=1) == 0
    assert killed.state().status == "done"
    assert digest(killed) == digest(alone)
    assert len(list(killed.directory.glob("*/config.yaml"))) == 1


MODULE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

gymnasium.register("Own-v0", entry_point=CartPoleEnv, max_episode_steps=20)
"""


def test_a_job_may_name_modules_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_module_of_ones_own.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    text = MANIFEST.replace("{expected: 1}", "{env_id: 'a_module_of_ones_own:Own-v0'}")
    [job, _] = ready(tmp_path, text)
    assert work(job) == 0
    assert job.state().status == "done"
    # Killed after its training, before its scores: it is resumed, and finds nothing to train.
    (job.directory / "scores.json").unlink()
    job.write_state(status="stopped")
    monkeypatch.delitem(sys.modules, "a_module_of_ones_own")
    assert work(job, attempts=1) == 0
    assert json.loads((job.directory / "scores.json").read_text("utf-8"))["final"]["episodes"] == 3


def test_a_folder_that_is_deleted_meanwhile_fails_alone(tmp_path: Path) -> None:
    made = manager(tmp_path, MANIFEST.replace("[1, 2]", "[1, 2, 3]"))
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("begin") and line.endswith("seed 1"):
            shutil.rmtree(made.jobs[1].directory)

    outcome = made.run(say=say, backend=Forks())
    assert outcome.failed == {
        made.jobs[1]: "its folder was deleted while the benchmark ran; run it again"
    }
    assert outcome.done == [made.jobs[0], made.jobs[2]]
    assert outcome.exit_code == 1
    assert made.run(say=say, backend=Forks()).exit_code == 0


class Deletes:
    """A backend and its handles: the folder disappears before a job's process begins, or after."""

    def __init__(self, before: bool) -> None:
        self._before = before
        self._job: Job | None = None

    def start(self, job: Job, attempts: int, side_by_side: int) -> Any:
        self._job = job
        if self._before:
            shutil.rmtree(job.directory)
            (job.directory / "log.txt").open("ab")
        return self

    def poll(self) -> int:
        assert self._job is not None
        shutil.rmtree(self._job.directory)
        return worker.TAKEN  # it finds no state of the job as it was when it was chosen

    def stop(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("before", [True, False])
def test_a_folder_that_disappears_is_not_another_process_s(tmp_path: Path, before: bool) -> None:
    made, said = manager(tmp_path, MANIFEST.replace("[1, 2]", "[1]")), list[str]()
    outcome = made.run(say=said.append, backend=Deletes(before))
    gone = "its folder was deleted while the benchmark ran; run it again"
    assert outcome.failed == {made.jobs[0]: gone}
    assert said[-1] == f"failed   ppo_cartpole seed 1: {gone}"
    assert (outcome.elsewhere, outcome.exit_code) == ([], 1)


class Dies:
    """A backend and its handles: processes end before they write that they began."""

    def __init__(self, status: int) -> None:
        self._status = status

    def start(self, job: Job, attempts: int, side_by_side: int) -> Any:
        return self

    def poll(self) -> int:
        return self._status

    def stop(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("status", "noted"), [(-9, "stopped"), (-15, "stopped"), (143, "stopped"), (1, "failed")]
)
def test_a_worker_that_dies_before_its_first_state_is_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int, noted: str
) -> None:
    made, said = manager(tmp_path, MANIFEST.replace("[1, 2]", "[1]")), list[str]()
    outcome = made.run(say=said.append, backend=Dies(status))
    where = [str(tmp_path / "tiny.yaml"), "--output-dir", str(made.directory)]
    assert main(["benchmark", "status", *where]) == 0
    assert capsys.readouterr().out.startswith(f"{noted:<8} ppo_cartpole seed 1")
    [state] = made.status().values()
    assert (state.attempts, bool(state.error)) == (1, noted == "failed")
    assert (len(outcome.failed), len(outcome.stopped)) == ((0, 1) if status in STOPPED else (1, 0))
    assert made.run(say=said.append, backend=Forks()).exit_code == 0
    assert states(made) == ["done"]


def test_a_worker_that_leaves_its_job_to_another_changes_nothing(tmp_path: Path) -> None:
    made = manager(tmp_path)
    made.run(say=lambda line: None, backend=Dies(worker.TAKEN))
    assert states(made) == ["waiting", "waiting"]


def test_a_job_that_another_process_has_is_left_to_it(tmp_path: Path) -> None:
    made = manager(tmp_path)
    jobs = ready(tmp_path)
    said: list[str] = []
    jobs[0].write_state(status="running", attempts=1)
    with RunLock(jobs[0].directory), RunLock(jobs[1].directory):
        outcome = made.run(say=said.append)
        assert made.status()[jobs[0]].status == "running"
    assert outcome.elsewhere == jobs
    assert all("by another process" in line for line in said)
    assert outcome.exit_code == 0
    assert made.status()[jobs[0]].status == "stopped"
    assert made.status()[jobs[1]].status == "waiting"


def test_a_worker_takes_no_job_that_was_started_since_it_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job, other] = ready(tmp_path)
    job.write_state(status="failed", attempts=1, error="as before")
    assert work(job) == worker.TAKEN
    assert (job.state().status, job.run) == ("failed", None)
    monkeypatch.setattr(worker, "_PAUSE", 0.001)
    with RunLock(other.directory):
        assert work(other) == worker.TAKEN
    assert other.state().attempts == 0


@pytest.mark.slow
def test_of_two_workers_one_works(tmp_path: Path) -> None:
    [job, _] = ready(tmp_path)
    command = [sys.executable, "-m", worker.__name__, str(job.directory), "0", "2"]
    both = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert sorted(process.wait(timeout=100) for process in both) == [0, worker.TAKEN]
    assert job.state().attempts == 1


def test_a_manager_that_is_stopped_stops_its_runs(tmp_path: Path) -> None:
    text = MANIFEST.replace("cartpole: {", "cartpole: {total_timesteps: 10_000_000, ")
    made = manager(tmp_path, text)
    words = ["benchmark", "run", str(tmp_path / "tiny.yaml"), "--output-dir", str(made.directory)]
    with Process(command_line, *words) as process:
        deadline = time.monotonic() + 100
        while not any(made.directory.glob("*/*/checkpoints/latest")):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out.splitlines()[-1] == "2 stopped"
    assert states(made) == ["stopped", "waiting"]
    run = made.jobs[0].run
    assert run is not None
    metadata = json.loads((run / "metadata.json").read_text("utf-8"))
    assert metadata["status"] == "interrupted"  # not killed: it wrote a checkpoint and its end


def test_a_folder_of_another_configuration_is_refused(tmp_path: Path) -> None:
    [job, _] = ready(tmp_path)
    ready(tmp_path, MANIFEST.replace("episodes: 3", "episodes: 4"))  # nothing was run yet
    job.write_state(status="done", attempts=1)
    with pytest.raises(UserError, match="is scored by 4 episodes, and the manifest says 5"):
        manager(tmp_path, MANIFEST.replace("episodes: 3", "episodes: 5")).run()
    with pytest.raises(UserError, match="jobs must be at least 1, not 0"):
        manager(tmp_path).run(jobs=0)


def written_before_a_field(job: Job, field: str) -> None:
    """Make a folder as an earlier version did, which had no ``evaluation.<field>``."""
    content = parse_yaml((job.directory / "config.yaml").read_text("utf-8"), source="config.yaml")
    del content["evaluation"][field]
    (job.directory / "config.yaml").write_text(format_yaml(content), encoding="utf-8")
    del content["output_dir"]
    planned = json.loads((job.directory / "job.json").read_text("utf-8"))
    planned["config_sha256"] = hashlib.sha256(json_bytes(content, sort_keys=True)).hexdigest()
    (job.directory / "job.json").write_text(json.dumps(planned), encoding="utf-8")


def test_a_folder_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    [job, other] = ready(tmp_path)
    before = (job.directory / "job.json").read_text("utf-8")
    for each in (job, other):
        written_before_a_field(each, "max_episode_steps")
        (each.directory / "scores.json").write_text('{"final": {"return_mean": 1.0}}')
        each.write_state(status="done", attempts=1)
    made = manager(tmp_path)
    assert measured_as_now(job, made.manifest.config("ppo_cartpole"), made.manifest)
    assert prepare(made.manifest, made.directory) == [job, other]
    assert (job.directory / "job.json").read_text("utf-8") == before
    assert states(made) == ["done", "done"]

    # Where the field had another value than the default is now, it was another configuration.
    capped = tmp_path / "capped.yaml"
    changed = MANIFEST.replace("[tiny]", f"[tiny, {capped}]")
    capped.write_text("evaluation: {max_episode_steps: 9}\n", encoding="utf-8")
    written_before_a_field(job, "max_episode_steps")
    with pytest.raises(UserError, match="was run with another configuration"):
        ready(tmp_path, changed)


def test_a_configuration_that_was_edited_is_not_what_was_run(tmp_path: Path) -> None:
    [job, _] = ready(tmp_path)
    written_before_a_field(job, "max_episode_steps")
    job.write_state(status="done", attempts=1)
    path = job.directory / "config.yaml"
    path.write_text(path.read_text("utf-8").replace("deterministic: true", "deterministic: false"))
    with pytest.raises(UserError, match="was run with another configuration"):
        ready(tmp_path)


def test_the_first_seeds_come_first(tmp_path: Path) -> None:
    jobs = manager(tmp_path, MANIFEST + "  ppg_cartpole: {seeds: [7, 8, 9]}\n").jobs
    assert [(job.preset[:3], job.seed) for job in jobs] == [
        ("ppo", 1),
        ("ppg", 7),
        ("ppo", 2),
        ("ppg", 8),
        ("ppg", 9),
    ]


def test_status_and_list_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = manager(tmp_path)
    prepare(made.manifest, made.directory)[0].write_state(
        status="failed", attempts=1, error="it broke"
    )
    where = [str(tmp_path / "tiny.yaml"), "--output-dir", str(made.directory)]
    assert main(["benchmark", "status", *where]) == 0
    out = capsys.readouterr().out
    assert "failed   ppo_cartpole seed 1" in out and "it broke" in out
    assert "waiting  ppo_cartpole seed 2" in out
    assert main(["benchmark", "status", *where, "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [(run["seed"], run["status"]) for run in runs] == [(1, "failed"), (2, "waiting")]
    assert main(["benchmark", "list"]) == 0
    assert "classic" in capsys.readouterr().out
    assert main(["benchmark", "list", "classic"]) == 0
    assert "ppo_cartpole " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "a command is missing"),
        (["rum"], "Did you mean 'run'?"),
        (["run", "clasic"], "Did you mean 'classic'?"),
        (["run", "classic", "--job", "2"], "Did you mean '--jobs'?"),
        (["run", "classic", "--jobs", "0"], "jobs must be at least 1, not 0."),
        (["run", "classic", "--presets", "ppo"], "classic has no preset 'ppo'"),
        (["list", "a", "b"], "takes one manifest"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["benchmark", *words]) == 2
    err = capsys.readouterr().err
    assert complaint in err and err.count("\n") == 1


def test_the_manifests_of_the_zoo_can_be_given_by_name() -> None:
    made = ExperimentManager("cartpole")
    assert made.manifest == load_manifest("cartpole").select()
    assert made.directory == Path("runs/benchmarks/cartpole")
    assert len(made.jobs) == 4
