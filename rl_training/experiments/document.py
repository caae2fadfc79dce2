"""A report as blocks, written as Markdown or as one self-contained HTML page."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rl_training.version import __version__


@dataclass(frozen=True)
class Heading:
    """A heading; 1 is the page's."""

    level: int
    text: str


@dataclass(frozen=True)
class Paragraph:
    """Plain text."""

    text: str


@dataclass(frozen=True)
class Table:
    """Cells of plain text, all rows as long as the header."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Link:
    """A line that is a link."""

    text: str
    url: str


@dataclass(frozen=True)
class Picture:
    """A plot: an SVG file beside the report."""

    path: Path
    caption: str


Block = Heading | Paragraph | Table | Link | Picture

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #111; background: #fff; margin: 2rem auto;
  max-width: 72rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { border: 1px solid #999; padding: 0.3rem 0.6rem; text-align: left; vertical-align: top; }
th { background: #eee; }
td.number, th.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
figure { margin: 1.5rem 0; }
figcaption { font-size: 0.875rem; max-width: 60rem; }
img { max-width: 100%; height: auto; }
@media print {
  body { font-size: 9pt; color: #000; margin: 0; max-width: none; padding: 0; }
  table { display: table; font-size: 8pt; }
  th, td { border-color: #000; padding: 0.15rem 0.3rem; }
  th { background: none; border-bottom-width: 2px; }
  h2, h3 { break-after: avoid; }
  tr, figure { break-inside: avoid; }
  figure img { max-height: 20cm; }
  a { color: #000; }
  a::after { content: " (" attr(href) ")"; overflow-wrap: anywhere; }
}
"""
_NUMBERS = re.compile(r"-?[\d,]+(\.\d+)?( to -?[\d,]+(\.\d+)?)?")


def to_markdown(blocks: Sequence[Block]) -> str:
    """Return the blocks as Markdown; pictures are links to their files."""
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {block.text}"
    if isinstance(block, Paragraph):
        return block.text
    if isinstance(block, Link):
        return f"- [{block.text}]({block.url})"
    if isinstance(block, Picture):
        return f"![{block.caption}]({block.path.name})"
    return markdown_table(block)


def markdown_table(table: Table) -> str:
    """Return a table in Markdown."""
    lines = [table.header, ["---"] * len(table.header), *table.rows]
    return "\n".join(_row(cells) for cells in lines)


def _row(cells: Sequence[str]) -> str:
    line = " | ".join(cell.replace("|", "\\|") for cell in cells)
    return f"| {line} |" if cells[0] != "---" else "|" + "|".join(cells) + "|"


def to_html(title: str, blocks: Sequence[Block]) -> str:
    """Return the blocks as one HTML page that loads nothing: pictures are part of it."""
    body = "\n".join(_html(block) for block in blocks)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n"
        f'<meta name="generator" content="rl_training {__version__}">\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{html.escape(block.text)}</h{block.level}>"
    if isinstance(block, Paragraph):
        return f"<p>{html.escape(block.text)}</p>"
    if isinstance(block, Link):
        url, text = html.escape(block.url, quote=True), html.escape(block.text)
        return f'<p><a href="{url}">{text}</a></p>'
    if isinstance(block, Picture):
        data = base64.b64encode(block.path.read_bytes()).decode("ascii")
        caption = html.escape(block.caption, quote=True)
        image = f'<img alt="{caption}" src="data:image/svg+xml;base64,{data}">'
        return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"
    return _html_table(block)


def _html_table(table: Table) -> str:
    columns = [[row[place] for row in table.rows] for place in range(len(table.header))]
    kinds = [' class="number"' if _is_numeric(column) else "" for column in columns]
    header = "".join(
        f'<th{kind} scope="col">{html.escape(cell)}</th>'
        for kind, cell in zip(kinds, table.header, strict=True)
    )
    rows = "\n".join(
        "<tr>"
        + "".join(
            f"<td{kind}>{html.escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)
        )
        + "</tr>"
        for row in table.rows
    )
    return f"<table>\n<thead><tr>{header}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>"


def _is_numeric(column: Sequence[str]) -> bool:
    """Whether a column holds numbers alone, or ranges of them."""
    return any(column) and all(_NUMBERS.fullmatch(cell) for cell in column if cell)
