from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from rl_training import cli
from tests.reliability.runs import the_run
from tests.reliability.settings import setting, write_setting

Reference = Callable[[str], Path]


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Return the run of a setting that nobody disturbed; tests read it, or copy it first."""
    made: dict[str, Path] = {}

    def run_of(name: str) -> Path:
        if name not in made:
            directory = tmp_path_factory.mktemp(name)
            content = setting(name, output_dir=str(directory / "runs"))
            config = write_setting(directory / "config.yaml", content)
            assert cli.main(["train", "--config", str(config)]) == 0
            made[name] = the_run(directory / "runs")
        return made[name]

    return run_of


@pytest.fixture(autouse=True)
def _same_number_of_threads_afterwards() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
