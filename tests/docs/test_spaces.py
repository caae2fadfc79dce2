"""The tables of spaces, in the docs and on the command line, are the one in the code."""

from __future__ import annotations

import pytest

from rl_training.cli import main
from rl_training.registry import ACTION_MASKS, ACTION_SPACES, ALGORITHMS, OBSERVATION_SPACES
from tests.docs.pages import REPOSITORY


def table(heading: str) -> list[list[str]]:
    """Return the cells of the table of the docs whose first column is called ``heading``."""
    lines = (REPOSITORY / "docs" / "environments.md").read_text(encoding="utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return [rows[0], *rows[2:]]


def kind_of(cell: str) -> list[str]:
    words = cell.replace(",", " ").split()
    known = {kind for kinds in OBSERVATION_SPACES.values() for kind in kinds}
    return [word for word in words if word in known]


def test_the_documented_table_of_actions_is_the_one_in_the_code() -> None:
    header, *rows = table("actions")
    documented: dict[str, list[str]] = {name: [] for name in ALGORITHMS}
    for first, *cells in rows:
        for names, cell in zip(header[1:], cells, strict=True):
            assert cell in ("yes", "no")
            if cell == "yes":
                for name in names.split(", "):
                    documented[name] += kind_of(first)
    assert {name: set(kinds) for name, kinds in documented.items()} == {
        name: set(kinds) for name, kinds in ACTION_SPACES.items()
    }


def test_the_documented_table_of_masks_is_the_one_in_the_code() -> None:
    header, *rows = table("masks of")
    documented: dict[str, list[str]] = {}
    for first, *cells in rows:
        for names, cell in zip(header[1:], cells, strict=True):
            assert cell in ("yes", "no")
            if cell == "yes":
                for name in names.split(", "):
                    documented.setdefault(name, []).append(first)
    assert documented == {name: list(kinds) for name, kinds in ACTION_MASKS.items()}


def test_the_documented_kinds_of_observations_are_those_in_the_code() -> None:
    _, *rows = table("observations")
    documented = {kind for first, *_ in rows for kind in kind_of(first)}
    for kinds in OBSERVATION_SPACES.values():
        assert documented == set(kinds)


def test_the_list_of_algorithms_shows_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "algorithms"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for name in ALGORITHMS:
        at = next(n for n, line in enumerate(lines) if line.split()[0] == name)
        assert lines[at + 1] == f"actions: {', '.join(ACTION_SPACES[name])}"
        assert lines[at + 2] == f"observations: {', '.join(OBSERVATION_SPACES[name])}"
        assert lines[at + 3] == f"action masks: {', '.join(ACTION_MASKS.get(name, ['none']))}"
