"""A benchmark's records in one file: reported on like the folder itself, and gone on with."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from rl_training.cli import main
from rl_training.errors import UserError
from rl_training.experiments.manager import ExperimentManager
from rl_training.experiments.records import pack_records
from rl_training.experiments.report import write_report
from tests.experiments.stand_in import write_manifest, write_runs

SCORES = {"ppo_cartpole": {1: 390.0, 2: 410.0, 3: 406.0}, "ppg_cartpole": {1: 500.0, 2: 449.0}}


def unpack(path: Path, directory: Path) -> Path:
    with tarfile.open(path) as archive:
        archive.extractall(directory, filter="data")
    return directory


def test_unpacked_records_give_the_same_report_and_are_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = write_manifest(tmp_path)
    write_runs(manifest, tmp_path / "runs", SCORES)
    words = [str(tmp_path / "two.yaml"), "--output-dir", str(tmp_path / "runs")]
    assert main(["benchmark", "pack", *words]) == 0
    packed = tmp_path / "runs/two.tar.xz"
    assert capsys.readouterr().out == f"5 runs: {packed}\n"

    there = unpack(packed, tmp_path / "elsewhere")
    for directory in (tmp_path / "runs", there):
        write_report(manifest, directory, directory / "report", plots=False)
    first, second = (
        json.loads((directory / "report/report.json").read_text("utf-8"))
        for directory in (tmp_path / "runs", there)
    )
    for content in (first, second):
        content.pop("made_at", None)
    assert first == second
    status = ExperimentManager(tmp_path / "two.yaml", output_dir=there).status()
    assert [state.status for state in status.values()].count("done") == 5


def test_records_tell_nothing_of_the_place_they_come_from(tmp_path: Path) -> None:
    manifest = write_manifest(tmp_path)
    for job in write_runs(manifest, tmp_path / "runs", SCORES):
        path = job.directory / "run/metadata.json"
        if path.exists():
            content = json.loads(path.read_text("utf-8"))
            content.update(command=[str(tmp_path)], pid=4711)
            content["machine"]["host"] = "kitchen"
            content["resumes"] = [{"step": 1, "command": [str(tmp_path)]}]
            path.write_text(json.dumps(content), encoding="utf-8")
    packed = [tmp_path / "a.tar.xz", tmp_path / "b.tar.xz"]
    for path in packed:
        assert pack_records(manifest, tmp_path / "runs", path) == 5
    assert packed[0].read_bytes() == packed[1].read_bytes()
    files = [path for path in unpack(packed[0], tmp_path / "out").rglob("*") if path.is_file()]
    assert len(files) == 5 * 9
    for path in files:
        text = path.read_text("utf-8")
        assert str(tmp_path) not in text and "kitchen" not in text and "4711" not in text
        assert path.name != "metadata.json" or "Test CPU" in text


def test_nothing_done_is_nothing_to_pack(tmp_path: Path) -> None:
    manifest = write_manifest(tmp_path)
    write_runs(manifest, tmp_path / "runs", {})
    with pytest.raises(UserError, match=r"no run of two is done"):
        pack_records(manifest, tmp_path / "runs", tmp_path / "two.tar.xz")
