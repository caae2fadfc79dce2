"""Links lead somewhere, components exist, layers and names are those of the code."""

from __future__ import annotations

import re

import pytest

from rl_training.registry import ALGORITHMS, import_object
from tests.docs.pages import (
    PAGES,
    REPOSITORY,
    named,
    pyproject,
    rows,
    section,
    text,
    without_blocks,
)

ARCHITECTURE = "docs/architecture.md"


def anchors(page: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", without_blocks(page), re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {each.replace(" ", "-") for each in words}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    directory = PAGES[page].parent
    for target in re.findall(r"\]\(([^)]+)\)", without_blocks(page)):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        path = (directory / name).resolve() if name else PAGES[page]
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path.relative_to(REPOSITORY).as_posix()), target


def test_the_index_links_every_page() -> None:
    links = set(re.findall(r"\]\(([^)#]+)", text("docs/index.md")))
    assert {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")} - links == {
        "index.md"
    }


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_has_a_page_in_the_usual_order(algo: str) -> None:
    headings = re.findall(r"^## (.+)$", without_blocks(f"docs/{algo}.md"), re.MULTILINE)
    assert [each for each in headings if not each.startswith("Differences")] == [
        "Usage",
        "Logged metrics",
        "Configuration",
        "Implementation details",
        "Results",
    ]


def test_documented_components_exist() -> None:
    table = rows(section(ARCHITECTURE, "## Documented components"))
    paths = [path for cells in table for path in re.findall(r"`([\w.]+:\w+)`", cells[1])]
    assert len(paths) > len(table)
    for path in paths:
        import_object(path)


def test_the_layers_are_those_that_are_checked() -> None:
    [contract] = [
        each
        for each in pyproject()["tool"]["importlinter"]["contracts"]
        if each["type"] == "layers"
    ]
    layers = [set(re.findall(r"\w+", layer)) for layer in contract["layers"]]
    listed = [
        set(re.findall(r"`rl_training\.(\w+)`", cells[0]))
        for cells in rows(section(ARCHITECTURE, "## Layers"))
    ]
    assert listed == [layer for layer in layers if layer != {"__main__"}]


def test_the_places_of_earlier_names_exist() -> None:
    table = rows(section(ARCHITECTURE, "## Where earlier names went"))
    assert [named(cells[0]) for cells in table] == [
        "runs",
        "trainer",
        "algorithms",
        "experiment",
        "api",
        "configs",
        "examples",
    ]
    for cells in table:
        places = re.findall(r"`([^`]+)`", cells[1])
        assert places and all((REPOSITORY / place).exists() for place in places)


def test_files_named_in_the_architecture_exist() -> None:
    table = rows(section(ARCHITECTURE, "## Environments"))
    names = {name for cells in table for name in re.findall(r"`(\w+\.py)`", cells[0])}
    there = {path.name for path in (REPOSITORY / "rl_training" / "envs").glob("*.py")}
    assert names == there - {"__init__.py"}


def test_the_readme_s_zoo_table_has_every_environment_of_the_zoo() -> None:
    from rl_training.config import load_config, preset_paths

    zoo = {
        load_config(path).env_id
        for name, path in preset_paths().items()
        if not name.startswith("tiny")
    }
    assert {cells[0] for cells in rows(section("README.md", "## The zoo"))} == zoo
