"""The tables of spaces, in the docs and on the command line, are the one in the code."""

from __future__ import annotations

import pytest

from rl_training.cli import main
from rl_training.config.groups import _PART_ENCODERS
from rl_training.registry import (
    ACTION_MASKS,
    ACTION_SPACES,
    ALGORITHMS,
    OBSERVATION_SPACES,
    sees,
    space_table,
)
from tests.docs.pages import REPOSITORY


def table(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the table of a page whose first column is called ``heading``."""
    lines = (REPOSITORY / "docs" / page).read_text(encoding="utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return [rows[0], *rows[2:]]


def test_the_table_says_what_the_code_says() -> None:
    header, *rows = space_table()
    assert header[1:] == list(ALGORITHMS)
    said = {
        (name, first)
        for first, *cells in rows
        for name, cell in zip(header[1:], cells, strict=True)
        if cell != "no"
    }
    assert {cell for _, *cells in rows for cell in cells} == {"yes", "no", "with Discrete"}
    tables = {
        "actions": ACTION_SPACES,
        "masks of": ACTION_MASKS,
        "observations": OBSERVATION_SPACES,
    }
    assert said == {
        (name, f"{what}: {kind}")
        for what, spaces in tables.items()
        for name, kinds in spaces.items()
        for kind in kinds
    }


def test_sac_sees_images_with_discrete_actions_alone() -> None:
    for kind in ("image", "image among parts"):
        assert sees("sac", kind, "Discrete") and not sees("sac", kind, "Box")
        assert sees("ppo", kind, "Dict") and not sees("td3", kind, "Box")
    assert sees("sac", "Dict", "Box") and not sees("dqn", "Dict", "Box")


def test_the_documented_table_is_the_one_in_the_code() -> None:
    assert table("bring_your_own_environment.md", "") == space_table()


def test_the_list_of_algorithms_shows_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "algorithms"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    for row in space_table():
        assert " ".join(row).split() in lines


def test_the_documented_encoders_of_parts_are_those_of_the_code() -> None:
    _, *rows = table("bring_your_own_environment.md", "name")
    named = {word.strip('`" ') for first, *_ in rows for word in first.split(",")}
    assert named - {"module:Class"} == set(_PART_ENCODERS) - {"auto"}
