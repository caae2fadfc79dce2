"""What Weights & Biases gets of a run, and that nothing of it can stop one."""

from __future__ import annotations

import importlib
import itertools
import json
import logging
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_training import load_config, replace_config, resume_checkpoint, train
from rl_training.config import TrainConfig
from rl_training.runtime.tracking import configured_loggers

BLOCK = 32_768


def config(directory: Path, **changes: Any) -> TrainConfig:
    tracking = {"wandb": "offline", "wandb_group": "both", "tensorboard": False}
    return replace_config(
        load_config(["ppo_cartpole", "tiny"]),
        output_dir=str(directory),
        evaluation={"interval": 128, "num_envs": 1},
        tracking=tracking,
        **changes,
    )


def records(path: Path) -> Iterator[Any]:
    """Read a .wandb file: LevelDB's log format, each record a protocol buffer."""
    messages = importlib.import_module("wandb.proto.wandb_internal_pb2")
    data, place, parts = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        left = BLOCK - place % BLOCK
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last of several
            record = messages.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def values(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def test_an_offline_run_has_everything_and_goes_on_under_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / name.lower()))
    whole = train(config(tmp_path, total_timesteps=384))
    resume_checkpoint(whole.run_dir, total_timesteps=512)
    assert "failed" not in caplog.text
    files = sorted(
        (whole.run_dir / "wandb").glob("offline-run-*/*.wandb"),
        key=lambda path: path.stat().st_mtime,
    )
    first, second = ([*records(path)] for path in files)
    starts = [next(each.run for each in part if each.HasField("run")) for part in (first, second)]
    assert starts[0].run_id == starts[1].run_id
    assert {each.run_group for each in starts} == {"both"}
    known = values(starts[0].config.update)
    assert known["seed"] == 1 and known["algorithm"]["num_steps"] == 32
    assert known["machine"]["cpus"] and known["versions"]["torch"] and "commit" in known
    histories = [
        [values(each.history.item) for each in part if each.HasField("history")]
        for part in (first, second)
    ]
    steps = [[line["_step"] for line in lines] for lines in histories]
    assert max(steps[0]) == 384 < min(steps[1]) and max(steps[1]) == 512
    assert any("eval/return_mean" in line for line in histories[1])
    summary: dict[str, Any] = {}
    for each in second:
        summary |= values(each.summary.update)
    score = json.loads((whole.run_dir / "result.json").read_bytes())
    assert summary["final/status"] == "finished"
    assert summary["final/digest"] == score["digest"]
    assert summary["final/eval/return_mean"] == score["eval"]["return_mean"]


class FakeWandb:
    """Records what it is asked; from one call on it fails."""

    def __init__(self, failing: str = "", after: int = 0) -> None:
        self.failing = failing
        self.left = after
        self.logged: list[tuple[int, dict[str, Any]]] = []
        self.summary = self
        self.ended: dict[str, Any] = {}
        self.settings: dict[str, Any] = {}

    class Settings:
        model_fields = {"finish_timeout": None, "init_timeout": None}  # noqa: RUF012

        def __init__(self, **options: Any) -> None:
            self.options = options

    class Video:
        def __init__(self, path: str, format: str) -> None:
            self.path = path

    def _maybe(self, what: str) -> None:
        if what == self.failing:
            self.left -= 1
            if self.left < 0:
                raise ConnectionError("the line is dead")

    def init(self, **options: Any) -> FakeWandb:
        self.settings = options["settings"].options
        self._maybe("init")
        return self

    def log(self, metrics: dict[str, Any], step: int) -> None:
        self._maybe("log")
        self.logged.append((step, metrics))

    def update(self, values: dict[str, Any]) -> None:
        self._maybe("summary")
        self.ended |= values

    def finish(self) -> None:
        self._maybe("finish")


@pytest.fixture(scope="module")
def untracked(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the run without tracking."""
    alone = config(tmp_path_factory.mktemp("alone"))
    digest = train(replace_config(alone, tracking={"wandb": "off"})).digest
    assert digest is not None
    return digest


@pytest.mark.parametrize(
    ("failing", "after"), [("init", 0), ("log", 0), ("log", 3), ("summary", 0), ("finish", 0)]
)
def test_whatever_fails_the_run_is_the_same(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failing: str,
    after: int,
    untracked: str,
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", FakeWandb(failing, after))
    result = train(config(tmp_path))
    assert result.status == "finished" and result.exit_code == 0
    messages = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert messages == [
        "Weights & Biases failed and is off for the rest of the run: the line is dead"
    ]
    assert result.digest == untracked


def test_a_service_that_does_not_answer_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    train(config(tmp_path))
    assert fake.settings["init_timeout"] <= 60 and fake.settings["finish_timeout"] <= 120
    assert "login_timeout" not in fake.settings  # this version does not have it


def test_videos_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    changed = config(tmp_path, total_timesteps=128)
    result = train(replace_config(changed, tracking={"video_interval": 64}))
    sent = [(step, each["video"].path) for step, each in fake.logged if "video" in each]
    assert [step for step, _ in sent] == [64, 128]
    assert [Path(path).parent for _, path in sent] == [result.run_dir / "videos"] * 2
    assert all(Path(path).is_file() for _, path in sent)
    steps = [step for step, _ in fake.logged]
    assert all(first <= second for first, second in itertools.pairwise(steps))


def test_a_manifest_s_runs_are_one_group(tmp_path: Path) -> None:
    from rl_training.experiments.jobs import prepare
    from tests.experiments.stand_in import write_manifest

    jobs = prepare(write_manifest(tmp_path), tmp_path / "out")
    groups = [load_config(job.directory / "config.yaml").tracking.wandb_group for job in jobs]
    assert len(groups) == 6 and set(groups) == {"two"}


def test_loggers_are_those_that_the_config_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", FakeWandb())
    made = configured_loggers(config(tmp_path), tmp_path)
    assert list(made) == ["metrics", "wandb"]
    made = configured_loggers(load_config("ppo_cartpole"), tmp_path)
    assert list(made) == ["metrics", "tensorboard"]
