"""Evidence follows its schema and notices what was done to it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from canon.api import judge
from canon.errors import VerificationError
from canon.verify import align, certify, register
from canon.verify.digest import document_digest, file_digest, model_digest
from canon.verify.evidence import check_evidence, read_evidence, write_evidence
from canon.verify.mark import Mark, Tier2
from canon.verify.verdict import Findings, Inconclusive, Proved, Refuted, Verdict, decide
from tests.verify.schema import check_schema
from tests.verify.small import disguise, example, tiny

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "evidence.schema.json").read_text(encoding="utf-8"))


def documents() -> dict[str, dict[str, Any]]:
    """Evidence of every kind."""
    suspect, owner = disguise(tiny(), example()), tiny()
    certificate = certify(suspect, owner, example())
    alignment = certificate.alignment
    tier2 = Tier2(1.0, 0.5, 1.0)
    found = {
        "proved": Findings(alignment, certificate, Mark("uchida17", 48, 48, 1.0, "aligned"), tier2),
        "no key": Findings(alignment, certificate),
        "wrong key": Findings(alignment, certificate, Mark("uchida17", 20, 48, 0.4, "aligned"), Tier2(1.0, 0.5, 0.4)),
        "widths": Findings(None, certify(tiny(width=20), owner, example())),
        "layout": Findings(align(suspect, register(owner, example()), example())),
    }
    return {
        name: write_evidence(each, decide(each), inputs={"suspect": {"tensors": model_digest(suspect)}}, options={})
        for name, each in found.items()
    }


DOCUMENTS = documents()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_follow_the_schema_and_check(name: str) -> None:
    text = json.dumps(DOCUMENTS[name], allow_nan=False)
    check_schema(read_evidence(text), SCHEMA)


def test_a_whole_judgement_follows_the_schema() -> None:
    inputs = {"suspect": {"file": "a.safetensors", "sha256": "0" * 64}}
    found = judge(disguise(tiny(), example()), example(), reference=tiny(), inputs=inputs)
    check_schema(json.loads(json.dumps(found.evidence)), SCHEMA)
    assert found.evidence["inputs"]["suspect"]["sha256"] == "0" * 64
    assert found.evidence["agreement"]["reference"]["largest_difference"] < 1e-5
    assert found.evidence["agreement"]["aligned"]["same_decision"] == 1.0
    assert found.evidence["options"]["tolerance"] == 1e-3


def test_verdicts() -> None:
    kinds = {name: document["verdict"]["kind"] for name, document in DOCUMENTS.items()}
    assert kinds == {
        "proved": "proved",
        "no key": "proved",
        "wrong key": "refuted",
        "widths": "inconclusive",
        "layout": "proved",
    }


EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "verdict": lambda d: d["verdict"].update(kind="proved", tier=1),
    "bits": lambda d: d["watermark"].update(matched=48),
    "p-value": lambda d: d["watermark"].update(p_value=1e-15),
    "residual": lambda d: d["certificate"]["layers"][0].update(max_rel_err=0.5),
    "layer": lambda d: d["certificate"]["layers"].pop(),
    "tolerance": lambda d: d["certificate"].update(tolerance=1e-9),
    "tier 2": lambda d: d["watermark"]["tier2"].update(passed=True),
    "histogram": lambda d: d["certificate"]["histogram"]["counts"].append(1),
    "hash": lambda d: d["inputs"]["suspect"].update(tensors="0" * 64),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_document_fails_its_own_check(name: str) -> None:
    document = copy.deepcopy(DOCUMENTS["wrong key"])
    EDITS[name](document)
    with pytest.raises(VerificationError, match="changed after it was written"):
        check_evidence(document)


@pytest.mark.parametrize("name", ["verdict", "bits", "p-value", "residual", "tolerance", "tier 2", "histogram"])
def test_an_edit_with_a_new_digest_contradicts_itself(name: str) -> None:
    document = copy.deepcopy(DOCUMENTS["wrong key"])
    EDITS[name](document)
    document.pop("digest")
    document["digest"] = document_digest(document)
    with pytest.raises(VerificationError, match=r"contradicts itself|does not follow"):
        check_evidence(document)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "canon-evidence", "version": 9}', "[" * 100_000])
def test_what_is_no_evidence_is_refused(text: str) -> None:
    with pytest.raises(VerificationError):
        read_evidence(text)


def test_an_incomplete_document_is_refused() -> None:
    document = {"format": "canon-evidence", "version": 1}
    with pytest.raises(VerificationError, match="incomplete"):
        check_evidence({**document, "digest": document_digest(document)})


def test_a_mark_from_an_unforced_alignment_is_refused() -> None:
    unrelated = align(tiny(1), tiny(0), example())
    with pytest.raises(VerificationError, match="not established"):
        Findings(unrelated, None, Mark("uchida17", 48, 48, 1.0, "aligned"), Tier2(1.0, 0.5, 1.0))


def decided(related: bool, equal: bool, matched: int, recovered: float) -> Verdict:
    suspect = disguise(tiny(), example()) if related else tiny(1)
    certificate = certify(suspect, tiny(), example(), tolerance=1e-3 if equal else 0.0)
    mark = Mark("uchida17", matched, 48, recovered, "aligned" if related else "recovered")
    return decide(Findings(certificate.alignment, certificate, mark, Tier2(1.0, 0.5, recovered)))


def test_the_table_of_verdicts() -> None:
    assert isinstance(decided(True, True, 48, 1.0), Proved)
    assert isinstance(decided(True, True, 24, 0.5), Refuted)
    assert decided(True, False, 48, 1.0) == Proved(
        2, "the model carries the message (48 of 48 bits, p = 3.6e-15), and similarity 1.000 is back"
    )
    assert isinstance(decided(True, False, 47, 0.9), Inconclusive)
    assert isinstance(decided(True, False, 24, 0.5), Inconclusive)
    assert isinstance(decided(False, False, 24, 0.5), Refuted)
    assert isinstance(decided(False, False, 48, 1.0), Proved)


def test_a_mark_that_nobody_could_look_for_is_not_missing() -> None:
    certificate = certify(disguise(tiny(), example()), tiny(), example())
    mark = Mark("uchida17", 24, 48, 0.5, "recovered")
    verdict = decide(Findings(certificate.alignment, certificate, mark, Tier2(1.0, 0.5, 0.5)))
    assert certificate.passed
    assert isinstance(verdict, Inconclusive)


def test_digests(tmp_path: Path) -> None:
    assert model_digest(tiny()) == model_digest(tiny())
    assert model_digest(tiny()) != model_digest(tiny(1))
    assert model_digest(tiny()) != model_digest(tiny().double())
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    assert file_digest(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
