"""Pages of results: from committed records to Markdown, HTML and figures. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from canon._files import write_text
from canon.bench.records import Record, Store, suites_in
from canon.bench.suite import Suite, load_suite, suite_names
from canon.bench.tables.baselines import baseline_blocks
from canon.bench.tables.changed import changed_blocks
from canon.bench.tables.clean import clean_blocks
from canon.bench.tables.common import distinct, machines, outcomes
from canon.bench.tables.document import Block, Figure, Heading, Items, Page, Paragraph, Table, markdown, to_html
from canon.bench.tables.methods import methods_blocks
from canon.bench.tables.recovery import recovery_blocks
from canon.bench.tables.runtime import runtime_blocks
from canon.bench.tables.tolerance import tolerance_blocks
from canon.bench.tables.training import training_blocks

BLOCKS: Final[dict[str, Callable[[str, Sequence[Record]], Iterator[Block]]]] = {
    "training": training_blocks,
    "recovery": recovery_blocks,
    "methods": methods_blocks,
    "clean": clean_blocks,
    "changed": changed_blocks,
    "tolerance": tolerance_blocks,
    "runtime": runtime_blocks,
    "baseline": baseline_blocks,
}
"""By kind of case."""

TITLE: Final = "Results of the benchmark"


def suite_page(suite: Suite, records: Sequence[Record]) -> Page:
    """The page of one suite."""
    blocks: list[Block] = [
        Paragraph(suite.about.replace("\n", " ")),
        Paragraph(
            f"Made by `canon bench report` from `records/{suite.name}.jsonl`, which `canon bench run {suite.name}` "
            "wrote."
        ),
        machines(records),
        outcomes(records, len(suite.cases)),
    ]
    kinds = distinct(record.case.kind for record in records)
    for kind in kinds:
        part = [record for record in records if record.case.kind == kind]
        if len(kinds) > 1:
            blocks.append(Heading(f"Cases of kind “{kind}”"))
        blocks.extend(BLOCKS[kind](suite.name, part))
    return Page(suite.name, suite.title, tuple(blocks))


def read_pages(folder: Path) -> list[Page]:
    """A page for every suite of Canon's that has records in a folder, after an index of all of them."""
    present = set(suites_in(folder))
    pages, rows, missing = [], [], []
    for name in suite_names():
        suite = load_suite(name)
        if name not in present:
            missing.append(f"`{name}`: {suite.title}")
            continue
        store = Store.open(folder, name)
        records = [store.records[case.name] for case in suite.cases if case.name in store.records]
        pages.append(suite_page(suite, records))
        counts = [sum(r.outcome == outcome for r in records) for outcome in ("done", "refused", "failed")]
        bad = sum(not record.good for record in records)
        link = f"[{suite.title}]({name}.md)"
        rows.append((f"`{name}`", link, str(len(suite.cases)), *map(str, counts), str(bad)))
    head = ("suite", "page", "cases", "measured", "refused", "failed", "not as they should be")
    blocks: list[Block] = [
        Paragraph(
            "Every table here is made from the records beside it by `make results`; [benchmark.md](../benchmark.md) "
            "says how the records are made. Refused: the attack would pass 10⁹ parameters, no layer allows it, or "
            "training after it did not end in finite weights. A case that failed counts among those that are not as "
            "they should be; each page ends with the list of them, and why."
        ),
        Table.of(head, rows),
    ]
    if missing:
        blocks += [Paragraph("Without records yet:"), Items(tuple(missing))]
    blocks += [
        Paragraph("Grids over further architectures, with random weights, and verdicts on trained ones:"),
        Items(
            (
                "[Recovery of thirteen architectures](recovery_grid.md)",
                "[Verification of thirteen architectures](verify_grid.md)",
                "[Suspects whose norms were folded away](folded_grid.md)",
                "[Recovery under noise](noise_curve.md)",
                "[Containment in thirteen architectures](containment_grid.md)",
                "[Strangers, innocents and thieves](relatives.md)",
                "[What locating costs](locate_time.md)",
                "[Alignment of changed copies and of strangers: a small network](verify_robustness.md)",
                "[Alignment of changed copies and of strangers: resnet18](verify_robustness_resnet18.md)",
            )
        ),
    ]
    return [Page("README", TITLE, tuple(blocks)), *pages]


def write_pages(records: Path, out: Path) -> list[Path]:
    """Write all pages, figures and the one HTML file; returns what was written."""
    pages = read_pages(records)
    (out / "figures").mkdir(parents=True, exist_ok=True)
    texts = {out / f"{page.name}.md": markdown(page) for page in pages}
    texts |= {
        out / "figures" / f"{block.name}.svg": block.svg
        for page in pages
        for block in page.blocks
        if isinstance(block, Figure)
    }
    texts[out / "results.html"] = to_html(pages, TITLE)
    for path, text in texts.items():
        write_text(path, text, force=True)
    return list(texts)
