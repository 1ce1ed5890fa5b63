"""Similarity under attack and after recovery, certificates and verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from canon.bench.cases import Recovery
from canon.bench.measures.recovery import STRONG
from canon.bench.records import Record
from canon.bench.tables.common import (
    CANONICAL,
    UNMEASURED,
    all_of,
    attack_name,
    attacks_of,
    canonical_only,
    complaints,
    distinct,
    groups,
    measured,
    one,
    passes,
    unmeasured,
    values_of,
    worst,
)
from canon.bench.tables.document import BAD, Block, Heading, Paragraph, Row, Table

SETTINGS: Final = ("dataset", "seed", "attack_seed", "camouflage")
"""What has tables of its own where a suite has several of it."""

Beside = Callable[[Recovery, Sequence[str]], Row | None]
"""A row to stand below that of a case, with a cell for each attack, such as a published one."""


def recovery_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """Similarities, certificates and verdicts, and what did not come out."""
    yield from similarity_blocks(records)
    yield from certificate_blocks(records)
    yield from complaints(records, why_bad)


def similarity_blocks(
    records: Sequence[Record], remark: str = "", beside: Beside = lambda _case, _attacks: None
) -> Iterator[Block]:
    """A table for every model, ratio and setting."""
    yield Paragraph(
        "Cells: similarity under attack → similarity after recovery and alignment (in brackets: after recovery alone, "
        "with channels in whatever order they are). Δacc is the worst absolute gap of test accuracy over the attacks. "
        f"{CANONICAL}: certified on canonical forms only.{remark}"
    )
    yield _headline(records)
    several = [name for name in SETTINGS if len(distinct(getattr(r.case, name) for r in records)) > 1]
    names = ("ratio", "model", *several)
    for (ratio, model, *rest), part in groups(records, *names):
        setting = "".join(f", {name.replace('_', ' ')} {value}" for name, value in zip(several, rest, strict=True))
        yield Heading(f"{model}, ρ = {ratio:g}{setting}")
        yield _similarity(part, beside)


def certificate_blocks(records: Sequence[Record]) -> Iterator[Block]:
    """What was certified, and who was believed."""
    yield Heading("Certificates and verdicts")
    yield Paragraph(
        "Residuals are the largest of any layer of any case, marked or not. By the layout key: the owner has only the "
        "key, a file of the given size. A wrong key is another key of the same scheme, brought with the owner's own "
        "reference; a wrong owner brings a model trained on the same data and such a key."
    )
    yield _certificates(records)


def _headline(records: Sequence[Record]) -> Paragraph:
    done = measured(records)
    back = sum(r.metrics.get("aligned_similarity") == r.metrics.get("clean_similarity") for r in done)
    return Paragraph(
        f"Of {len(done)} measured cells, Tier 1 passes on the models themselves in {passes(done)} ({CANONICAL}: on "
        "canonical forms only, where the clean model has redundancy of its own that recovery removed), the recovered "
        f"similarity equals the clean one in {back}/{len(done)}, Δacc after recovery is 0 in "
        f"{all_of(done, 'recovered_delta_accuracy', 0.0)} and at most {worst(done, 'recovered_delta_accuracy')}."
    )


def _similarity(records: Sequence[Record], beside: Beside) -> Table:
    attacks = attacks_of(records)
    head = ["watermark", "clean sim.", "Δacc (att.)", "Δacc (rec.)", "Tier 1", *(attack_name(a) for a in attacks)]
    rows = []
    for (scheme,), mine in groups(records, "scheme"):
        clean = values_of(mine, "clean_similarity")
        rows.append(
            Row(
                (
                    scheme,
                    f"{clean[0]:.4f}" if clean else UNMEASURED,
                    _gap(mine, "attacked_delta_accuracy"),
                    _gap(mine, "recovered_delta_accuracy"),
                    passes(mine),
                    *(_cell(one(mine, attack=attack)) for attack in attacks),
                )
            )
        )
        row = beside(mine[0].case, attacks)
        if row is not None:
            rows.append(row)
    return Table.of(head, rows)


def _cell(record: Record | None) -> str:
    missing = unmeasured(record)
    if missing is not None or record is None:
        return missing or UNMEASURED
    found = record.metrics
    text = f"{found['attacked_similarity']:.4f}→{found['aligned_similarity']:.4f} ({found['recovered_similarity']:.4f})"
    if canonical_only(record):
        text += f" {CANONICAL}"
    return text if record.good else f"{text} {BAD}"


def _gap(records: Sequence[Record], metric: str) -> str:
    found = values_of(records, metric)
    return f"{max(found):.4f}" if found else UNMEASURED


def _certificates(records: Sequence[Record]) -> Table:
    head = (
        "model", "ρ", "Tier 1", "worst residual", "Tier 2", "largest p", "owner believed", "by key: Tier 1",
        "by key: worst residual", "by key: believed", "key, KB", "wrong key not believed", "wrong owner not believed",
    )  # fmt: skip
    rows = []
    for (model, ratio), whole in groups(records, "model", "ratio"):
        part = measured(whole)
        sizes = values_of(part, "key_bytes")
        rows.append((
            model, f"{ratio:g}", passes(part), worst(part, "tier1_all_max_rel_err"),
            all_of(part, "tier2_passed", True), worst(part, "p_value"), _believed(part, "verdict"),
            all_of(part, "key_passed", True), worst(part, "key_all_max_rel_err"), _believed(part, "key_verdict"),
            f"{max(sizes) / 1000:.0f}" if sizes else UNMEASURED, _believed(part, "wrong_key_verdict", wanted=False),
            _believed(part, "wrong_owner_verdict", wanted=False),
        ))  # fmt: skip
    return Table.of(head, rows)


def _believed(records: Sequence[Record], metric: str, *, wanted: bool = True) -> str:
    """How many verdicts believe a claimant, or do not."""
    found = values_of(records, metric)
    return f"{sum(str(value).startswith(STRONG) is wanted for value in found)}/{len(found)}"


def why_bad(record: Record) -> str:
    """Why a case is not as it should be."""
    found = record.metrics
    reasons = []
    if not found["tier1_passed"]:
        reasons.append(f"Tier 1 does not pass, residual {found['tier1_max_rel_err']}")
    if found["aligned_similarity"] != found["clean_similarity"]:
        reasons.append(f"similarity {found['aligned_similarity']} instead of {found['clean_similarity']}")
    if found["recovered_delta_accuracy"] != 0:
        gap, same = found["recovered_gap"], found["recovered_agreement"]
        reasons.append(f"Δacc {found['recovered_delta_accuracy']} (logits within {gap}, decisions {same} the same)")
    for claimant in ("verdict", "key_verdict"):
        if not str(found[claimant]).startswith(STRONG):
            reasons.append(f"{claimant.replace('_', ' ')}: {found[claimant]}")
    for claimant in ("wrong_key", "wrong_owner"):
        if str(found[f"{claimant}_verdict"]).startswith(STRONG):
            similarity = found[f"{claimant}_similarity"]
            reasons.append(f"a {claimant.replace('_', ' ')} is believed, at similarity {similarity:.4f}")
    return "; ".join(reasons)
