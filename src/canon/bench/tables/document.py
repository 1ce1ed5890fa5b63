"""A page of results: headings, paragraphs, tables and figures, written as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

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
    return f'<span style="color:{RED}">{cell}</span>' if is_bad(cell) else cell


def is_bad(text: str) -> bool:
    """Whether a cell says that something is not as it should be."""
    return text.endswith(BAD) or text.startswith("**failed**")
