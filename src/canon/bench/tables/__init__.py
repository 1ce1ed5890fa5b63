"""Pages of results: from records to Markdown, HTML and figures. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from canon._files import write_text
from canon.bench.extensions import SUFFIX, named, part_of
from canon.bench.records import Record, Store, suites_in
from canon.bench.suite import Suite, load_suite, suite_names
from canon.bench.tables.common import distinct, machines, outcomes
from canon.bench.tables.document import Block, Figure, Heading, Page, Paragraph, markdown
from canon.bench.tables.index import TITLE, first_pages
from canon.bench.tables.training import judged
from canon.errors import BenchError


def suite_page(suite: Suite, records: Sequence[Record]) -> Page:
    """The page of one suite."""
    blocks: list[Block] = [Paragraph(text) for remark in named("remark") if (text := remark(records)) is not None]
    blocks += [
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
        blocks.extend(part_of(kind, "blocks")(suite.name, part))
    return Page(suite.name, suite.title, tuple(blocks))


def read_pages(folder: Path, suites: Sequence[str] = ()) -> list[Page]:
    """A page for every suite that is named, by name or file; where none is named, for every suite that has records in
    the folder. First come pages about all suites, where no suite with records is left out."""
    present = suites_in(folder)
    if not present:
        raise BenchError("there are no records", where=str(folder), hint="Make some: canon bench run quick")
    shown, missing = {}, []
    for name in suites or (*suite_names(), *(name for name in present if name not in suite_names())):
        suite = _suite(name, folder)
        if suite.name in present:
            shown[suite.name] = suite, _records(suite, folder)
        elif suites:
            raise BenchError(
                f"the suite '{suite.name}' has no records",
                where=str(folder),
                hint=f"Run: canon bench run {name}. There are records of: {', '.join(present)}",
            )
        else:
            missing.append(suite)
    first = (first_pages, *named("pages"))[-1]
    pages: list[Page] = first(shown, None if suites else missing, folder.parent) if _all_shown(folder, shown) else []
    return pages + [suite_page(suite, records) for suite, records in shown.values()]


def _all_shown(folder: Path, shown: Collection[str]) -> bool:
    """Whether no suite that has records in the folder is left out."""
    return set(suites_in(folder)) <= set(shown)


def _suite(name: str, folder: Path) -> Suite:
    """A suite by its name or file; one of which there are records alone is made from them."""
    if name.endswith(SUFFIX) or name in suite_names() or name not in suites_in(folder):
        return load_suite(name)
    cases = tuple(record.case for record in Store.open(folder, name).records.values())
    return Suite(name, name, f"A suite of which there are records only; give its {SUFFIX} file to name it.", cases)


def _records(suite: Suite, folder: Path) -> list[Record]:
    store = Store.open(folder, suite.name)
    found = [judged(store.records[case.name]) for case in suite.cases if case.name in store.records]
    if not found:
        raise BenchError(
            f"none of the {len(store.records)} records of '{suite.name}' is about one of its cases",
            where=str(folder),
            hint="Was the suite changed after they were made?",
        )
    return found


def write_pages(records: Path, out: Path, suites: Sequence[str] = ()) -> list[Path]:
    """Write pages and figures, and all in one HTML file where an extension makes one; returns what was written.

    Pages about all suites stay as they are where only some are named.
    """
    pages = read_pages(records, suites)
    all_shown = _all_shown(records, {page.name for page in pages})
    (out / "figures").mkdir(parents=True, exist_ok=True)
    texts = {out / f"{page.name}.md": markdown(page) for page in pages}
    texts |= {
        out / "figures" / f"{block.name}.svg": block.svg
        for page in pages
        for block in page.blocks
        if isinstance(block, Figure)
    }
    for in_one in named("html") if all_shown else ():
        texts[out / "results.html"] = in_one(pages, TITLE)
    for path, text in texts.items():
        write_text(path, text, force=True)
    return list(texts)
