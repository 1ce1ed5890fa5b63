"""All pages of results in one HTML file that needs no other."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Final

from canon.bench.tables.document import Block, Figure, Heading, Items, Page, Paragraph, is_bad

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
code { background: #f4f4f4; padding: 0 .2rem; overflow-wrap: anywhere; }
""".strip()


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
    return f"<td{' class=bad' if is_bad(text) else ''}>{_inline(text)}</td>"


def _inline(text: str) -> str:
    """Markdown's marks for code and strong words, and links, as HTML."""
    escaped = html.escape(text, quote=False)
    for mark, tag in (("`", "code"), ("**", "strong")):
        parts = escaped.split(mark)
        escaped = parts[0] + "".join(
            (f"<{tag}>" if index % 2 == 0 else f"</{tag}>") + part for index, part in enumerate(parts[1:])
        )
    return re.sub(r"\[([^\]]+)\]\(([^)]+)\)", r'<a href="\2">\1</a>', escaped)
