"""The report's page as a browser shows it: headless Chromium, where one is installed."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rl_training.experiments.report import write_report
from tests.experiments.stand_in import write_manifest, write_runs

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason=f"no Chromium is installed (none of {', '.join(NAMES)})"
)
PROBE = """<script>
addEventListener("load", async () => {
  const images = [...document.images];
  const decoded = await Promise.all(
    images.map(each => each.decode().then(() => each.naturalWidth, () => 0)));
  const tables = [...document.querySelectorAll("table")];
  document.title = JSON.stringify({
    images: decoded,
    tables: tables.map(each => each.rows.length),
    hidden: tables.filter(each => each.scrollWidth > each.clientWidth + 1).length,
    wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
    loaded: [...document.querySelectorAll("[src], link[href]")]
      .map(each => each.src || each.href).filter(each => !each.startsWith("data:")),
    headings: [...document.querySelectorAll("h1, h2")].map(each => each.textContent),
  });
});
</script>"""


def chromium(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,1000"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--no-first-run"]
    command = [CHROMIUM, *options, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)


def looked_at(page: str, tmp_path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return what the probe found, and the lines of the browser's console."""
    path = tmp_path / "page.html"
    path.write_text(page.replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
    options = ["--enable-logging=stderr", "--virtual-time-budget=5000", "--dump-dom"]
    done = chromium(tmp_path, *options, path.as_uri())
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert title is not None, done.stderr
    found: dict[str, Any] = json.loads(html.unescape(title[1]))
    return found, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def report(directory: Path) -> Path:
    manifest = write_manifest(directory)
    scores = {"ppo_cartpole": {1: 480.0, 2: 500.0, 3: 470.0}, "ppg_cartpole": {1: 500.0, 2: 440.0}}
    write_runs(manifest, directory / "out", scores)
    write_report(manifest, directory / "out", directory / "report", plots=True)
    return directory / "report" / "report.html"


def test_the_page_is_whole(tmp_path: Path) -> None:
    found, console = looked_at(report(tmp_path).read_text("utf-8"), tmp_path)
    assert console == []
    assert len(found["images"]) == 3 and min(found["images"]) > 300
    assert found["tables"] == [3, 2, 6, 5, 2]
    assert not found["wide"] and found["hidden"] == 0
    assert found["loaded"] == []
    assert found["headings"][:2] == ["Two algorithms <on> CartPole", "Scores"]


def test_it_prints(tmp_path: Path) -> None:
    pdf = tmp_path / "report.pdf"
    chromium(tmp_path, f"--print-to-pdf={pdf}", "--no-pdf-header-footer", report(tmp_path).as_uri())
    content = pdf.read_bytes()
    assert content.startswith(b"%PDF") and 2 <= content.count(b"/Type /Page\n") <= 4


def test_what_is_wrong_is_seen(tmp_path: Path) -> None:
    page = (
        "<!doctype html><title></title><body><h1>Broken</h1><img src='data:image/svg+xml;base64,x'>"
        "<script>console.error('something is missing')</script><img src='nowhere.png'>"
        "<table><tr><td style='min-width: 3000px'>wide</td></tr></table></body>"
    )
    found, console = looked_at(page, tmp_path)
    assert found["images"] == [0, 0] and found["wide"]
    assert [name.rpartition("/")[2] for name in found["loaded"]] == ["nowhere.png"]
    assert any("something is missing" in line for line in console)
