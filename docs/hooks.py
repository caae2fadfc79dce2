"""What MkDocs does not do by itself: links out of docs/ lead to copies of what they name.

README, zoo/README.md and CHANGELOG become pages of the site, files of code become pages with the
code, directories lists of what is in them. So the same links work here and in the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

REPOSITORY = Path(__file__).parent.parent
PAGES = {"README.md": "readme.md", "zoo/README.md": "zoo.md", "CHANGELOG.md": "changelog.md"}
"""Files outside of docs/ that are pages, and what they are called here."""
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml"}
_LINK = re.compile(r"(?<=\]\()([^)#\s]*)(#[^)\s]*)?(?=\))")
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_config(config: Any) -> Any:
    """Put the reports of benchmarks into the menu, however many there are."""
    reports = sorted((REPOSITORY / "docs" / "benchmarks").rglob("*.md"))
    pages = [
        {"Zoo": "zoo.md"},
        *(path.relative_to(REPOSITORY / "docs").as_posix() for path in reports),
    ]
    for entry in config.nav:
        if "Benchmarks" in entry:
            entry["Benchmarks"] = pages
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that docs/ does not hold."""
    wanted = {path: place for path, place in PAGES.items() if (REPOSITORY / path).is_file()}
    sources = {path: (REPOSITORY / path).read_text(encoding="utf-8") for path in wanted}
    sources |= {f"docs/{each.src_uri}": each.content_string for each in files.documentation_pages()}
    for path, text in sources.items():
        for target in _targets(text, posixpath.dirname(path)):
            if target not in PAGES and not target.startswith("docs/"):
                wanted[target] = _place(target)
    for path, place in wanted.items():
        level = InclusionLevel.INCLUDED if path in PAGES else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, place, content=_content(path), inclusion=level))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let a page's links lead to the copies."""
    here = page.file.src_uri
    origin = next((path for path, place in PAGES.items() if place == here), f"docs/{here}")
    if here.startswith("source/"):
        return markdown
    parts = _FENCED.split(markdown)
    return "".join(
        part if part.startswith("```") else _relinked(part, origin, here) for part in parts
    )


def _relinked(text: str, origin: str, here: str) -> str:
    def replace(match: re.Match[str]) -> str:
        target = _resolved(match[1], posixpath.dirname(origin))
        if target is None:
            return match[0]
        place = posixpath.relpath(_place(target), posixpath.dirname(here) or ".")
        return place + (match[2] or "")

    return _LINK.sub(replace, text)


def _targets(text: str, directory: str) -> set[str]:
    found = set()
    for part in _FENCED.split(text):
        if not part.startswith("```"):
            found |= {_resolved(match[1], directory) for match in _LINK.finditer(part)}
    return {each for each in found if each is not None}


def _resolved(link: str, directory: str) -> str | None:
    """Return the path in the repository that a link names; None for one of another kind."""
    if not link or "://" in link or link.startswith(("mailto:", "<")):
        return None
    path = posixpath.normpath(posixpath.join(directory, link))
    return path if (REPOSITORY / path).exists() else None


def _place(path: str) -> str:
    """Return where in the site a file of the repository is."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return PAGES.get(path, f"source/{path}.md")


def _content(path: str) -> str:
    file = REPOSITORY / path
    if path in PAGES:
        return file.read_text(encoding="utf-8")
    if file.is_dir():
        names = sorted(each.name for each in file.iterdir() if not each.name.startswith(("_", ".")))
        return f"# {path}\n\n" + "\n".join(f"- `{name}`" for name in names) + "\n"
    language = _LANGUAGES.get(file.suffix, "text")
    return f"# {path}\n\n````{language}\n{file.read_text(encoding='utf-8')}\n````\n"
