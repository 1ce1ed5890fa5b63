"""Look at every page of the built site as readers do: on a desk, on a phone, in the dark.

`python -m tools.look build/docs FOLDER` opens every page in Chromium from its file, keeps a picture of each, and fails
if a page is wider than the screen, has an error in its console, or asks for anything outside the site.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

TALLEST = 6000
"""Pixels of a picture; longer pages are cut."""


@dataclass(frozen=True)
class View:
    """One way to look at a page."""

    name: str
    width: int
    height: int
    dark: bool = False


VIEWS = (View("desk", 1280, 900), View("phone", 390, 844), View("dark", 1280, 900, dark=True))


def look(site: Path, pictures: Path, only: Sequence[str] = ()) -> list[str]:
    """Open the pages and keep their pictures; gives what is wrong with them."""
    from playwright.sync_api import sync_playwright

    pages = [page for page in sorted(site.rglob("*.html")) if page.name != "404.html"]
    if only:
        pages = [page for page in pages if any(part in str(page.relative_to(site)) for part in only)]
    pictures.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        found = [fault for view in VIEWS for fault in _faults(browser, view, site, pages, pictures)]
        found += _search_faults(browser, site)
        browser.close()
    return found


def _faults(browser: Browser, view: View, site: Path, pages: Sequence[Path], pictures: Path) -> Iterator[str]:
    context = browser.new_context(
        viewport={"width": view.width, "height": view.height}, color_scheme="dark" if view.dark else "light"
    )
    for path in pages:
        name = str(path.relative_to(site))
        said: list[str] = []
        page = context.new_page()
        _listen(page, said)
        page.goto(path.resolve().as_uri())
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        tall = min(TALLEST, page.evaluate("document.documentElement.scrollHeight"))
        page.set_viewport_size({"width": view.width, "height": max(view.height, tall)})
        page.screenshot(path=pictures / f"{name.replace('/', '-')}.{view.name}.png")
        page.close()
        yield from (f"{name} ({view.name}): {what}" for what in said)
        if wide > 0:
            yield f"{name} ({view.name}): {wide} pixels wider than the screen"
    context.close()


def _search_faults(browser: Browser, site: Path) -> Iterator[str]:
    """Search must work from a file: a word of the glossary is asked for, as a reader does."""
    from playwright.sync_api import TimeoutError

    page = browser.new_page(viewport={"width": VIEWS[0].width, "height": VIEWS[0].height})
    page.goto((site / "index.html").resolve().as_uri())
    try:
        page.click("[data-md-component=search-query]")
        page.locator("[data-md-component=search-query]").press_sequentially("layout key", delay=60)
        page.wait_for_selector(".md-search-result__item a", timeout=60_000)
    except TimeoutError as error:
        yield f"index.html: the search finds nothing: {error}"
    page.close()


def _listen(page: Page, said: list[str]) -> None:
    def note_message(message: ConsoleMessage) -> None:
        if message.type == "error":
            said.append(message.text)

    def note_request(request: Request) -> None:
        if not request.url.startswith(("file:", "data:", "about:", "blob:")):
            said.append(f"asks for {request.url}")

    page.on("console", note_message)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", note_request)


def main() -> None:
    """Look, and say what is wrong."""
    parser = argparse.ArgumentParser(description="Open every page of the built site in Chromium.")
    parser.add_argument("site", type=Path)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--only", action="append", default=[], help="Part of a page's path; repeatable.")
    arguments = parser.parse_args()
    found = look(arguments.site, arguments.pictures, arguments.only)
    for fault in found:
        print(fault, file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
