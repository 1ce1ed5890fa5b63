"""Every command and snippet of the documentation runs, and every page can be reached."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from canon.attacks.registry import PRIMITIVES
from canon.io import formats
from canon.watermarks.registry import SCHEMES
from tests.docs.snippets import blocks, run_page
from tools.samples import SAMPLES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "api").glob("*.md"))]
MADE = {ROOT / "docs" / "samples" / f"{sample.name}.html" for sample in SAMPLES}
"""What the site's build makes."""

GENERATED = ("cli.md", "samples.md")
"""Pages whose commands are run where they come from: the examples of the help in tests/cli, samples by the build."""

WITH_CODE = [page for page in PAGES if "```" in page.read_text(encoding="utf-8") and page.name not in GENERATED]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.relative_to(ROOT).with_suffix("").as_posix())
def test_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in (PRIMITIVES, SCHEMES):
        monkeypatch.setattr(registry, "added", {})
    monkeypatch.setattr(formats, "_ADDED", {})
    monkeypatch.delattr(torch.nn, "tiny", raising=False)
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng(devices=[]):
        run_page(page)


def test_what_is_left_out_is_left_out_for_a_reason() -> None:
    reasons = [
        block.not_run for page in WITH_CODE for block in blocks(page.read_text(encoding="utf-8")) if block.not_run
    ]
    assert 0 < len(reasons) <= 12
    assert all(len(reason) > 15 for reason in reasons)


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                found = (page.parent / target).resolve()
                assert found.exists() or found in MADE, f"{page.name}: {target}"


def test_results_can_be_reached() -> None:
    folder = ROOT / "docs" / "results"
    pages = [*PAGES, *folder.rglob("*.md")]
    linked = {
        (page.parent / target).resolve()
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    }
    for page in folder.rglob("*.md"):
        assert page.resolve() in linked, f"{page.name} cannot be found by a reader"


PAGE = """
<!-- setup
value = 1
-->

```python
assert value == 1
made = 2
```

<!-- not run: it would take far too long -->
```sh
make everything
```

<!-- exit status: 2 -->
```sh
canon no-such-verb
```
"""


def test_a_page_is_run_block_by_block(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert run_page(page) == 3
    assert [block.line for block in blocks(PAGE)] == [3, 7, 13, 18]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("value == 1", "value == 2"),
        ("exit status: 2", "exit status: 1"),
        ("canon no-such", "make no-such"),
        ("```python", "```"),
        ("not run:", "nicht:"),
    ],
)
def test_a_page_that_is_wrong_fails(tmp_path: Path, old: str, new: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace(old, new))
    with pytest.raises(AssertionError):
        run_page(page)
