"""What import contracts cannot say about the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "rl_training"
MODULES = {
    path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(PACKAGE.rglob("*.py"))
}


def calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_only_the_loop_builds_a_collector() -> None:
    builders = {
        name
        for name, tree in MODULES.items()
        if any(call.endswith("Collector") for call in calls(tree))
    }
    assert builders == {"loop.py"}


@pytest.mark.parametrize("name", MODULES)
def test_nothing_is_unpickled_or_evaluated(name: str) -> None:
    tree = MODULES[name]
    assert not {"pickle", "cloudpickle", "dill", "marshal", "shelve"} & set(imports(tree))
    assert not {"eval", "exec", "torch.load", "yaml.unsafe_load"} & set(calls(tree))
