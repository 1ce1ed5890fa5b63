"""Changed copies: the suite, what counts as good, the page, the grid of containment and who is a relative."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from canon.bench.cases import read_case
from canon.bench.lab import Setup
from canon.bench.measures import measure
from canon.bench.measures.sheet import Sheet
from canon.bench.records import Record
from canon.bench.suite import Suite, check_suite, load_suite
from canon.bench.tables import suite_page
from canon.bench.tables.document import markdown
from canon.errors import BenchError
from canon.watermarks import Dataset
from canon_benchmarks.cases import Changed, Contained
from canon_benchmarks.measures import changed as measures
from canon_benchmarks.measures import contained as measured
from canon_benchmarks.measures.relative import why_bad
from canon_benchmarks.schooling import SMALL, School, augmented, part
from canon_benchmarks.tables import contained as shown
from tests.bench.samples import ENVIRONMENT

FIGURES: dict[str, Any] = {
    "kept": True, "accuracy": 0.98, "clean_accuracy": 0.99, "reference_coverage": 1.0, "robust_coverage": 1.0,
    "key_coverage": 0.4, "reference_network": "derived", "robust_network": "derived", "key_network": "derived",
    "reference_function": "agree", "reference_mark": "read", "reference_verdict": "matches", "reference_matched": 127,
    "reference_total": 128, "reference_p_value": 1e-30, "robust_p_value": 1e-30, "reference_residual": 0.1,
    "good": True,
}  # fmt: skip


def case(after: str = "noise:relative=0.2", model: str = "resnet18") -> Changed:
    return Changed(dataset="digits", model=model, scheme="uchida17", attack="mix-opseq", ratio=0.2, after=after)


def test_the_suite_names_steps_that_exist() -> None:
    suite = load_suite("changed")
    check_suite(suite)
    assert len({c.values["scheme"] for c in suite.cases}) == 9
    assert read_case(suite.cases[3].values) == suite.cases[3]
    with pytest.raises(BenchError, match="no step 'shake'"):
        check_suite(Suite("mine", "", "", (case("shake=3"),)))


@pytest.mark.parametrize(
    ("change", "good"),
    [
        ({}, True),
        ({"reference_coverage": 0.98}, False),
        ({"robust_coverage": 0.94}, False),
        ({"reference_network": "not decided"}, False),
        ({"reference_coverage": 0.0, "robust_coverage": 0.0, "kept": False}, True),
    ],
)
def test_a_copy_must_be_found_while_accuracy_is_kept(change: dict[str, Any], good: bool) -> None:
    sheet = Sheet()
    sheet.note(**{**FIGURES, **change})
    assert measures._good(sheet) is good


def test_the_page_marks_what_misses_and_where_accuracy_breaks() -> None:
    found = [
        Record(case("nothing"), "done", FIGURES, {}, ENVIRONMENT),
        Record(case("noise:relative=0.1"), "done", {**FIGURES, "robust_coverage": 0.5, "good": False}, {}, ENVIRONMENT),
        Record(case(), "done", {**FIGURES, "accuracy": 0.3, "kept": False, "reference_coverage": 0.2}, {}, ENVIRONMENT),
        Record(case("finetune"), "refused", error="not finite", environment=ENVIRONMENT),
    ]
    page = suite_page(Suite("changed", "Title", "About.", tuple(r.case for r in found)), found)
    text = markdown(page)
    assert "| noise:relative=0.1 | 0.980 | 1.000 | **0.500** |" in text
    assert "| noise:relative=0.2 | 0.300, 1 broke | 0.200 |" in text, "what is broken is not held against anybody"
    assert "| resnet18 | noise:relative | noise:relative=0.1 | 1.000 | 1 derived | 1/1 | noise:relative=0.2 |" in text
    assert "finetune` refused: not finite" in text


def test_the_grid_finds_a_small_network_and_says_what_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: measured.STEPS[name] for name in ("nothing", "8 bits")}
    for module in (measured, shown):
        monkeypatch.setattr(module, "STEPS", few)
    found = measure(
        Contained(model="timm:test_resnet", attack="nso_split", ratio=0.2), setup=Setup(Path("nothing is trained"))
    )
    assert found.good, found.error
    steps = found.metrics["steps"]
    assert steps["nothing"]["reference"] == [1.0, "contained"]
    suite = load_suite("containment_grid")
    assert "## What did not come out as it should\n\nNothing." in markdown(suite_page(suite, [found]))
    lost = {**steps, "8 bits": {**steps["8 bits"], "robust": [0.2, "not decided"]}}
    text = markdown(suite_page(suite, [replace(found, metrics={**found.metrics, "steps": lost, "good": False})]))
    assert "**0.200** (1 miss)" in text
    assert "nso_split-0.2-0`: 8 bits, by the robust layout key: 0.2, not decided" in text
    assert "- resnet18, ρ = 0.2: nso_zero, nso_clique, nso_split," in text, "what was not run is listed"


def test_who_is_wrongly_believed() -> None:
    def found(network: str, aware: str = "") -> dict[str, Any]:
        ways = {f"{way}_{name}": value for way in ("alone", "robust")
                for name, value in (("network", network), ("coverage", 1.0), ("deep", 0.0))}  # fmt: skip
        return {**ways, "alone_names_ancestor": False, "aware_network": aware}

    assert why_bad("stranger", found("unrelated")) == ""
    assert why_bad("same first weights", found("derived")) == "believed"
    assert why_bad("innocent: same data", found("derived", "derived")) == "derived although the ancestor was given"
    assert why_bad("innocent: same data", found("derived", "unrelated")).startswith("a common ancestor is not named")
    assert why_bad("thief: one mild epoch", found("derived", "derived")) == ""
    assert why_bad("copy: disguised", {**found("derived"), "robust_coverage": 0.5}).startswith(
        "coverage 1 by the model"
    )


def test_schooling_keeps_what_it_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = torch.randn(40, 3, 32, 32), torch.arange(40) % 4
    data = Dataset("tiny", 4, images, labels, images[:8], labels[:8])
    monkeypatch.setattr("canon_benchmarks.schooling._data", lambda _school: data)
    monkeypatch.setitem(__import__("canon_benchmarks.schooling", fromlist=["EPOCHS"]).EPOCHS, "digits", 1)
    school = School("digits", None, "cpu", tmp_path)
    first, again = school.owner("separable"), school.owner("separable")
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    other = school.trained("separable", start=1, order=1)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


def test_parts_and_augmentation() -> None:
    images, labels = torch.randn(40, 3, 8, 8), torch.arange(40) % 4
    data = Dataset("cifar4", 4, images, labels, images[:8], labels[:8])
    mine, theirs = part(data, "owner")[0], part(data, "other half")[0]
    assert len(mine) + len(theirs) == 40
    assert set(part(data, "other")[1].tolist()) <= {2, 3}
    assert augmented(images).shape == images.shape
    assert set(SMALL) == {"plain", "separable", "linear"}
