"""What the site says about itself is true, and its build fails where it should."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.snippets import blocks
from tools import architecture, package, samples
from tools.docstring_examples import fenced
from tools.site_hooks import complete, listed, outside

ROOT = Path(__file__).parents[2]


def menu() -> list[Any]:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    found: list[Any] = yaml.safe_load(text[text.index("\nnav:") :])["nav"]
    return found


def test_the_menu_leads_to_every_page_once() -> None:
    docs = ROOT / "docs"
    found = menu()
    complete(found, docs)
    pages = list(listed(found))
    assert len(pages) == len(set(pages))
    assert set(pages) == {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}


def test_a_page_that_nobody_listed_stands_at_the_end_of_its_section(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    for name in ("index.md", "new.md", "results/old.md", "results/newer.md"):
        (tmp_path / name).touch()
    found: list[Any] = ["index.md", {"How it works": []}, {"Results": ["results/old.md"]}]
    complete(found, tmp_path)
    assert found == ["index.md", {"How it works": ["new.md"]}, {"Results": ["results/old.md", "results/newer.md"]}]


def test_the_picture_of_the_packages_is_current() -> None:
    picture = ROOT / "docs" / "pictures" / "architecture.svg"
    assert picture.read_text(encoding="utf-8") == architecture.draw(architecture.imports_of()), "run `make pictures`"


def test_the_picture_changes_with_the_imports() -> None:
    imports = {name: set(others) for name, others in architecture.imports_of().items()}
    before = architecture.draw({name: frozenset(others) for name, others in imports.items()})
    imports["transforms"].add("graph")
    assert architecture.draw({name: frozenset(others) for name, others in imports.items()}) != before


def test_every_package_is_in_the_picture() -> None:
    imports = architecture.imports_of()
    folders = {path.parent.name for path in (ROOT / "src" / "canon").glob("*/__init__.py")}
    assert folders <= set(imports)
    text = architecture.draw(imports)
    assert all(f">{name}</text>" in text for name in folders)


def test_what_follows_from_other_imports_is_left_out() -> None:
    imports = {"d": frozenset("abc"), "c": frozenset("a"), "b": frozenset("a"), "a": frozenset[str]()}
    assert architecture.reduced(imports) == {**imports, "d": frozenset("bc")}
    assert architecture.depths(imports) == {"d": 2, "c": 1, "b": 1, "a": 0}


def test_boxes_of_a_row_do_not_overlap() -> None:
    centres = architecture.arrange(architecture.reduced(architecture.imports_of()))
    for row in {place.row for place in centres}:
        boxes = sorted(centre for place, centre in centres.items() if place.row == row and place.via is None)
        assert all(right - left >= architecture.WIDTH for left, right in pairwise(boxes))


def test_the_page_of_samples_shows_the_commands_that_made_them() -> None:
    page = (ROOT / "docs" / "samples.md").read_text(encoding="utf-8")
    shown = [line for block in blocks(page) for line in block.code.splitlines()]
    assert shown == [*samples.PREPARATION, *(sample.command for sample in samples.SAMPLES)]


@pytest.mark.parametrize("sample", samples.SAMPLES, ids=lambda sample: sample.name)
def test_a_sample_that_says_something_else_is_refused(sample: samples.Sample) -> None:
    good: dict[str, dict[str, Any]] = {
        "answers": {"network": {"answer": sample.network}},
        "verdict": {"kind": sample.verdict},
    }
    samples.check(sample, good)
    with pytest.raises(RuntimeError, match=sample.name):
        samples.check(sample, {**good, "verdict": {"kind": "proved"}})
    with pytest.raises(RuntimeError, match=sample.name):
        samples.check(sample, {**good, "answers": {"network": {"answer": "derived"}}})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("page.html", '<script src="https://unpkg.com/a.js"></script>'),
        ("page.html", "<img alt='' src='//example.org/a.png'>"),
        ("page.html", '<link rel="stylesheet" href="http://example.org/a.css">'),
        ("page.html", '<style>@import "https://example.org/a.css";</style>'),
        ("style.css", "body { background: url(https://example.org/a.png) }"),
        ("script.js", 'load("https://cdnjs.cloudflare.com/a.js")'),
    ],
)
def test_what_loads_from_outside_is_found(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert len(list(outside(tmp_path))) == 1


def test_links_to_outside_and_own_files_are_fine(tmp_path: Path) -> None:
    text = (
        '<a href="https://example.org">there</a><script src="own.js"></script><svg xmlns="http://www.w3.org/2000/svg"/>'
    )
    (tmp_path / "page.html").write_text(text)
    (tmp_path / "own.js").write_text('const namespace = "http://www.w3.org/2000/svg"')
    assert list(outside(tmp_path)) == []


def test_examples_of_docstrings_become_code() -> None:
    assert fenced("Text.\n\n>>> 1\n1\n\nMore.") == "Text.\n\n```pycon\n>>> 1\n1\n```\n\nMore."
    assert fenced("No example.") == "No example."


def test_a_package_over_its_budget_is_named() -> None:
    good = package.Package(1, 1, Counter(), 1, (), 0.1, 0.5, 0.05, "matches", (20, 10**9), "mine: 1 cases: 1 done")
    assert package.faults(good) == []
    bad = package.Package(
        1, 1, Counter(), 1, ("a.jsonl",), 0.3, 0.8, 0.05, "refuted", (20, 10**9), "mine: 1 cases: 1 failed"
    )
    assert len(package.faults(bad)) == 5


def test_the_stated_package_is_within_its_budget() -> None:
    rows = [line.split(" | ") for line in (ROOT / "docs" / "package.md").read_text(encoding="utf-8").splitlines()]
    stated = {row[0].strip("| "): row[1] for row in rows if len(row) == 3}
    assert float(stated["`import canon`"].split()[0]) < package.IMPORT_BUDGET
    assert float(stated["`canon --help`"].split()[0]) < package.HELP_BUDGET
    assert stated["records of the benchmark in it"] == "none"
