"""The whole way: attack, recover, align, certify, and read the mark at every step.

A case has four claimants, with one recovery between them: each is judged on the model as it was recovered. Where
recovery also took away idle channels of the owner's own, each is judged on the suspect itself, as a user would ask.
"""

from __future__ import annotations

from typing import Final

from torch import Tensor, nn

from canon import watermarks
from canon.api import Judgement, JudgeOptions, judge, recover
from canon.bench.cases import Recovery
from canon.bench.lab import Owner, Setup, owner, stranger
from canon.bench.measures.attacked import attacked_model, certified, count, note_certificate, widths_differ
from canon.bench.measures.sheet import Sheet, short
from canon.graph import trace
from canon.verify import LayoutKey
from canon.verify.mark import Tier2
from canon.watermarks import Extraction, Key

STRONG: Final = ("proved", "matches")
"""The verdicts that believe a claimant."""


def measure_recovery(case: Recovery, setup: Setup, sheet: Sheet) -> None:
    """Measure one cell of the paper's tables, and what the paper has no column for."""
    mine = owner(setup, case.training)
    scheme = watermarks.get(case.scheme)
    sheet.begin()
    trace(mine.model, mine.example)
    sheet.lap("trace")
    suspect = attacked_model(case, mine, sheet)
    found = scheme.extract(suspect, mine.key)
    sheet.note(attacked_mismatches=len(found.shape_mismatch))
    clean = scheme.similarity(mine.model, mine.key)
    sheet.note(clean_similarity=clean, attacked_similarity=found.similarity)
    sheet.note(clean_accuracy=mine.accuracy(mine.logits))
    note_function(sheet, "attacked", mine, mine.answers(suspect))

    sheet.begin()
    recovered = recover(suspect, mine.example).model
    sheet.lap("recover")
    shapes = widths_differ(recovered, mine.layout, mine.example) is None
    sheet.note(parameters_recovered=count(recovered), widths_given=False, shapes=shapes)
    note_function(sheet, "recovered", mine, mine.answers(recovered))

    hearing = Hearing(recovered, mine.example, recovered if shapes else suspect)
    del suspect
    _by_reference(sheet, hearing, mine, Tier2(clean, found.similarity, hearing.read(mine.key).similarity))
    _by_layout_key(sheet, hearing, mine)
    _by_others(sheet, hearing, case, setup, mine)
    sheet.note(good=_good(sheet))


def _by_reference(sheet: Sheet, hearing: Hearing, mine: Owner, tier2: Tier2) -> None:
    """The owner brings the reference and the watermark key."""
    sheet.begin()
    found = certified(hearing.recovered, mine.model, mine.layout, mine.example, mine.key.layers, sheet)
    note_certificate(sheet, "tier1", found)
    sheet.begin()
    hearing.read(mine.key)
    sheet.lap("extract")
    judged = hearing.hear(mine.key, mine.model)
    sheet.lap("judge")
    mark = judged.mark
    sheet.note(
        aligned_similarity=similarity(judged),
        read_from=None if mark is None else mark.read_from,
        recovered_similarity=tier2.recovered,
        tier2_passed=tier2.passed,
        matched=0 if mark is None else mark.matched,
        total=len(mine.key.message) if mark is None else mark.total,
        p_value=1.0 if mark is None else short(mark.p_value),
        verdict=in_words(judged),
    )


def _by_layout_key(sheet: Sheet, hearing: Hearing, mine: Owner) -> None:
    """The owner brings the layout key alone; the reference only serves to see how near the result comes."""
    judged = hearing.hear(mine.key, mine.layout_key)
    sheet.begin()
    found = certified(
        hearing.recovered, mine.model, mine.layout_key, mine.example, mine.key.layers, alignment=judged.alignment
    )
    sheet.lap("certify_by_key")
    note_certificate(sheet, "key", found)
    sheet.note(key_similarity=similarity(judged), key_verdict=in_words(judged), key_bytes=mine.layout_key_bytes)


def _by_others(sheet: Sheet, hearing: Hearing, case: Recovery, setup: Setup, mine: Owner) -> None:
    """Nobody else may be believed: neither another key with our model, nor another model with another key."""
    judged = hearing.hear(mine.wrong_key, mine.model)
    sheet.note(wrong_key_similarity=similarity(judged), wrong_key_verdict=in_words(judged))
    judged = hearing.hear(mine.wrong_key, stranger(setup, case.stranger)[0])
    certificate = judged.compared.certificate
    sheet.note(
        wrong_owner_similarity=similarity(judged),
        wrong_owner_verdict=in_words(judged),
        wrong_owner_match_frac=None if certificate is None else round(certificate.match_frac, 6),
        wrong_owner_distinct=None if judged.alignment is None else round(judged.alignment.distinct, 4),
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
        and str(found["verdict"]).startswith(STRONG)
        and str(found["key_verdict"]).startswith(STRONG)
        and not any(str(found[name]).startswith(STRONG) for name in ("wrong_key_verdict", "wrong_owner_verdict"))
    )


class Hearing:
    """Claims to one recovered model, or to the suspect that it was made from."""

    def __init__(self, recovered: nn.Module, example: Tensor, judged: nn.Module) -> None:
        self.recovered, self.example, self.judged = recovered, example, judged

    def read(self, key: Key) -> Extraction:
        """What a key reads from the model as it was recovered, in whatever order its channels are."""
        return watermarks.get(key.scheme).extract(self.recovered, key, self.example)

    def hear(self, key: Key, anchor: nn.Module | LayoutKey) -> Judgement:
        """Somebody who says that the model is theirs, with a watermark key and a reference or layout key."""
        reference, layout_key = (None, anchor) if isinstance(anchor, LayoutKey) else (anchor, None)
        return judge(
            self.judged,
            self.example,
            reference=reference,
            layout_key=layout_key,
            watermark_key=key,
            options=JudgeOptions(recover=self.judged is not self.recovered),
        )


def in_words(found: Judgement) -> str:
    """A verdict in few words: `matches, equal`, `refuted`, `inconclusive`."""
    kind = found.verdict.kind
    return f"{kind}, {found.answers.network.answer}" if kind in STRONG else kind


def similarity(found: Judgement) -> float:
    """What the key read where it counts; 0 where it was refused."""
    return 0.0 if found.mark is None else found.mark.similarity
