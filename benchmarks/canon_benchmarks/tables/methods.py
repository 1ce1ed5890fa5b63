"""The paper's attack and a stronger one, undone by every method: mean and spread over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Final

from canon.bench.records import Record
from canon.bench.tables.common import (
    UNMEASURED,
    attack_name,
    attacks_of,
    by,
    complaints,
    distinct,
    groups,
    measured,
    took,
    values_of,
)
from canon.bench.tables.document import BAD, Block, Heading, Paragraph, Row, Table
from canon_benchmarks.cases import Methods
from canon_benchmarks.measures.methods import restored
from canon_benchmarks.tables.published import published, published_cells, published_similarity

NAMES: Final = {"single": "Algorithm 2, single pass", "probe": "probe", "exact": "exact"}
"""What pages call the methods."""

PLACE: Final = ("dataset", "model", "ratio")
"""What has a table of its own."""

STYLES: Final = {"paper": "The paper's attack", "stronger": "The stronger attack"}


def methods_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """Where each method stops, then every cell."""
    yield Paragraph(
        "Every method sees the same suspect and nothing else. Restored: all layers have the clean shapes, the "
        "watermark-bearing layers pass Tier 1 after alignment with the reference (on the models themselves, never on "
        "canonical forms), the similarity is the clean one, and no test image is decided otherwise on balance (Δacc 0)."
    )
    for (style,), part in groups(records, "style"):
        yield Heading(STYLES[style])
        yield _where_it_stops(part)
        yield _times(part)
    for (style, dataset, model, ratio), part in groups(records, "style", *PLACE):
        yield Heading(f"{STYLES[style]}: {model} on {dataset}, ρ = {ratio:g}")
        yield Paragraph(
            f"Seeds measured: {_seeds(part)}. Mean ± standard deviation over seeds; wrong key: the range of all cells."
        )
        yield _cells(part)
    yield from complaints(records, _why_bad, "What the exact method did not restore")


def _seeds(records: Sequence[Record]) -> str:
    found = [distinct(record.case.seed for record in part) for _, part in groups(records, "scheme")]
    fewest, most = min(map(len, found)), max(map(len, found))
    return f"{most}" if fewest == most else f"{fewest} to {most}"


def _where_it_stops(records: Sequence[Record]) -> Table:
    attacks = attacks_of(records)
    head = (
        "model",
        "dataset",
        "ρ",
        "method",
        "restored",
        "shapes",
        "Tier 1",
        *(attack_name(attack) for attack in attacks),
    )
    rows = []
    for (dataset, model, ratio), whole in groups(records, *PLACE):
        part = measured(whole)
        for method, name in NAMES.items():
            per_attack = [_share(by(part, attack=attack), method) for attack in attacks]
            shapes, tier1 = (
                f"{sum(r.metrics.get(f'{method}_{what}') is True for r in part)}/{len(part)}"
                for what in ("shapes", "tier1")
            )
            rows.append((model, dataset, f"{ratio:g}", name, _share(part, method), shapes, tier1, *per_attack))
    return Table.of(head, rows)


def _share(records: Sequence[Record], method: str) -> str:
    right = sum(restored(record.metrics, method) for record in records)
    text = f"{right}/{len(records)}"
    return text if right == len(records) else f"{text} {BAD}"


def _times(records: Sequence[Record]) -> Table:
    rows = []
    for (dataset, model, ratio), part in groups(records, *PLACE):
        rows.append((model, dataset, f"{ratio:g}", *(took(part, f"recover_{method}") for method in NAMES)))
    return Table.of(
        ("model", "dataset", "ρ", *(f"{name}: seconds, median and largest" for name in NAMES.values())), rows
    )


def _cells(records: Sequence[Record]) -> Table:
    attacks = attacks_of(records)
    head = ["watermark", "method", "clean sim.", "wrong key", "Δacc (rec.)", *(attack_name(a) for a in attacks)]
    rows: list[Row] = []
    for (scheme,), mine in groups(records, "scheme"):
        for method, name in NAMES.items():
            gaps = values_of(mine, f"{method}_delta_accuracy")
            rows.append(
                Row(
                    (
                        scheme,
                        name,
                        spread([part[0] for part in _by_seed(mine, "clean_similarity")]),
                        _range(values_of(mine, f"{method}_wrong_key")),
                        f"{max(gaps):.4f}" if gaps else UNMEASURED,
                        *(_cell(by(mine, attack=attack), method) for attack in attacks),
                    )
                )
            )
        row = _published(mine[0].case, attacks)
        if row is not None:
            rows.append(row)
    return Table.of(head, rows)


def _by_seed(records: Sequence[Record], metric: str) -> list[list[float]]:
    found = [values_of(part, metric) for _, part in groups(records, "seed")]
    return [values for values in found if values]


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.4f}–{max(values):.4f}" if values else UNMEASURED


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation; the value alone where there is one.

    >>> spread([0.5]), spread([0.25, 0.75])
    ('0.5000', '0.5000±0.3536')
    """
    if not values:
        return UNMEASURED
    mean = f"{statistics.fmean(values):.4f}"
    return mean if len(values) == 1 else f"{mean}±{statistics.stdev(values):.4f}"


def _cell(records: Sequence[Record], method: str) -> str:
    done = measured(records)
    if not done:
        return f"**{records[0].outcome}**" if records else UNMEASURED
    attacked, aligned, bare = (
        spread(values_of(done, metric))
        for metric in ("attacked_similarity", f"{method}_aligned_similarity", f"{method}_recovered_similarity")
    )
    text = f"{attacked}→{aligned} ({bare})"
    return text if all(restored(record.metrics, method) for record in done) else f"{text} {BAD}"


def _published(case: Methods, attacks: Sequence[str]) -> Row | None:
    if case.style != "paper":
        return None
    wanted = {name: getattr(case, name) for name in ("dataset", "model", "scheme", "ratio")}
    row = published("recovery", **wanted, camouflage=True)
    if row is None:
        return None
    gap = f"{row['delta_recovered']:.4f}" if "delta_recovered" in row else ""
    cells = published_cells(attacks, lambda i: published_similarity(row, i))
    return Row((f"paper, table {row['table']}", "as published", f"{row['clean']:.4f}", "", gap, *cells), aside=True)


def _why_bad(record: Record) -> str:
    found = record.metrics
    if "exact_error" in found:
        return str(found["exact_error"])
    return (
        f"shapes {'clean' if found['exact_shapes'] else 'not clean'}, Tier 1 on {found['exact_tier1_layers']} of "
        f"{found['layers']} layers (residual {found['exact_max_rel_err']}), similarity "
        f"{found['exact_aligned_similarity']:.4f} of {found['clean_similarity']:.4f}, Δacc "
        f"{found['exact_delta_accuracy']}"
    )
