"""What the probe method gives back at other values of its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from canon.bench.records import Record
from canon.bench.tables.common import UNMEASURED, attack_name, attacks_of, groups, one, unmeasured
from canon.bench.tables.document import BAD, Block, Heading, Paragraph, Row, Table
from canon.recovery import ProbeOptions

SYMBOLS: Final = {
    "tau": "τ, largest relative error of proportional summaries",
    "epsilon": "ε, the part of its largest summary above which a probe counts for a channel",
    "gamma_drop": "γ_drop, columns that add up to at most this are a clique",
    "gamma_keep": "γ_keep, columns that add up to more than this are merged",
    "t_min": "T_min, probes that must count before a ratio is trusted",
    "probes": "T, probes",
}


def sensitivity_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """A table per parameter, its default in italics."""
    yield Paragraph(
        "Cells: parameters left over the clean model's, in percent of what the attack added; 0 means that all went. "
        f"{BAD}: not restored, which asks for all clean shapes, Tier 1 on the models themselves, the clean similarity "
        "and the clean accuracy. Rows in italics are the defaults."
    )
    attacks = attacks_of(records)
    for (parameter,), part in groups(records, "parameter"):
        default = getattr(ProbeOptions(), parameter)
        yield Heading(SYMBOLS.get(parameter, parameter))
        rows = []
        for (value, ratio), found in sorted(groups(part, "value", "ratio"), key=itemgetter(0)):
            cells = [_cell(one(found, attack=attack)) for attack in attacks]
            rows.append(Row((f"{value:g}", f"{ratio:g}", *cells), aside=value == default))
        yield Table.of((parameter, "ρ", *map(attack_name, attacks)), rows)


def _cell(record: Record | None) -> str:
    missing = unmeasured(record)
    if missing is not None or record is None:
        return missing or UNMEASURED
    found: Mapping[str, Any] = record.metrics
    if "probe_parameters" not in found:
        return f"no result {BAD}"
    clean, attacked = found["parameters_clean"], found["parameters_attacked"]
    text = f"{100 * (found['probe_parameters'] - clean) / (attacked - clean):.3g}"
    return text if found["restored"] else f"{text} {BAD}"
