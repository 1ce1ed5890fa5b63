"""A page of results: headings, paragraphs, tables and figures, written as Markdown or as HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 90rem; padding: 0 1rem; color: #222; }
div.table { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: 13px; }
th:first-child, td:first-child { position: sticky; left: 0; background: #fff; }
td.bad { color: #b00020; background: #fdecee; }
th, td { border-bottom: 1px solid #ddd; padding: .25rem .6rem; text-align: left; white-space: nowrap; }
th { border-bottom: 2px solid #888; }
tr.aside { color: #777; font-style: italic; }
figure { margin: 1rem 0; }
figure svg { max-width: 100%; height: auto; }
figcaption { color: #555; }
code { background: #f4f4f4; padding: 0 .2rem; }
""".strip()

RED: Final = "#b00020"
"""Of cells that failed."""

BAD: Final = "**!**"
"""Ends a cell whose case did not come out as it should."""


@dataclass(frozen=True)
class Heading:
    """A heading below the page's title."""

    text: str


@dataclass(frozen=True)
class Paragraph:
    """Plain text; `code` and **strong** are marked as in Markdown."""

    text: str


@dataclass(frozen=True)
class Items:
    """A list of points."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """A row of a table."""

    cells: tuple[str, ...]
    aside: bool = False
    """Whether it stands back, as a published row beside ours."""


@dataclass(frozen=True)
class Table:
    """Cells under a head."""

    head: tuple[str, ...]
    rows: tuple[Row, ...]

    @staticmethod
    def of(head: Sequence[str], rows: Sequence[Sequence[str] | Row]) -> Table:
        """A table of plain rows."""
        return Table(tuple(head), tuple(row if isinstance(row, Row) else Row(tuple(row)) for row in rows))


@dataclass(frozen=True)
class Figure:
    """A drawing, in a file of its own beside the page."""

    name: str
    caption: str
    svg: str = field(repr=False)


Block = Heading | Paragraph | Items | Table | Figure


@dataclass(frozen=True)
class Page:
    """What is known of one suite."""

    name: str
    title: str
    blocks: tuple[Block, ...]


def markdown(page: Page) -> str:
    """The page as Markdown; figures are linked."""
    return "\n\n".join([f"# {page.title}", *(_markdown(block) for block in page.blocks)]) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        return f"## {block.text}"
    if isinstance(block, Paragraph):
        return block.text
    if isinstance(block, Items):
        return "\n".join(f"- {item}" for item in block.items)
    if isinstance(block, Figure):
        return f"![{block.caption}](figures/{block.name}.svg)"
    rows = [[_red(f"*{cell}*" if row.aside and cell else cell) for cell in row.cells] for row in block.rows]
    lines = [list(block.head), ["---"] * len(block.head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _red(cell: str) -> str:
    return f'<span style="color:{RED}">{cell}</span>' if _is_bad(cell) else cell


def to_html(pages: Sequence[Page], title: str) -> str:
    """All pages in one file that needs no other."""
    links = "".join(f'<li><a href="#{page.name}">{_inline(page.title)}</a></li>' for page in pages)
    body = "\n".join(
        f'<section id="{page.name}"><h1>{_inline(page.title)}</h1>\n{chr(10).join(map(_html, page.blocks))}\n</section>'
        for page in pages
    )
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    for page in pages:
        body = body.replace(f'href="{page.name}.md"', f'href="#{page.name}"')
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n<ul>{links}</ul>\n{body}\n</body></html>\n'


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h2>{_inline(block.text)}</h2>"
    if isinstance(block, Paragraph):
        return f"<p>{_inline(block.text)}</p>"
    if isinstance(block, Items):
        return "<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in block.items) + "</ul>"
    if isinstance(block, Figure):
        drawing = block.svg[block.svg.index("<svg") :]
        return f"<figure>{drawing}<figcaption>{_inline(block.caption)}</figcaption></figure>"
    head = "".join(f"<th>{_inline(cell)}</th>" for cell in block.head)
    rows = "\n".join(
        f"<tr{' class=aside' if row.aside else ''}>{''.join(map(_cell, row.cells))}</tr>" for row in block.rows
    )
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table></div>'


def _cell(text: str) -> str:
    return f"<td{' class=bad' if _is_bad(text) else ''}>{_inline(text)}</td>"


def _is_bad(text: str) -> bool:
    return text.endswith(BAD) or text.startswith("**failed**")


def _inline(text: str) -> str:
    """Markdown's marks for code and strong words, and links, as HTML."""
    escaped = html.escape(text, quote=False)
    for mark, tag in (("`", "code"), ("**", "strong")):
        parts = escaped.split(mark)
        escaped = parts[0] + "".join(
            (f"<{tag}>" if index % 2 == 0 else f"</{tag}>") + part for index, part in enumerate(parts[1:])
        )
    return re.sub(r"\[([^\]]+)\]\(([^)]+)\)", r'<a href="\2">\1</a>', escaped)
