"""The first page: the dozen figures that matter, and an index of all pages."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from canon.bench.cases import TWIN, Recovery
from canon.bench.measures.recovery import STRONG
from canon.bench.records import Record
from canon.bench.suite import Suite
from canon.bench.tables.common import CANONICAL, all_of, by, groups, measured, passes, values_of
from canon.bench.tables.document import Block, Heading, Items, Page, Paragraph, Table
from canon.bench.tables.index import TITLE, Shown, index_blocks
from canon_benchmarks.cases import Runtime
from canon_benchmarks.measures.changed import RELATED
from canon_benchmarks.measures.methods import restored
from canon_benchmarks.tables.found import found_page
from canon_benchmarks.tables.methods import NAMES
from canon_benchmarks.tables.widths import told_widths

Count = Callable[[Sequence[Record]], str]

BESIDE: Final = {
    "what_we_found.md": "Where our numbers differ from the paper's, and why",
    "properties.md": "What a defence must provide: the paper's table 1, with evidence",
}
"""Pages that are not made of a suite's records; they lie beside the folder of records, and are named where they do."""


def first_pages(shown: Shown, missing: Sequence[Suite] | None, beside: Path) -> list[Page]:
    """The landing page, and what we found, where all suites are shown and there is something to say."""
    pages = [landing_page(shown, missing, beside)]
    if missing is None:
        return pages
    found = found_page({name: records for name, (_, records) in shown.items()})
    return pages + ([found] if found else [])


def landing_page(shown: Shown, missing: Sequence[Suite] | None, beside: Path) -> Page:
    """The first page, of suites with their records and suites that have none."""
    found = {name: measured(records) for name, (_, records) in shown.items()}
    rows = [
        (question, count(found[name]), f"[{name}]({name}.md)")
        for name, question, count in FIGURES
        if found.get(name)
    ]  # fmt: skip
    blocks: list[Block] = [
        Paragraph(
            "Every figure and table here is made from the records beside it by `canon bench report`; "
            "[The benchmark](../benchmark.md) says how the records are made."
        )
    ]
    if rows:
        blocks += [Heading("The figures that matter"), Table.of(("question", "measured", "page"), rows)]
        blocks.append(Paragraph(f"{CANONICAL}: certified on canonical forms only."))
    remark = " Told widths: records in which recovery knew from the owner how wide each layer was."
    blocks += index_blocks(shown, missing, remark, {"told widths": told_widths})
    others = [f"[{title}]({name})" for name, title in BESIDE.items() if (beside / name).exists()]
    if others:
        blocks += [Heading("Beside the suites"), Items(tuple(others))]
    return Page("README", TITLE, tuple(blocks))


def _restored(method: str) -> Count:
    def count(records: Sequence[Record]) -> str:
        part = by(records, style="paper")
        return f"{sum(restored(record.metrics, method) for record in part)}/{len(part)}"

    return count


def _back(records: Sequence[Record]) -> str:
    same = sum(r.metrics.get("aligned_similarity") == r.metrics.get("clean_similarity") for r in records)
    return f"{same}/{len(records)}"


def _believed(records: Sequence[Record]) -> str:
    told = values_of(records, "wrong_key_verdict") + values_of(records, "wrong_owner_verdict")
    return f"{sum(str(verdict).startswith(STRONG) for verdict in told)}/{len(told)}"


def _blind(records: Sequence[Record]) -> str:
    part = [r for r in records if isinstance(r.case, Recovery)]
    same = sum(r.metrics.get("attacked_similarity") == r.metrics.get("clean_similarity") for r in part)
    return f"{same}/{len(part)}"


def _recognised(records: Sequence[Record]) -> str:
    kept = [record for record in records if record.metrics["kept"]]
    return f"{sum(record.metrics['reference_network'] in RELATED for record in kept)}/{len(kept)}"


def _defences(records: Sequence[Record]) -> str:
    return ", ".join(
        f"{method} {sum(r.metrics.get('tier1_passed') is True for r in part)}/{len(part)}"
        for (method,), part in groups(records, "method")
    )


def _seconds(records: Sequence[Record]) -> str:
    plain = [r for r in records if isinstance(r.case, Runtime) and r.case.method == "exact"]
    took = [record.seconds["recover"] for record in by(plain, model="resnet18", ratio=0.2)]
    return f"{statistics.median(took):.2f}, {max(took):.2f}" if took else "none"


def _bar(records: Sequence[Record]) -> str:
    return all_of([record for record in records if record.case.scheme != TWIN], "good", True)


FIGURES: Final[tuple[tuple[str, str, Count], ...]] = (
    *(
        ("paper-method", f"The paper's attack, no widths told: models restored by {name}", _restored(method))
        for method, name in reversed(NAMES.items())
    ),
    ("paper", "Our stronger attack on MNIST: marks that read as on the clean model", _back),
    ("paper", "The same: Tier 1 on the models themselves", passes),
    ("paper", "Wrong keys and wrong owners that were believed", _believed),
    ("cifar100", "CIFAR-100, ρ up to 1: marks that read as on the clean model", _back),
    ("no-camouflage", "Without permutation and scaling: marks that the attack left untouched", _blind),
    ("clean", "Models that nobody attacked: same after recovery, bit for bit", lambda r: all_of(r, "untouched", True)),
    ("tolerance", "Strangers' models that pass the certificate", lambda r: all_of(r, "stranger_passed", True)),
    ("changed", "Changed copies that still work: the owner's network recognised", _recognised),
    ("baselines", "Suspects that pass Tier 1 after each defence", _defences),
    ("runtime", "Seconds of exact recovery, resnet18, ρ = 0.2: median, largest", _seconds),
    ("training-mnist", "Marked MNIST models that reach today's bar of accuracy and similarity", _bar),
)  # fmt: skip
"""Suite, question, and what answers it from the suite's measured records."""
