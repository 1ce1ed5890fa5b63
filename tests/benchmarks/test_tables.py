"""Pages: the paper's layout, its numbers, failures shown as failures, and the committed pages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from canon.bench.cases import CLEAN, Training
from canon.bench.records import Record, Store
from canon.bench.suite import Suite, load_suite
from canon.bench.tables import suite_page, write_pages
from canon.bench.tables.document import Figure, Page, Table, markdown
from canon.bench.tables.training import judged
from canon_benchmarks.cases import Baseline, Runtime, Tolerance
from canon_benchmarks.tables.found import FINDINGS, found_page
from canon_benchmarks.tables.html import to_html
from canon_benchmarks.tables.landing import landing_page
from canon_benchmarks.tables.published import published
from tests.bench.samples import ENVIRONMENT, done, records, recovery

RESULTS = Path(__file__).parents[2] / "docs" / "results"
RED = '<span style="color:#b00020">'
ATTACKS = ("nso_zero", "nso_clique", "nso_split", "mix-opseq", "mix-opseq-per-merge-group")


@pytest.fixture(scope="module")
def page() -> Page:
    found = records()
    return suite_page(Suite("paper", "A title", "About it.", tuple(record.case for record in found)), found)


def test_the_papers_layout(page: Page) -> None:
    table = next(block for block in page.blocks if isinstance(block, Table))
    assert table.head == (
        "watermark", "clean sim.", "Δacc (att.)", "Δacc (rec.)", "Tier 1", "zero", "clique", "split", "mix-opseq",
    )  # fmt: skip
    ours, theirs = table.rows
    assert ours.cells[:6] == ("uchida17", "1.0000", "0.0000", "0.0000", "1/2", "0.5312→1.0000 (0.4688)")
    assert ours.cells[6].endswith("**!**"), "a cell that is not as it should be is marked"
    assert ours.cells[7:] == ("**refused**", "**failed**")
    assert theirs.aside
    assert theirs.cells[:6] == ("paper, table 2", "1.0000", "0.0000", "0.0000", "✓", "0.5703→1.0000 (0.5781)")


def test_what_is_wrong_is_listed_with_its_reason(page: Page) -> None:
    text = markdown(page)
    listed = text.split("## What did not come out as it should")[1]
    assert "nso_clique-0.2-0-camouflage`: Tier 1 does not pass, residual 0.25" in listed
    assert "nso_split-0.2-0-camouflage` refused: too many parameters" in listed
    assert "mix-opseq-0.2-0-camouflage` failed: ValueError: <oh>" in listed
    assert "5 of 5 cases have a record; 1 refused; 1 failed; 2 of 3 measured ones" in text
    assert f"| {RED}0.5312→1.0000 (0.4688) **!**</span> |" in text, "what is wrong is red"
    assert "Measured on cpu (a lathe, 2 cores;" in text


def test_the_first_line_says_that_widths_were_told() -> None:
    """Records of before say nothing of widths, and were told them."""

    def first_line(*found: Record) -> str:
        text = markdown(suite_page(Suite("mine", "A title", "About it.", tuple(r.case for r in found)), found))
        return text.splitlines()[2]

    told, blind = done(recovery("nso_zero")), done(recovery("nso_clique"), widths_given=False)
    common: dict[str, Any] = {"dataset": "mnist", "model": "resnet18", "scheme": "uchida17", "ratio": 0.2}
    ours, theirs = (
        done(Baseline(**common, attack="nso_zero", method=method), applies=False)
        for method in ("canon-exact", "yan-full")
    )
    assert first_line(told, blind).startswith("**Recovery was told the clean widths in 1 of 2 records here**")
    assert first_line(blind) == "About it."
    assert "in 1 of 2 records" in first_line(ours, theirs)
    assert first_line(theirs) == "About it.", "other defences were never told widths"


def test_canonical_forms_are_marked_and_counted_apart() -> None:
    found = [
        done(recovery("nso_zero")),
        done(recovery("nso_clique"), tier1_canonical=True),
        done(recovery("nso_split"), tier1_canonical=False),
    ]
    page = suite_page(Suite("mine", "", "", tuple(r.case for r in found)), found)
    table = next(block for block in page.blocks if isinstance(block, Table))
    zero, clique, split = table.rows[0].cells[5:]
    assert clique == f"{zero} °"
    assert split == zero
    assert table.rows[0].cells[4] == "2/3 +1°"
    text = markdown(page)
    assert "2 of 3 measured ones came out as they should; 1 more, marked °, are certified on canonical forms" in text
    assert "Tier 1 passes on the models themselves in 2/3 +1°" in text


@pytest.mark.parametrize(
    ("dataset", "changes", "good"),
    [
        ("mnist", {}, True),
        ("mnist", {"accuracy": 0.9899}, False),
        ("mnist", {"twin_accuracy": 0.9985}, False),
        ("mnist", {"similarity": 0.99}, False),
        ("mnist", {"wrong_key_similarity": 0.7}, False),
        ("digits", {"accuracy": 0.985}, True),
        ("cifar100", {}, True),
        ("cifar100", {"accuracy": 0.38, "twin_accuracy": 0.38}, False),
    ],
)
def test_training_is_held_against_todays_bar(dataset: str, changes: dict[str, float], good: bool) -> None:
    found = {"accuracy": 0.993, "twin_accuracy": 0.9931, "similarity": 1.0, "wrong_key_similarity": 0.5, **changes}
    case = Training(dataset=dataset, model="resnet18", scheme="uchida17")
    assert judged(Record(case, "done", found | {"good": True})).good is good
    assert judged(Record(case, "failed", {})).outcome == "failed"


def test_cells_of_other_attacks_seeds_and_datasets_are_all_shown() -> None:
    found = [
        done(replace(recovery(attack), seed=seed, dataset=dataset), attacked_similarity=number / 10_000)
        for number, (attack, seed, dataset) in enumerate(
            product(("nso_zero", "my_own_attack"), (0, 1), ("mnist", "digits")), 1
        )
    ]
    text = markdown(suite_page(Suite("mine", "", "", tuple(r.case for r in found)), found))
    assert "| zero | my_own_attack |" in text
    assert all(f"| {number / 10_000:.4f}→" in text for number in range(1, 9))


def test_clean_models_stand_beside_the_papers(page: Page) -> None:
    text = markdown(page)
    assert "| riga21 | exact | 0.0000 | 0/21 | 0.0000 | 0.0000 | ✓ (2/2) | same |" in text
    assert "| *paper* | *table 4* | *0.0000* | *0/21* | *0.0000* | *0.0078* | *✓ (2/2)* |" in text


def test_html_holds_the_same_and_is_one_file(page: Page) -> None:
    text = to_html([page], "All")
    cells = [cell for block in page.blocks if isinstance(block, Table) for row in block.rows for cell in row.cells]
    plain = re.sub(r"<[^>]+>", "", text)
    assert all(cell.replace("*", "") in plain for cell in cells)
    assert "ValueError: &lt;oh&gt;" in text
    assert "<svg" in text
    assert not re.search(r'(src|href)="(?!#)', text.split("<svg")[0]), "nothing is fetched"


def test_figures_are_the_same_every_time() -> None:
    found = [done(recovery(attack)) for attack in ATTACKS]
    suite = Suite("paper", "A title", "", tuple(record.case for record in found))
    first, second = (
        [block.svg for block in suite_page(suite, found).blocks if isinstance(block, Figure)] for _ in range(2)
    )
    assert first == second
    assert "after recovery and alignment" in first[0]


def test_other_kinds_of_cases_have_their_tables() -> None:
    common: dict[str, Any] = {"dataset": "mnist", "model": "resnet18", "scheme": "uchida17", "ratio": 0.2}
    found = [
        Record(recovery("nso_zero").training, "failed", error="no", environment=ENVIRONMENT),
        done(
            Tolerance(**common, attack="nso_zero"), tolerances=[0.001], match_fracs=[1.0], stranger_match_fracs=[0.0],
            stranger_passed=False, stranger_max_rel_err=1.5,
        ),
        done(Baseline(**common, attack="nso_zero", method="neuron-map"), applies=False),
        done(Baseline(**common, attack="nso_zero", method="yan-full"), applies=True),
        done(Runtime(**common, attack=CLEAN)),
        *(done(Runtime(**common, attack="nso_zero", method="probe", probes=t, batch=32)) for t in (32, 64)),
    ]  # fmt: skip
    text = markdown(suite_page(Suite("mine", "", "", tuple(record.case for record in found)), found))
    assert f"| uchida17 | {RED}**failed**</span> |" in text
    assert "| 0.001 | 2.0e-07, 1.0000 |\n| *paper, table 13* | *0.0000, 1.0000* |" in text
    assert "| 0.001 | 1.5e+00, 0.0000 |" in text
    assert "| neuron-map | – |" in text
    assert "| yan-full | 1/1, 1/1, 1.000 |" in text
    assert "| 32 | 0.2 | zero | 1.50 | 1.50 | · |" in text


def test_the_papers_numbers() -> None:
    """Numbers read off the paper by eye, one from every table."""

    def row(
        model: str, scheme: str, ratio: float, dataset: str = "mnist", camouflage: bool = True
    ) -> dict[str, object]:
        found = published("recovery", dataset=dataset, model=model, scheme=scheme, ratio=ratio, camouflage=camouflage)
        assert found is not None
        return found

    assert row("resnet18", "deepipr", 0.2)["tier2"] == [0.5312, 0.5312, 0.3594, 0.6094, 0.6094]
    assert row("efficientnet_b0", "riga21", 0.2)["clean"] == 0.9062
    assert row("densenet121", "passport_aware", 0.2)["attacked"] == [0.4844, 0.4453, 0.5156, 0.4922, 0.5469]
    assert row("resnet18", "uchida17", 0.2, camouflage=False)["tier2"] == [1.0, 1.0, 0.5781, 0.6859, 1.0]
    assert row("resnet18", "riga21", 0.2, "cifar100")["clean"] == 0.9688
    assert row("resnet18", "deepipr", 1.0, "cifar100")["attacked"] == [0.4062, 0.4062, 0.4602, 0.4062, 0.4062]
    assert [row("resnet18", "greedy", 0.5)["table"], row("inception_v3", "greedy", 0.5)["table"]] == [6, 7]
    clean = published("clean", model="resnet18", scheme="passport_aware")
    assert clean is not None
    assert clean["tier1"] == "21/21"


def test_the_committed_pages_are_what_the_records_give(tmp_path: Path) -> None:
    written = write_pages(RESULTS / "records", tmp_path)
    assert written
    for path in written:
        committed = RESULTS / path.relative_to(tmp_path)
        assert committed.exists(), f"{committed.name} is missing: run `make results`"
        assert committed.read_text(encoding="utf-8") == path.read_text(encoding="utf-8"), f"stale: {committed.name}"


def test_committed_records_belong_to_their_suites_and_are_small() -> None:
    files = sorted((RESULTS / "records").glob("*"))
    assert files
    assert sum(path.stat().st_size for path in files) < 5_000_000
    for path in files:
        names = {case.name for case in load_suite(path.stem).cases}
        assert set(Store.open(path.parent, path.stem).records) <= names


def test_what_we_found_says_what_the_records_say(tmp_path: Path) -> None:
    """Numbers of the page, counted again from the bare files."""
    records = {
        path.stem: [
            record
            for record in map(json.loads, path.read_text(encoding="utf-8").splitlines()[1:])
            if record["outcome"] == "done"
        ]
        for path in (RESULTS / "records").glob("*.jsonl")
    }
    text = " ".join((RESULTS / "what_we_found.md").read_text(encoding="utf-8").split())

    def count(suite: str, wanted: Callable[[dict[str, Any], dict[str, Any]], bool]) -> int:
        return sum(wanted(record["case"], record["metrics"]) for record in records[suite])

    single = count("baselines", lambda case, found: case["method"] == "single-pass" and found["tier1_passed"])
    assert f"the single pass is certified in {single} of 40 cases" in text
    same = count("no-camouflage", lambda _, found: found["attacked_similarity"] == found["clean_similarity"])
    assert f"{same} of {len(records['no-camouflage'])} marks still read" in text
    apart = count("paper", lambda _, found: found["tier1_canonical"])
    assert f"of our {len(records['paper'])} cells {apart} are certified on canonical forms only" in text
    untouched = count("clean", lambda _, found: found["untouched"])
    assert f"in {untouched}/72 cases" in text
    largest = max(record["metrics"]["tier1_max_rel_err"] for record in records["tolerance"])
    assert f"ours are at most {largest:.1e}" in text
    extractors = Store.open(RESULTS / "records", "riga_strangers").records.values()
    never = [value for r in extractors if r.case.weight == 0 for value in r.metrics["strangers"]]
    assert text.count(f"| {sum(value >= 0.85 for value in never)}/{len(never)} |") == 1


def test_nothing_is_found_where_there_is_nothing() -> None:
    assert found_page({}) is None
    page = found_page({"clean": records()[4:]})
    assert page is not None
    assert "untouched, bit for bit, in 1/1 cases" in markdown(page)
    assert "riga" not in markdown(page)


@pytest.mark.parametrize("suite", sorted({suite for _, suite, _ in FINDINGS}))
def test_every_single_record_is_enough_for_a_page(suite: str, tmp_path: Path) -> None:
    """Whoever measured one case only must get a page, and not an error."""
    store = Store.open(RESULTS / "records", suite)
    kinds = {(type(r.case), r.case.scheme, getattr(r.case, "method", None)): r for r in store.records.values()}
    for record in kinds.values():
        found_page({suite: [judged(record)]})
        landing_page({suite: (Suite(suite, "", "", (record.case,)), [judged(record)])}, [], tmp_path)


def test_the_first_page_counts(tmp_path: Path) -> None:
    found = [*records(), done(recovery("mix-opseq-per-merge-group"), tier1_canonical=True, widths_given=False)]
    suite = Suite("paper", "A title", "", tuple(record.case for record in found))
    text = markdown(landing_page({"paper": (suite, found)}, [], tmp_path))
    assert "| The same: Tier 1 on the models themselves | 2/4 +1° | [paper](paper.md) |" in text
    assert "| Wrong keys and wrong owners that were believed | 0/6 | [paper](paper.md) |" in text
    assert "| [A title](paper.md) | `paper` | 4 of 6 | 2 | 1 | 1 | 2 | 1 |" in text
    assert "Beside the suites" not in text
