"""The page in a real browser: what it shows, what it asks for, and how it fits."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from canon.report import write_report
from tests.report.documents import documents, hostile

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NEEDED = bool(os.environ.get("CANON_REQUIRE_BROWSER"))
"""Whether a missing browser is a failure, as it is in continuous integration."""

PHONE, DESKTOP = 390, 1280
CONTRAST = """
() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = (colour) => {
    const [r, g, b] = parts(colour).map((x) => (x /= 255) <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!/, 0\\)$|transparent/.test(colour)) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  let worst = [21, ''];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const front = element.namespaceURI.endsWith('svg') ? style.fill : style.color;
    const [low, high] = [light(front), light(ground(element))].sort((a, b) => a - b);
    const found = (high + 0.05) / (low + 0.05);
    if (found < worst[0]) worst = [found, walker.currentNode.textContent.trim()];
  }
  return worst;
}
"""
"""The least contrast of any text that is shown, and the text."""


@dataclass
class Visit:
    """A page that is open, and what happened since."""

    page: Page
    requests: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        message = "no chromium on this machine; install the package 'chromium' to see the report in a browser"
        if NEEDED:
            pytest.fail(message)
        pytest.skip(message)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    for name, document in {**documents(), "hostile": hostile()}.items():
        write_report(document, folder / f"{name}.html")
    return folder


def visit(browser: Browser, path: Path, width: int = DESKTOP, scheme: Literal["light", "dark"] = "light") -> Visit:
    page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    seen = Visit(page)
    page.on("request", lambda request: seen.requests.append(request.url))
    page.on("console", lambda message: seen.messages.append(message.text))
    page.on("pageerror", lambda error: seen.messages.append(str(error)))
    page.on("dialog", lambda dialog: seen.messages.append(dialog.message))
    page.goto(path.as_uri())
    return seen


def check_quiet(seen: Visit, path: Path) -> None:
    """Nothing but the page itself was asked for, and nothing was complained of."""
    assert seen.requests == [path.as_uri()]
    assert seen.messages == []


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [
        ("proved", PHONE, "light"),
        ("proved", DESKTOP, "dark"),
        ("layout", PHONE, "dark"),
        ("refuted", DESKTOP, "light"),
        ("wider", PHONE, "light"),
        ("wider", DESKTOP, "dark"),
        ("recovered", PHONE, "dark"),
        ("hostile", PHONE, "light"),
        ("hostile", DESKTOP, "light"),
    ],
)
def test_pages_fit_can_be_read_and_ask_for_nothing(
    browser: Browser, pages: Path, name: str, width: int, scheme: Literal["light", "dark"]
) -> None:
    path = pages / f"{name}.html"
    seen = visit(browser, path, width, scheme)
    page = seen.page
    for opened in (False, True):
        page.evaluate(f"document.querySelectorAll('details').forEach((part) => part.open = {str(opened).lower()})")
        assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
        worst, text = page.evaluate(CONTRAST)
        assert worst >= 4.5, text
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 21, 27)"
    assert dark is (scheme == "dark")
    assert page.evaluate("window.ran") is None
    check_quiet(seen, path)
    page.close()


def test_the_verdict_and_the_figures_are_shown(browser: Browser, pages: Path) -> None:
    seen = visit(browser, pages / "proved.html", PHONE)
    page = seen.page
    assert page.locator("h1").inner_text() == "The suspect is the owner's model, in disguise"
    assert page.locator("h1").bounding_box() is not None
    assert page.locator("h1").evaluate("(e) => e.getBoundingClientRect().bottom < innerHeight"), (
        "the verdict comes first"
    )
    document = documents()["proved"]
    assert page.locator("#network li .bar").count() == len(document["network"])
    widths = page.locator("#network .bar").evaluate_all(
        "(bars) => bars.map((bar) => bar.getBoundingClientRect().width)"
    )
    assert min(widths) > 100
    added = page.locator("#network .bar .cancelling").first.evaluate("(e) => getComputedStyle(e).fill")
    assert added == "rgb(207, 84, 39)"
    assert page.locator("#message svg .fill").count() == 3
    assert page.locator("#message").get_by_text("chance level", exact=True).first.is_visible()
    assert page.get_by_text("this model: 128").is_visible()
    assert page.locator("#comparison .chart .fill").count() >= 1
    assert page.get_by_role("heading", name="Where this comes from").is_visible()
    page.close()


def test_numbers_are_there_on_demand_and_by_keyboard(browser: Browser, pages: Path) -> None:
    page = visit(browser, pages / "proved.html").page
    table = page.get_by_role("region", name="Output channels of every layer").get_by_role("table")
    assert not table.is_visible()
    page.locator("#network summary").first.focus()
    page.keyboard.press("Enter")
    assert table.is_visible()
    assert table.get_by_role("row").count() == 1 + len(documents()["proved"]["network"])
    page.goto(page.url.split("#")[0])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the verdict"
    page.close()


def test_a_screen_reader_finds_its_way(browser: Browser, pages: Path) -> None:
    page = visit(browser, pages / "proved.html").page
    for role in ("banner", "navigation", "main", "contentinfo"):
        assert page.get_by_role(role).count() == 1, role
    levels = page.locator("h1, h2, h3").evaluate_all("(found) => found.map((one) => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    nameless = "(found) => found.filter((one) => !one.getAttribute('aria-label')).length"
    assert page.locator("[role=img]").evaluate_all(nameless) == 0
    bare = "(found) => found.filter((one) => !one.closest('[role=img]') && !one.closest('[aria-hidden=true]')).length"
    assert page.locator("main svg:not([aria-hidden]):not([role])").evaluate_all(bare) == 0
    assert page.locator("table:not(:has(caption))").count() == 0
    assert page.locator("html").get_attribute("lang") == "en"
    page.close()


def test_it_prints(browser: Browser, pages: Path, tmp_path: Path) -> None:
    page = visit(browser, pages / "proved.html", scheme="dark").page
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.get_by_role("navigation").is_visible()
    printed = page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    assert 2 <= printed.count(b"/Type /Page\n") <= 6
    page.close()
