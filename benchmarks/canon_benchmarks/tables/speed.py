"""What every step costs: one row per case, seconds by step, then the ratios that have a limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from canon.bench.records import Record
from canon.bench.tables.common import complaints, groups, measured
from canon.bench.tables.document import Block, Heading, Paragraph, Table
from canon_benchmarks.cases import FOUR
from canon_benchmarks.measures.speed import LIMITS, limit_of

STEPS: Final = ("trace", "clone", "attack", "recover", "probe", "align", "certify", "forward", "pruning")
RATIOS: Final = {
    "trace_and_clone": "/ (trace + clone)",
    "forward": "/ forward",
    "pruning": "/ pruning",
    "pruning_a_copy": "/ (clone + pruning)",
    "probe": "/ probe",
    "reading": "/ reading",
    "verify": "certify / recover",
    "align_and_certify": "(align + certify) / recover",
    "memory": "memory",
    "attack_to_clone": "attack / clone",
    "attack_to_trace_and_clone": "attack / (trace + clone)",
}
HEADER: Final = ("model", "attack", "ρ", "parameters")

INTRODUCTION: Final = (
    "Models marked `*` would pass 10⁹ parameters with expanded kernels and have none. Seconds are medians with half "
    "the spread of the runs; a figure without spread was measured once. `forward` is one pass of 32 images, `pruning` "
    "is Torch-Pruning removing the same channels when told which; it does so in place, so beside it stands pruning a "
    "copy, which leaves the suspect as it is, like recovery does. `memory` is the peak beyond what was in use before, "
    "relative to the attacked model. `certify` aligns the recovered model and compares it with the reference, so it "
    "is verification as a whole; `align` is the same without the comparison. Limits: {limits}, the last for {four} "
    "alone. They hold on a host; on a GPU, recovery is to take less than a second."
)


def speed_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """What the columns mean, and two tables for every machine: seconds, and ratios."""
    limits = ", ".join(f"{RATIOS[name]} {limit:g}" for name, limit in LIMITS.items())
    yield Paragraph(INTRODUCTION.format(limits=limits, four=FOUR))
    done = measured(records)
    for (machine,), mine in groups(done, "machine"):
        where, found = mine[0].environment, mine[0].metrics
        yield Heading(f"{machine}: {where['device'] if found['device'].startswith('cuda') else where['machine']}")
        note = f"torch {where['torch']}, Python {where['python']}, {found['threads']} threads"
        if "bandwidth" in found:
            note += f"; memory is read at {found['bandwidth'] / 1e9:.0f} GB/s"
        if "note" in found:
            note += f"; {found['note']}"
        yield Paragraph(f"{note}.")
        yield from (seconds_table(mine), ratio_table(mine))
    yield from complaints(records)


def seconds_table(records: Sequence[Record]) -> Table:
    """Seconds by step; behind each the spread of its runs in per cent of the median."""
    steps = [[record.metrics["seconds"].get(step) for step in STEPS] for record in records]
    cells = [["" if times is None else _time(times) for times in found] for found in steps]
    return Table.of((*HEADER, *STEPS), [[*_case(r), *row] for r, row in zip(records, cells, strict=True)])


def ratio_table(records: Sequence[Record]) -> Table:
    """What recovery costs relative to each yardstick."""
    shown = [name for name in RATIOS if any(name in record.metrics["ratios"] for record in records)]
    rows = []
    for record in records:
        limits = {name: limit_of(name, record.case.attack, record.metrics["device"]) for name in shown}
        rows.append(
            [*_case(record), *(_ratio(record.metrics["ratios"].get(name), limit) for name, limit in limits.items())]
        )
    return Table.of((*HEADER, *(RATIOS[name] for name in shown)), rows)


def _case(record: Record) -> list[str]:
    size = record.metrics["parameters"]["attacked"] / 1e6
    kernels = "" if record.metrics["expanded_kernels"] else "*"
    return [record.case.model, record.case.attack, f"{record.case.ratio:g}", f"{size:.0f} M{kernels}"]


def _time(times: dict[str, Any]) -> str:
    spread = 100 * (times["most"] - times["least"]) / times["median"] if times["median"] else 0.0
    return f"{times['median']:.3f}" if times["runs"] == 1 else f"{times['median']:.3f} ±{spread / 2:.0f}%"


def _ratio(value: float | None, limit: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" + (" OVER" if limit is not None and value > limit else "")
