"""The paper's runtime figures, and the same numbers as tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from canon.bench.cases import CLEAN
from canon.bench.records import Record
from canon.bench.tables.common import UNMEASURED, attack_name, attacks_of, by, complaints, distinct, groups, measured
from canon.bench.tables.document import Block, Figure, Heading, Paragraph, Table
from canon_benchmarks.tables.figures import Panel, draw_lines

PROBES, BATCH = 32, 32
"""The setting of the probe method where it is not swept."""


def runtime_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """Three figures, each with its numbers."""
    done = measured(records)
    yield Paragraph(
        "Every time is the median of several recoveries of one suspect, after one that is not counted. The paper "
        "prints its figures without numbers, and says that recovery is at the scale of ten seconds and in most cases "
        "well below a minute, on a Tesla V100."
    )
    yield from _against_probes(suite, done)
    yield from _across_schemes(suite, done)
    yield from _against_ratio(suite, done)
    yield from complaints(records, lambda _record: "the clean number of parameters is not reached")


def _seconds(records: Sequence[Record]) -> float | None:
    took = [record.seconds["recover"] for record in records]
    return statistics.median(took) if took else None


def _cell(records: Sequence[Record]) -> str:
    found = _seconds(records)
    return UNMEASURED if found is None else f"{found:.2f}"


def _against_probes(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """Recovery time against the number of probes, by batch and ratio."""
    swept = [r for r in records if r.case.method == "probe" and r.case.batch and _is_swept(r, records)]
    if not swept:
        return
    first = swept[0].case
    exact = by(records, method="exact", model=first.model, scheme=first.scheme, dataset=first.dataset)
    counts = sorted({r.case.probes for r in swept})
    attacks = [CLEAN, *attacks_of(swept)]
    panels, rows = [], []
    for (batch, ratio), part in groups(swept, "batch", "ratio"):
        lines, levels = {}, {}
        for attack in attacks:
            mine = by(part, attack=attack)
            lines[attack_name(attack)] = [_seconds(by(mine, probes=count)) for count in counts]
            beside = by(exact, attack=attack, ratio=ratio)
            levels[attack_name(attack)] = _seconds(beside)
            cells = [_cell(by(mine, probes=count)) for count in counts]
            rows.append((str(batch), f"{ratio:g}", attack_name(attack), *cells, _cell(beside)))
        panels.append(Panel(f"batch {batch}, ρ = {ratio:g}", [str(count) for count in counts], lines, levels))
    yield Heading(f"Against the number of probes: {first.model}, {first.scheme}")
    caption = "Seconds of recovery against the number of probes T; dashed: the exact method, which has no probes."
    yield Figure(f"{suite}-probes", caption, draw_lines(panels, "probes T"))
    yield Table.of(("batch", "ρ", "attack", *(f"T = {count}" for count in counts), "exact"), rows)


def _is_swept(record: Record, records: Sequence[Record]) -> bool:
    case = record.case
    same = by(records, method="probe", model=case.model, scheme=case.scheme, dataset=case.dataset, batch=case.batch,
              ratio=case.ratio, attack=case.attack)  # fmt: skip
    return len({other.case.probes for other in same}) > 1


def _usual(record: Record) -> bool:
    """Whether it is of the exact method, or of the probe method in the setting that is not swept."""
    return record.case.probes in (0, PROBES) and record.case.batch in (0, BATCH)


def _across_schemes(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """Recovery time of every scheme's model under every attack."""
    plain = [r for r in records if r.case.attack != CLEAN and _usual(r)]
    panels = []
    for model in distinct(r.case.model for r in plain):
        for ratio, method in ((ratio, method) for ratio in (0.2, 0.5) for method in ("probe", "exact")):
            part = by(plain, model=model, ratio=ratio, method=method)
            schemes = distinct(r.case.scheme for r in part)
            if len(schemes) < 2:
                continue
            lines = {
                attack_name(attack): [_seconds(by(part, attack=attack, scheme=scheme)) for scheme in schemes]
                for attack in attacks_of(part)
            }
            panels.append(Panel(f"{model}, ρ = {ratio:g}, {method}", schemes, lines, {}))
    if panels:
        yield Heading("Across schemes")
        caption = "Seconds of recovery across watermarking schemes, by the probe method and by the exact one."
        yield Figure(f"{suite}-schemes", caption, draw_lines(panels, "", slanted=True))
    rows = []
    attacks = attacks_of(plain)
    usual = [r for r in plain if r.case.ratio in (0.2, 0.5) and r.case.dataset == plain[0].case.dataset]
    for (model, ratio, method), part in groups(usual, "model", "ratio", "method"):
        rows.append((model, f"{ratio:g}", method, *(_spread(by(part, attack=attack)) for attack in attacks)))
    yield Heading("Across architectures")
    yield Paragraph("Median over schemes; in brackets the smallest and largest where there are several.")
    yield Table.of(("model", "ρ", "method", *(attack_name(attack) for attack in attacks)), sorted(rows))


def _spread(records: Sequence[Record]) -> str:
    took = [record.seconds["recover"] for record in records]
    if not took:
        return UNMEASURED
    text = f"{statistics.median(took):.2f}"
    return text if len(took) == 1 else f"{text} ({min(took):.2f}–{max(took):.2f})"


def _against_ratio(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """Recovery time against the ratio, on every dataset."""
    panels = []
    usual = [r for r in by(records, model="resnet18", scheme="uchida17") if _usual(r)]
    for (dataset, method), part in groups(usual, "dataset", "method"):
        ratios = sorted({r.case.ratio for r in part})
        if len(ratios) < 3:
            continue
        lines = {
            attack_name(attack): [_seconds(by(part, attack=attack, ratio=ratio)) for ratio in ratios]
            for attack in attacks_of(part)
        }
        panels.append(Panel(f"{dataset}, {method}", [f"{ratio:g}" for ratio in ratios], lines, {}))
    if not panels:
        return
    yield Heading("Against the ratio: resnet18")
    yield Figure(f"{suite}-ratio", "Seconds of recovery against the ratio ρ.", draw_lines(panels, "ratio ρ"))
    labels = list(panels[0].lines)
    rows = [
        (panel.title, ratio, *(_number(panel.lines.get(label, [])[index]) for label in labels))
        for panel in panels
        for index, ratio in enumerate(panel.ticks)
    ]
    yield Table.of(("dataset, method", "ρ", *labels), rows)


def _number(value: float | None) -> str:
    return UNMEASURED if value is None else f"{value:.2f}"
