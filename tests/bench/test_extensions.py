"""What other packages add to the benchmark, and what is there without them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import canon_benchmarks
from canon.bench import extensions
from canon.bench.extensions import Extension, extend, kinds, part_of, suite_texts
from canon.bench.suite import Suite, load_suite
from canon.bench.tables import suite_page
from canon.bench.tables.document import Figure, markdown
from canon.errors import BenchError
from tests.bench.samples import done, recovery

ROOT = Path(__file__).parents[2]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an environment that has the wheel and nothing else."""
    own = {"canon.bench": extensions._EXTENSIONS["canon.bench"]}
    monkeypatch.setattr(extensions, "_EXTENSIONS", own)
    monkeypatch.setattr(extensions, "_load", lambda: None)


def test_the_repositorys_own_measurements_are_an_extension() -> None:
    project = tomllib.loads((ROOT / "benchmarks" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"][extensions.GROUP] == {"canon_benchmarks": canon_benchmarks.__name__}
    assert {"training", "recovery", "methods", "clean"} <= set(kinds())
    assert "paper" in suite_texts()


def test_without_it_there_are_two_kinds_and_no_suites(alone: None) -> None:
    assert set(kinds()) == {"training", "recovery"}
    assert suite_texts() == {}
    with pytest.raises(BenchError, match="no kind of case is called 'clean'"):
        part_of("clean", "case")
    with pytest.raises(BenchError, match="None is installed; give the path"):
        load_suite("quick")


def test_a_page_without_it_has_tables_and_no_figures(alone: None) -> None:
    found = [done(recovery("nso_zero"))]
    page = suite_page(Suite("mine", "Mine", "About it.", (found[0].case,)), found)
    assert "0.5312→1.0000 (0.4688)" in markdown(page)
    assert "paper" not in markdown(page)
    assert not any(isinstance(block, Figure) for block in page.blocks)


def test_two_packages_cannot_have_one_kind(alone: None) -> None:
    with pytest.raises(BenchError, match="both have the kinds of cases"):
        extend(Extension("other", ("recovery",)))
