"""The page in a real browser: what it shows, what it asks for, and how it fits."""

from __future__ import annotations

import copy
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
PATIENCE = 300_000
"""Milliseconds that a browser on a busy machine may take for anything."""

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
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=PATIENCE)
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
    page.set_default_timeout(PATIENCE)
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
        ("equal", PHONE, "light"),
        ("equal", DESKTOP, "dark"),
        ("layout", PHONE, "dark"),
        ("unrelated", DESKTOP, "light"),
        ("derived", PHONE, "light"),
        ("contained", DESKTOP, "dark"),
        ("void_key", PHONE, "dark"),
        ("claimed", DESKTOP, "light"),
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


@pytest.mark.parametrize("name", ["equal", "contained", "derived", "unrelated", "wrong_key", "void_key", "new_head"])
def test_questions_and_verdict_are_above_the_fold(browser: Browser, pages: Path, name: str) -> None:
    page = visit(browser, pages / f"{name}.html").page
    inside = "(found) => found.map((one) => one.getBoundingClientRect().bottom <= innerHeight)"
    assert all(page.locator(".answers li").evaluate_all(inside))
    assert page.locator("#headline").evaluate_all(inside) == [True]
    page.set_viewport_size({"width": PHONE, "height": 844})
    assert page.locator(".answer").evaluate_all(inside)[:3] == [True] * 3
    page.close()


def test_the_figures_are_shown(browser: Browser, pages: Path) -> None:
    page = visit(browser, pages / "equal.html", PHONE).page
    document = documents()["equal"]
    assert page.locator("#network li .bar").count() == len(document["network"])
    widths = page.locator("#network .bar").evaluate_all(
        "(bars) => bars.map((bar) => bar.getBoundingClientRect().width)"
    )
    assert min(widths) > 100
    added = page.locator("#network .bar .cancelling").first.evaluate("(e) => getComputedStyle(e).fill")
    assert added == "rgb(207, 84, 39)"
    assert page.locator("#message svg .fill").count() == 3
    assert page.get_by_text("the suspect: 64").is_visible()
    assert page.locator("#message .chart .curve").count() > 5
    assert page.locator("#comparison .chart .fill").count() >= 1
    assert page.get_by_role("heading", name="Where this comes from").is_visible()
    page.close()


def test_tables_are_there_and_by_keyboard(browser: Browser, pages: Path) -> None:
    page = visit(browser, pages / "equal.html").page
    table = page.get_by_role("region", name="Output channels of every layer").get_by_role("table")
    assert table.is_visible()
    assert table.get_by_role("row").count() == 1 + len(documents()["equal"]["network"])
    page.goto(page.url.split("#")[0])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the answers"
    page.close()


def test_a_screen_reader_finds_its_way(browser: Browser, pages: Path) -> None:
    page = visit(browser, pages / "equal.html").page
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


def test_it_prints(browser: Browser, pages: Path) -> None:
    page = visit(browser, pages / "equal.html", scheme="dark").page
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.get_by_role("navigation").is_visible()
    printed = page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    assert 4 <= printed.count(b"/Type /Page\n") <= 12
    page.close()


@pytest.mark.parametrize("name", ["equal", "contained", "stranger"])
def test_all_that_the_text_points_to_is_printed(browser: Browser, pages: Path, name: str) -> None:
    """Nothing is collapsed, scrolled away or hidden on paper, save the menu and the raw document."""
    document = documents()[name]
    page = visit(browser, pages / f"{name}.html", width=720).page
    page.emulate_media(media="print")
    text = " ".join(page.locator("body").inner_text().split())
    wanted = [*document["options"], *document["environment"].values(), document["digest"], *document["record"].values()]
    wanted += [layer["name"] for layer in document["certificate"]["layers"]]
    wanted += [value for names in document["inputs"].values() for value in names.values()]
    wanted += ["Every compared layer", "Options and versions", "Which answers lead to which verdict"]
    assert [words for words in wanted if str(words) not in text] == []
    hidden = """(found) => found.filter((one) => !one.closest('nav, .whole, .skip') &&
        (!one.getClientRects().length || one.scrollHeight > one.clientHeight + 1)).length"""
    assert page.locator(".scroll").evaluate_all(hidden) == 0
    page.close()


def test_stages_open_on_paper(browser: Browser, tmp_path: Path) -> None:
    document = copy.deepcopy(documents()["recovered"])
    layer = document["network"][0]
    document["network"] = [{**layer, "name": f"blocks.{i // 9}.layer{i}"} for i in range(60)]
    write_report(document, tmp_path / "page.html")
    page = visit(browser, tmp_path / "page.html").page
    inside = page.locator(".stage .network").first
    assert not inside.is_visible()
    page.emulate_media(media="print")
    assert inside.bounding_box() is not None
    assert inside.evaluate("(one) => one.checkVisibility()")
    page.close()
