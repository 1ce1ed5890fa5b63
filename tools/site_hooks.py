"""What mkdocs does for this site beyond its plugins: sample reports, and nothing from outside.

The site must work from a folder and without a network. So the build adds the sample reports, takes the theme's few
references to outside hosts away, and fails if anything still loads from one.
"""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LONG = 42
"""Letters from which on a cell of a table counts as a sentence."""

SAMPLES = ROOT / "build" / "samples"
_LOG = logging.getLogger("mkdocs.hooks.site")

_LOADS = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed|input)\b[^>]*?\bsrc=["']?(?P<source>(?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b[^>]*?\bhref=["']?(?P<link>(?:https?:)?//[^"'\s>]+)"""
    r"""|(?:@import\s+|url\()\s*["']?(?P<style>(?:https?:)?//[^"'\s)]+)""",
    re.IGNORECASE,
)
_THEME_SCRIPTS = re.compile(r"https://unpkg\.com/[\w@./-]+")
_PICTURE = re.compile(r'<img\b[^>]*\bsrc="(?P<path>[^"]*pictures/[^"]+\.svg)"[^>]*>')
_BLANK = re.compile(r"\s*\n\s*")
_CELL = re.compile(r"<td(?P<attributes>[^>]*)>(?P<text>.*?)</td>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_DELIVERY = re.compile(r"unpkg\.com|jsdelivr|cdnjs|googleapis|gstatic|googletagmanager|polyfill\.io")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Complete the menu."""
    complete(config.nav or [], Path(config.docs_dir))
    return config


def complete(menu: list[Any], docs: Path) -> None:
    """Put pages that nobody has put into the menu at the end of their section: a page is never out of reach."""
    known = set(listed(menu))
    found = [str(page.relative_to(docs)) for pattern in ("*.md", "results/*.md") for page in sorted(docs.glob(pattern))]
    for title, folder in (("Results", "results"), ("How it works", ".")):
        more = [page for page in found if page not in known and str(Path(page).parent) == folder]
        section = next((entry[title] for entry in menu if title in entry), menu)
        section.extend(more)


def listed(menu: object) -> Iterator[str]:
    """The pages of a menu."""
    if isinstance(menu, str):
        yield menu
    elif isinstance(menu, dict):
        for entry in menu.values():
            yield from listed(entry)
    elif isinstance(menu, list):
        for entry in menu:
            yield from listed(entry)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Make the sample reports, and add them to the site."""
    from mkdocs.structure.files import File

    if _stale():
        _LOG.info("Making the sample reports (python -m tools.samples)")
        subprocess.run([sys.executable, "-m", "tools.samples", str(SAMPLES)], cwd=ROOT, check=True)
    for report in sorted(SAMPLES.glob("*.html")):
        files.append(File.generated(config, f"samples/{report.name}", abs_src_path=str(report)))
    return files


def _stale() -> bool:
    """Whether some code is newer than the oldest sample report."""
    made = [report.stat().st_mtime for report in SAMPLES.glob("*.html")]
    code = [path for folder in ("src", "tools") for path in (ROOT / folder).rglob("*.*") if path.suffix != ".pyc"]
    return not made or min(made) < max(path.stat().st_mtime for path in code)


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> None:
    """Tables of results come last in a search: their words are everywhere."""
    if page.file.src_uri.startswith("results/"):
        page.meta.setdefault("search", {"boost": 0.1})


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the text of our own pictures into the page, so that they take its colours, light or dark."""

    def inline(image: re.Match[str]) -> str:
        picture = (Path(page.file.abs_dest_path).parent / image["path"]).resolve()
        source = Path(config.docs_dir) / picture.relative_to(Path(config.site_dir).resolve())
        text = source.read_text(encoding="utf-8").replace("<svg ", '<svg class="picture" ', 1)
        return f'<span class="picture-frame">{_BLANK.sub(" ", text)}</span>'

    html = _PICTURE.sub(inline, html)
    if page.file.src_uri.startswith("results/"):
        html = f'<div class="figures">{_CELL.sub(_mark_sentence, html)}</div>'
    return html


def _mark_sentence(cell: re.Match[str]) -> str:
    """A cell of a table of figures: numbers stay on one line, sentences are given some width to wrap in."""
    long = len(_TAG.sub("", cell["text"])) > LONG
    return f'<td class="sentence"{cell["attributes"]}>{cell["text"]}</td>' if long else cell[0]


def on_post_build(*, config: MkDocsConfig) -> None:
    """Take away what the theme would fetch from elsewhere, and check the rest."""
    from mkdocs.exceptions import PluginError

    site = Path(config.site_dir)
    for script in (site / "assets" / "javascripts").glob("*.js"):
        text = script.read_text(encoding="utf-8")
        script.write_text(_THEME_SCRIPTS.sub("about:blank", text), encoding="utf-8")
    for source in (site / "assets").rglob("*.map"):
        source.unlink()
    found = list(outside(site))
    if found:
        raise PluginError("the site would load from outside:\n  " + "\n  ".join(found))


def outside(site: Path) -> Iterator[str]:
    """Every place of the built site that loads something from another host, as `file: address`."""
    for path in sorted(site.rglob("*")):
        if path.suffix in (".html", ".css", ".js", ".svg"):
            text = path.read_text(encoding="utf-8")
            found = {match[match.lastgroup or 0] for match in _LOADS.finditer(text)} if path.suffix != ".js" else set()
            if path.suffix == ".js":
                found |= {match[0] for match in _DELIVERY.finditer(text)}
            yield from (f"{path.relative_to(site)}: {address}" for address in sorted(found))
