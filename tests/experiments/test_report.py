from __future__ import annotations

import csv
import json
import struct
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from rl_training.cli import main
from rl_training.experiments.document import Table, markdown_table, to_html
from rl_training.experiments.jobs import jobs_of
from rl_training.experiments.manifest import load_manifest
from rl_training.experiments.report import report_summary, write_report
from rl_training.experiments.results import load_results
from rl_training.experiments.statistics import summarise
from tests.experiments.stand_in import TEXT, write_manifest, write_runs

SCORES = {
    "ppo_cartpole": {1: 390.0, 2: 410.0, 3: 406.0},
    "ppg_cartpole": {1: 500.0, 2: 449.0, 3: 500.0},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_runs(write_manifest(tmp_path), tmp_path / "runs", SCORES)
    return tmp_path


def command(folder: Path, *words: str) -> list[str]:
    where = [str(folder / "two.yaml"), "--output-dir", str(folder / "runs")]
    return ["benchmark", "report", *where, *words]


def data(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "runs/report/report.json").read_text("utf-8"))
    return content


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / "runs/report" / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_scores_stand_beside_published_ones_by_metric(folder: Path) -> None:
    assert main(command(folder, "--no-plots")) == 1
    scores = [row for row in data(folder)["scores"] if row["preset"] == "ppo_cartpole"]
    assert [(row["who"], row["metric"], row["runs"]) for row in scores] == [
        ("rl_training", "final policy", "3 seeds"),
        ("rl_training", "best model", "3 seeds"),
        ("rl_training", "best of training", "3 seeds"),
        ("rl_training", "training returns", "3 seeds"),
        ("The Zoo", "final policy", "one agent"),
    ]
    final, model, training, returns, zoo = scores
    assert final["mean"] == 402.0
    expected = summarise([390.0, 410.0, 406.0])
    assert (final["iqm"], final["iqm_low"], final["iqm_high"]) == (
        expected.iqm,
        expected.low,
        expected.high,
    )
    assert (model["mean"], training["mean"], returns["mean"]) == (402.5, 403.0, 90.0)
    assert (final["steps"], final["spread_over"]) == (100_352, "seeds")
    assert (zoo["steps"], zoo["mean"], zoo["spread"], zoo["spread_over"]) == (
        100_000,
        499.5,
        2.5,
        "episodes",
    )
    assert zoo["iqm"] is None and zoo["url"] == "https://example.org/zoo"
    assert [row["mean"] for row in rows(folder, "report.csv")][:2] == ["402.0", "402.5"]


def test_every_run_is_a_row(folder: Path) -> None:
    main(command(folder, "--no-plots"))
    [first, *others] = rows(folder, "seeds.csv")
    assert len(others) == 5
    assert (first["preset"], first["seed"], first["final policy"]) == ("ppo_cartpole", "1", "390.0")
    assert (first["seconds"], first["steps_per_second"]) == ("11.0", "1000.0")
    assert (first["processor"], first["side_by_side"], first["threads"]) == ("Test CPU", "2", "1")
    assert first["versions"] == "python 3.11 rl_training 0"


def test_a_missed_score_fails_the_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(folder, "--no-plots")) == 1
    out = capsys.readouterr().out
    assert "reached       ppo_cartpole" in out  # the mean is above 400, one seed is not
    assert "missed        ppg_cartpole" in out  # one of the seeds is below 450
    assert main(command(folder, "--no-plots", "--presets", "ppo_cartpole")) == 0
    assert main(command(folder, "--no-plots", "--presets", "ppg_cartpole", "--seeds", "1")) == 0


def test_a_note_stands_under_the_scores_of_its_preset(tmp_path: Path) -> None:
    why = "Fewer steps than the Zoo's."
    text = TEXT.replace("    expected: 400\n", f"    expected: 400\n    note: {why}\n")
    manifest = write_manifest(tmp_path, text)
    write_runs(manifest, tmp_path / "runs", SCORES)
    write_report(manifest, tmp_path / "runs", tmp_path / "report", plots=False)
    page = (tmp_path / "report/report.md").read_text("utf-8")
    assert page.count(why) == 1
    assert page.index("### ppo_cartpole") < page.index(why) < page.index("### ppg_cartpole")


def test_what_is_not_measured_is_no_success(tmp_path: Path) -> None:
    manifest = write_manifest(tmp_path)
    write_runs(manifest, tmp_path / "runs", {"ppo_cartpole": {1: 500.0, 2: 500.0}})
    report = write_report(manifest, tmp_path / "runs", tmp_path / "runs/report", plots=False)
    assert report.verdicts == {"ppo_cartpole": "incomplete", "ppg_cartpole": "not measured"}
    words = ["incomplete    ppo_cartpole: 2 of 3 seeds are done", "not measured  ppg_cartpole"]
    assert report_summary(report).splitlines()[:2] == words
    assert report.exit_code == 1
    assert data(tmp_path)["algorithms"] == []  # of an algorithm that is not done, nothing is said
    text = (tmp_path / "runs/report/report.md").read_text("utf-8")
    assert "2 of 6 runs are done." in text
    assert "| ppg_cartpole | CartPole-v1 |  | not measured |" in text
    assert "incomplete, 2 of 3 seeds are done |" in text


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_without_runs_is_a_mistake_that_names_them(
    exists: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_manifest(tmp_path)
    runs = tmp_path / "runs"
    if exists:
        (runs / "another__seed1").mkdir(parents=True)
    assert main(command(tmp_path, "--no-plots")) == 2
    err = capsys.readouterr().err
    assert f"{runs} {'holds no run' if exists else 'is no folder with runs'} of the bench" in err
    assert "no folder ppo_cartpole__seed1 or any of 5 others like it" in err
    assert err.count("\n") == 1 and "--output-dir" in err
    assert not (runs / "report").exists()


def test_failures_are_listed(folder: Path) -> None:
    manifest = write_manifest(folder)
    results = load_results(manifest, folder / "runs")
    assert all(each.as_now for each in results)
    jobs = write_runs(manifest, folder / "runs", {})
    jobs[0].write_state(status="failed", error="it | broke")
    write_report(manifest, folder / "runs", folder / "runs/report", plots=False)
    text = (folder / "runs/report/report.md").read_text("utf-8")
    assert "| ppo_cartpole | 1 | failed | it \\| broke |" in text


def test_what_was_measured_outside_a_checkout_says_so(folder: Path) -> None:
    for path in folder.glob("runs/*/run/metadata.json"):
        content = json.loads(path.read_text("utf-8"))
        path.write_text(json.dumps({**content, "git_commit": None, "threads": None}), "utf-8")
    main(command(folder, "--no-plots"))
    text = (folder / "runs/report/report.md").read_text("utf-8")
    assert "| Test CPU | 2 | unknown | 2 | python 3.11 rl_training 0 | not a git checkout |" in text
    assert "None" not in text


def test_scores_on_one_scale_per_algorithm(folder: Path) -> None:
    main(command(folder, "--no-plots"))
    ppo, ppg = data(folder)["algorithms"]
    assert (ppo["algo"], ppo["presets"], ppo["runs"]) == ("ppo", ["ppo_cartpole"], 3)
    assert ppo["mean"] == pytest.approx(402 / 500)
    assert ppg["iqm"] == pytest.approx(summarise([1.0, 449 / 500, 1.0]).iqm)


def test_a_manifest_that_changed_since_is_named(folder: Path) -> None:
    changed = write_manifest(folder, TEXT.replace("evaluations: 4", "evaluations: 5"))
    write_report(changed, folder / "runs", folder / "runs/report", plots=False)
    text = (folder / "runs/report/report.md").read_text("utf-8")
    assert "Run with other settings than manifest and presets have now: ppo_cartpole" in text


class Page(HTMLParser):
    """Collects what a page would load, and checks that its tags fit."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.open: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "img"):
            self.open.append(tag)
        self.loaded += [str(value) for name, value in attrs if name in ("src", "href", "srcset")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_plots_are_png_and_svg_and_the_page_holds_them(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    assert main(command(folder)) == 1
    report = folder / "runs/report"
    for name in ("learning_curves", "scores", "profiles"):
        png = (report / f"{name}.png").read_bytes()
        assert png.startswith(b"\x89PNG")
        width, height = struct.unpack(">II", png[16:24])
        assert width > 500 and height > 300
        svg = (report / f"{name}.svg").read_bytes()
        assert b"<svg" in svg
    page = Page()
    text = (report / "report.html").read_text("utf-8")
    page.feed(text)
    assert page.open == []
    assert page.tags.count("img") == 3
    pictures = [each for each in page.loaded if each.startswith("data:image/svg+xml;base64,")]
    assert len(pictures) == 3
    assert set(page.loaded) - set(pictures) == {"https://example.org/zoo"}  # a link, not loaded
    assert "Two algorithms &lt;on&gt; CartPole" in text and "<on>" not in text
    before = (report / "scores.svg").read_bytes()
    main(command(folder))
    assert (report / "scores.svg").read_bytes() == before


def test_without_matplotlib_the_extra_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert main(command(folder)) == 2
    assert 'pip install "rl_training[plots]"' in capsys.readouterr().err


def test_cells_are_escaped() -> None:
    table = Table(["a", "b"], [["x|y", "<b>"]])
    assert markdown_table(table) == "| a | b |\n|---|---|\n| x\\|y | <b> |"
    assert "<td>&lt;b&gt;</td>" in to_html("t", [table])


STRANGE = {
    "scores.json": ["{}", '{"final": [1]}', '{"final": {"return_mean": "x"}}', "", "null"],
    "state.json": ['{"status": "done", "error": 3, "attempts": "x", "side_by_side": []}'],
    "metadata.json": ['{"machine": 3, "versions": [1]}'],
    "result.json": ['{"global_step": "x", "wall_time_s": [], "eval": 1}'],
    "evaluations.jsonl": ['{"step": 64}\n{"return_mean": 3}\n{"step": 9, "return_mean": "x"}\n'],
    "metrics.jsonl": ['{"step": 64, "train/return_mean": "x"}\n'],
}


@pytest.mark.parametrize(("name", "text"), [(n, text) for n in STRANGE for text in STRANGE[n]])
def test_a_strange_file_of_one_run_costs_no_other_its_place(
    folder: Path, name: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job = folder / "runs" / "ppo_cartpole__seed1"
    [run] = [path.parent for path in job.glob("*/config.yaml")]
    (job if name in ("scores.json", "state.json") else run).joinpath(name).write_text(text)
    where = [str(folder / "two.yaml"), "--output-dir", str(folder / "runs")]
    assert main(["benchmark", "status", *where]) == 0
    assert main(command(folder, "--no-plots")) == 1
    assert "Traceback" not in capsys.readouterr().err
    others = [row for row in rows(folder, "seeds.csv") if row["preset"] == "ppg_cartpole"]
    assert [row["final policy"] for row in others] == ["500.0", "449.0", "500.0"]


def test_a_run_without_its_score_is_not_done(folder: Path) -> None:
    job = next(each for each in jobs_of(load_manifest(folder / "two.yaml"), folder / "runs"))
    assert job.state().status == "done"
    (job.directory / "scores.json").unlink()
    assert job.state().status == "stopped"
