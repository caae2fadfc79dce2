"""The site of the docs: every page is in its menu, every public name in its reference, nothing is
loaded from elsewhere. `make check` builds it, strictly.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import rl_training
from rl_training.registry import import_object
from tests.docs.pages import PAGES, REPOSITORY, text

REFERENCE = {page: re.findall(r"^::: (\S+)$", text(page), re.MULTILINE) for page in PAGES}


class Loader(yaml.SafeLoader):
    """Leaves out what is Python's own in MkDocs' configuration."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)


def menu(part: Any) -> list[str]:
    if isinstance(part, str):
        return [part]
    parts = part.values() if isinstance(part, dict) else part
    return [page for each in parts for page in menu(each)]


def test_every_page_is_in_the_menu_once() -> None:
    config = yaml.load((REPOSITORY / "mkdocs.yml").read_text("utf-8"), Loader)
    pages = menu(config["nav"])
    assert len(pages) == len(set(pages))
    written = {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")}
    assert set(pages) - written == {"readme.md", "zoo.md", "changelog.md"}
    assert {page for page in written if not page.startswith("benchmarks/")} <= set(pages)


def test_the_reference_has_every_public_name() -> None:
    named = {name for names in REFERENCE.values() for name in names}
    objects = {}
    for name in named:
        module, _, attribute = name.rpartition(".")
        objects[name] = import_object(f"{module}:{attribute}")
        assert objects[name].__doc__
    there = list(objects.values())
    for name in rl_training.__all__:
        if name != "__version__":
            assert any(getattr(rl_training, name) is each for each in there), name


@pytest.mark.slow
def test_the_site_is_built_and_loads_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    subprocess.run(command, cwd=REPOSITORY, check=True)
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        content = page.read_text("utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]+src=\"?([^\" >]+)", content)
        loaded += re.findall(r"<link[^>]+stylesheet[^>]+href=\"?([^\" >]+)", content)
        assert not [each for each in loaded if each.startswith(("http:", "https:", "//"))]
    code = (tmp_path / "source/rl_training/recipes/ppo.py.html").read_text("utf-8")
    assert "PPOConfig" in code
    assert 'href="source/rl_training/recipes/ppo.py.html"' in (tmp_path / "ppo.html").read_text(
        "utf-8"
    )
