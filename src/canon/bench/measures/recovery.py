"""The whole way: attack, recover, align, certify, and read the mark at every step."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from canon import watermarks
from canon.api import recover
from canon.bench.cases import Recovery
from canon.bench.lab import Owner, Setup, owner, stranger
from canon.bench.measures.attacked import Certified, attacked_model, certified, note_certificate
from canon.bench.measures.claims import Claim, Hearing, told
from canon.bench.measures.sheet import Sheet, short
from canon.bench.subjects import count
from canon.graph import trace
from canon.verify.mark import Tier2


def measure_recovery(case: Recovery, setup: Setup, sheet: Sheet) -> None:
    """Measure one cell of the paper's tables, and what the paper has no column for."""
    mine = owner(setup, case.training)
    similarity = watermarks.get(case.scheme).similarity
    sheet.begin()
    trace(mine.model, mine.example)
    sheet.lap("trace")
    suspect = attacked_model(case, mine, sheet)
    found = watermarks.get(case.scheme).extract(suspect, mine.key)
    sheet.note(attacked_mismatches=len(found.shape_mismatch))
    claim = Claim(mine.key, similarity(mine.model, mine.key), found.similarity)
    wrong = Claim(mine.wrong_key, similarity(mine.model, mine.wrong_key), similarity(suspect, mine.wrong_key))
    sheet.note(clean_similarity=claim.clean, attacked_similarity=claim.attacked)
    sheet.note(clean_accuracy=mine.accuracy(mine.logits))
    note_function(sheet, "attacked", mine, mine.answers(suspect))

    sheet.begin()
    recovered = recover(suspect, mine.example, widths=mine.model).model
    sheet.lap("recover")
    del suspect
    sheet.note(parameters_recovered=count(recovered))
    note_function(sheet, "recovered", mine, mine.answers(recovered))

    hearing = Hearing(recovered, mine.example)
    by_reference = _by_reference(sheet, hearing, claim, mine)
    _by_layout_key(sheet, hearing, claim, mine)
    _by_others(sheet, hearing, wrong, case, setup, mine, by_reference)
    sheet.note(good=_good(sheet))


def _by_reference(sheet: Sheet, hearing: Hearing, claim: Claim, mine: Owner) -> Certified:
    """The owner brings the reference and the watermark key."""
    sheet.begin()
    found = certified(hearing.recovered, mine.model, mine.layout, mine.example, mine.key.layers, sheet)
    note_certificate(sheet, "tier1", found)
    sheet.begin()
    mark, verdict = hearing.hear(claim, found)
    sheet.lap("extract")
    raw = hearing.read(claim.key).similarity
    sheet.note(
        aligned_similarity=mark.similarity,
        read_from=mark.read_from,
        recovered_similarity=raw,
        tier2_passed=Tier2(claim.clean, claim.attacked, raw).passed,
        matched=mark.matched,
        total=mark.total,
        p_value=short(mark.p_value),
        verdict=told(verdict),
    )
    return found


def _by_layout_key(sheet: Sheet, hearing: Hearing, claim: Claim, mine: Owner) -> None:
    """The owner brings the layout key alone; the reference only serves to see how near the result comes."""
    sheet.begin()
    found = certified(hearing.recovered, mine.model, mine.layout_key, mine.example, mine.key.layers)
    sheet.lap("certify_by_key")
    note_certificate(sheet, "key", found)
    mark, verdict = hearing.hear(replace(claim, clean=1.0), found, with_reference=False)
    sheet.note(key_similarity=mark.similarity, key_verdict=told(verdict), key_bytes=mine.layout_key_bytes)


def _by_others(
    sheet: Sheet, hearing: Hearing, wrong: Claim, case: Recovery, setup: Setup, mine: Owner, by_reference: Certified
) -> None:
    """Nobody else may be believed: neither another key with our model, nor another model with another key."""
    mark, verdict = hearing.hear(wrong, by_reference)
    sheet.note(wrong_key_similarity=mark.similarity, wrong_key_verdict=told(verdict))
    theirs, layout = stranger(setup, case.stranger)
    sheet.begin()
    found = certified(hearing.recovered, theirs, layout, mine.example, mine.key.layers)
    sheet.lap("certify_stranger")
    clean = watermarks.get(case.scheme).similarity(theirs, wrong.key)
    mark, verdict = hearing.hear(replace(wrong, clean=clean), found)
    sheet.note(
        wrong_owner_similarity=mark.similarity,
        wrong_owner_verdict=told(verdict),
        wrong_owner_match_frac=round(found.certificate.match_frac, 6),
        wrong_owner_distinct=None if found.alignment is None else round(found.alignment.distinct, 4),
    )


def note_function(sheet: Sheet, prefix: str, mine: Owner, logits: Tensor) -> None:
    """Write down how far a model answers as the clean one does."""
    accuracy = mine.accuracy(logits)
    sheet.note(
        **{
            f"{prefix}_accuracy": round(accuracy, 6),
            f"{prefix}_delta_accuracy": round(abs(mine.accuracy(mine.logits) - accuracy), 6),
            f"{prefix}_agreement": round(float((logits.argmax(1) == mine.logits.argmax(1)).double().mean()), 6),
            f"{prefix}_gap": short(float((logits - mine.logits).abs().max() / mine.logits.abs().max())),
        }
    )


def _good(sheet: Sheet) -> bool:
    """Whether the mark is back in full, the function is the clean one's, and nobody else is believed."""
    found = sheet.metrics
    return (
        found["tier1_passed"] is True
        and found["aligned_similarity"] == found["clean_similarity"]
        and found["recovered_delta_accuracy"] == 0
        and str(found["verdict"]).startswith("proved")
        and str(found["key_verdict"]).startswith("proved")
        and not any(str(found[name]).startswith("proved") for name in ("wrong_key_verdict", "wrong_owner_verdict"))
    )
