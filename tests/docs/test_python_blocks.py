"""Every Python block of README and docs runs: a page's blocks one after the other, in an empty
directory, and in one namespace; each of the README's, which is read in pieces, in its own.

A block with a ``title`` is a file: it is written, and can be imported. Numbers written with
thousands (``100_000``) are budgets, and become small here. A block that cannot run is marked by
``<!-- skip: reason -->`` right before it; there is none, and a test counts.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import rl_training.envs  # noqa: F401  what it registers stays: the copies below have it
from rl_training.experiments import study
from rl_training.recipes.ppg import PPGConfig
from rl_training.recipes.ppo import PPOConfig
from rl_training.registry import ALGORITHMS
from tests.docs.pages import PAGES, Block, blocks
from tests.experiments.forks import Forks

SMALL_BUDGET = "256"
SMALL_ROLLOUT = 32
FEW_EPOCHS = 2
SKIPPED = 0
ALONE = {"README.md"}
WITH_PYTHON = [page for page in PAGES if blocks(page, "python")]


@pytest.fixture
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a directory of one's own, and leave no module, algorithm or environment behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    registries: list[dict[str, Any]] = [ALGORITHMS, gymnasium.registry]
    before = [dict(registry) for registry in registries]
    yield tmp_path
    for registry, content in zip(registries, before, strict=True):
        registry.clear()
        registry.update(content)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def short_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the rollouts and updates that defaults ask for, as budgets are shortened."""
    for config, epochs in ((PPOConfig, "num_epochs"), (PPGConfig, "auxiliary_epochs")):
        defaults = config.__init__.__kwdefaults__
        assert defaults is not None
        monkeypatch.setitem(defaults, "num_steps", SMALL_ROLLOUT)
        assert defaults[epochs] > FEW_EPOCHS
        monkeypatch.setitem(defaults, epochs, FEW_EPOCHS)


@pytest.fixture
def quick_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the runs of a study. Those of a benchmark stay what they are, fresh interpreters."""
    monkeypatch.setattr(study, "LocalBackend", Forks)


def run(block: Block, namespace: dict[str, Any]) -> None:
    code = re.sub(r"\b\d{1,3}(?:_000)+\b", SMALL_BUDGET, block.code)
    if block.title is not None:
        Path(block.title).write_text(code, encoding="utf-8")
        importlib.invalidate_caches()
        return
    # Empty lines, so that a traceback names the line of the page.
    exec(compile("\n" * (block.line - 1) + code, block.page, "exec"), namespace)


@pytest.mark.parametrize("page", WITH_PYTHON)
@pytest.mark.usefixtures("empty_directory", "short_rollouts", "quick_trials")
def test_the_python_blocks_of_a_page_run(page: str) -> None:
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page, "python"):
        if not block.skipped:
            run(block, dict(namespace) if page in ALONE else namespace)


def test_no_block_is_skipped_without_being_counted() -> None:
    assert {"README.md", "docs/architecture.md", "docs/ppo.md", "docs/ppg.md"} <= set(WITH_PYTHON)
    skipped = [block for page in PAGES for block in blocks(page, "python") if block.skipped]
    assert len(skipped) == SKIPPED


def test_the_example_of_a_new_algorithm_stays_a_short_file() -> None:
    [a2c] = [block for block in blocks("docs/architecture.md", "python") if block.title == "a2c.py"]
    assert len(a2c.code.splitlines()) <= 120
