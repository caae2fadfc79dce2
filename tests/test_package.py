"""What is installed: the wheel, unpacked elsewhere, finds its presets and answers."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    [wheel] = WheelBuilder(str(REPOSITORY)).build(directory=str(directory))
    site = directory / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def test_the_wheel_holds_the_package_the_presets_and_the_type_marker(installed: Path) -> None:
    expected = {path.name for path in (REPOSITORY / "zoo").rglob("*.yaml")}
    assert {path.name for path in (installed / "rl_training" / "zoo").rglob("*.yaml")} == expected
    assert (installed / "rl_training" / "py.typed").is_file()
    tops = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert tops == {"rl_training"}
    entry_points = next(installed.glob("*.dist-info")) / "entry_points.txt"
    assert "rl-training = rl_training.cli:main" in entry_points.read_text(encoding="utf-8")


def test_an_installed_package_finds_its_presets_from_any_directory(
    installed: Path, tmp_path: Path
) -> None:
    code = "from rl_training.config import find_preset; print(find_preset('ppg_cartpole'))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(run.stdout.strip()) == installed / "rl_training" / "zoo" / "ppg_cartpole.yaml"
