"""ONNX files from elsewhere: one row for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from canon.bench.records import Record
from canon.bench.tables.common import complaints, measured
from canon.bench.tables.document import Block, Paragraph, Table

HEAD = ("package", "file", "MB", "operators", "free spaces", "difference", "outcome", "after attack")


def foreign_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """How many come through, and the table."""
    done = [record.metrics for record in measured(records)]
    read = [found for found in done if found["result"] != "refused"]
    same = sum(found["result"] == "unchanged" for found in read)
    text = f"{len(read)} of {len(done)} files are read; {same} of these come back from recovery unchanged."
    tried = [found["attacked"] for found in read if "attacked" in found]
    good = sum(found.get("certified", False) for found in tried)
    text += f" Of {len(tried)} that were attacked, {good} were recovered and certified."
    if others := [found["onnx2torch"] for found in read if "onnx2torch" in found]:
        good = sum(told.endswith("free") or told.startswith("converted") for told in others)
        text += f" Of the {len(others)} that were also given to onnx2torch, it converts {good} with the same outputs."
    yield Paragraph(text)
    yield table_of_files(records)
    yield from complaints(records)


def table_of_files(records: Sequence[Record]) -> Table:
    """One row for every file."""
    rows = []
    for record in measured(records):
        found: Any = record.metrics
        names = ", ".join(found.get("operators", {}))
        free = f"{found['free']} of {found['spaces']}" if "spaces" in found else ""
        gap = f"{found['difference']:.1e} of {found['largest_output']:.1e}" if "difference" in found else ""
        what = found.get("reason") or "; ".join(
            ", ".join(f"{count} {kind}" for kind, count in kinds.items()) + f" at `{space}`"
            for space, kinds in found.get("found", {}).items()
        )
        result = f"{found['result']}: {what}" if what else found["result"]
        size, attacked = f"{found['bytes'] / 1e6:.1f}", _attacked(found.get("attacked"))
        rows.append((record.case.package, record.case.file, size, names, free, gap, result, attacked))
    return Table.of(HEAD, rows)


def _attacked(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    if "reason" in found:
        return f"refused: {found['reason']}"
    if not found["added"]:
        return "no place for it; certified" if found["certified"] else "no place for it; not certified"
    share = "all" if not found["left"] else f"{1 - found['left'] / found['added']:.0%}"
    return f"{share} of {found['added']:,} numbers gone; {'certified' if found['certified'] else 'not certified'}"
