"""README and docs as data: code blocks, tables, links."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parent.parent.parent
PAGES = {
    path.relative_to(REPOSITORY).as_posix(): path
    for path in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
}
_FENCE = re.compile(r"^```(\w*)(?: (.*))?$")
_SKIP = re.compile(r"<!-- skip: .+ -->")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    """Of its first line of code, counted from 1."""
    language: str
    title: str | None
    """Name of the file that the block is, where it says so."""
    code: str
    skipped: bool
    """Whether a comment ``<!-- skip: reason -->`` stands right before it."""


def text(page: str) -> str:
    return PAGES[page].read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[Block]:
    """Return the page's blocks in one language, in order."""
    found = []
    lines = text(page).splitlines()
    start: int | None = None
    kind, info = "", ""
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if fence is None:
            continue
        if start is None:
            start, kind, info = number, fence[1], fence[2] or ""
            continue
        if kind == language:
            title = re.search(r'title="([^"]+)"', info)
            found.append(
                Block(
                    page=page,
                    line=start + 2,
                    language=kind,
                    title=None if title is None else title[1],
                    code="\n".join(lines[start + 1 : number]) + "\n",
                    skipped=start > 0 and bool(_SKIP.fullmatch(lines[start - 1])),
                )
            )
        start = None
    assert start is None, f"{page} has a block without an end"
    return found


def without_blocks(page: str) -> str:
    """Return the page's prose."""
    kept, inside = [], False
    for line in text(page).splitlines():
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            kept.append(line)
    return "\n".join(kept)


def section(page: str, heading: str) -> str:
    """Return what stands under a heading such as ``"## Fields"``, up to the next of its level."""
    level = heading.split()[0]
    lines = without_blocks(page).splitlines()
    begin = lines.index(heading) + 1
    rest = lines[begin:]
    ends = (i for i, line in enumerate(rest) if re.match(rf"#{{1,{len(level)}}} ", line))
    return "\n".join(rest[: next(ends, len(rest))])


def rows(part: str) -> list[list[str]]:
    """Return the cells of every table row in a part of a page, headers left out."""
    table = [line for line in part.splitlines() if line.startswith("|")]
    rules = {i for i, line in enumerate(table) if re.fullmatch(r"[|\- :]+", line)}
    headers = {i - 1 for i in rules}
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for i, line in enumerate(table)
        if i not in rules | headers
    ]


def named(cell: str) -> str | None:
    """Return the text of a cell that is one piece of code."""
    match = re.fullmatch(r"`([^`]+)`", cell)
    return None if match is None else match[1]


def pyproject() -> dict[str, Any]:
    # Before Python 3.11 pytest itself brings the reader.
    reader = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    content: dict[str, Any] = reader.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
    return content
