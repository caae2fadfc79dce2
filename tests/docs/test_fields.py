"""The tables of fields hold every field of the configuration, with its default."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rl_training.cli.tune import TuneArguments
from rl_training.config import TrainConfig
from rl_training.config.groups import (
    AtariConfig,
    CheckpointConfig,
    EnvConfig,
    EvaluationConfig,
    ModelConfig,
    TrackingConfig,
)
from rl_training.experiments.manifest import Entry, Manifest, PeerScore, Reference, Source
from rl_training.experiments.search_space import Dimension
from rl_training.registry import ALGORITHMS, algorithm_class
from tests.docs.pages import named, rows, section

GROUPS: dict[str, type[Any]] = {
    "model": ModelConfig,
    "env": EnvConfig,
    "env.atari": AtariConfig,
    "evaluation": EvaluationConfig,
    "checkpoint": CheckpointConfig,
    "tracking": TrackingConfig,
}
MANIFEST_HEADINGS: dict[type[Any], str] = {
    Manifest: "The manifest",
    Entry: "presets",
    PeerScore: "peers",
    Source: "sources",
    Reference: "references",
}
NAME = (Manifest, "name")
"""It is that of the file, and no key."""


def defaults(cls: type[Any]) -> dict[str, str]:
    return {each.name: default(each) for each in dataclasses.fields(cls)}


def default(each: dataclasses.Field[Any]) -> str:
    if each.name == "algorithm":
        return "the algorithm's"
    if each.name in (*GROUPS, "atari"):
        return "group"
    if each.default is not dataclasses.MISSING:
        return repr(each.default)
    if each.default_factory is not dataclasses.MISSING:
        return repr(each.default_factory())
    return "required"


def listed(page: str, heading: str) -> dict[str, str]:
    table = rows(section(page, heading))
    names = [named(cells[0]) for cells in table]
    assert None not in names and len(names) == len(set(names))
    return {str(name): cells[1].strip("`") for name, cells in zip(names, table, strict=True)}


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_an_algorithm_s_page_lists_its_fields(algo: str) -> None:
    expected = defaults(algorithm_class(algo).Config)
    assert listed(f"docs/{algo}.md", "## Configuration") == expected
    table = rows(section(f"docs/{algo}.md", "## Configuration"))
    assert all(cells[2] for cells in table), "the paper's name is missing"


def test_the_run_s_fields_are_listed() -> None:
    assert listed("docs/command_line.md", "### The run") == defaults(TrainConfig)


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_s_fields_are_listed(group: str) -> None:
    assert listed("docs/command_line.md", f"### {group}") == defaults(GROUPS[group])


def test_the_keys_of_a_search_space_are_listed() -> None:
    assert listed("docs/tuning.md", "## Search spaces") == defaults(Dimension)


def test_the_flags_of_tune_are_listed() -> None:
    expected = {name.replace("_", "-"): value for name, value in defaults(TuneArguments).items()}
    written = listed("docs/tuning.md", "## What happens")
    assert [name.removeprefix("--") for name in written] == list(expected)
    for name in ("trials", "jobs", "evaluations", "episodes", "sampler-seed"):
        assert written[f"--{name}"] == expected[name]


@pytest.mark.parametrize("cls", [Manifest, Entry, PeerScore, Source, Reference])
def test_a_manifest_s_keys_are_listed(cls: type[Any]) -> None:
    expected = {name: value for name, value in defaults(cls).items() if (cls, name) != NAME}
    assert listed("docs/experiments.md", f"### {MANIFEST_HEADINGS[cls]}") == expected
