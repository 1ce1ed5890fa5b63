"""Evidence notices what was done to it, and everything that follows from its figures is worked out again."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from canon import watermarks, zoo
from canon.api import check_evidence, judge, read_evidence
from canon.attacks import attack
from canon.errors import VerificationError
from canon.verify import register
from canon.verify.answering import answers_of, unusual_options
from canon.verify.digest import document_digest, file_digest, model_digest
from canon.verify.evidence import plain
from canon.verify.schema import evidence_schema
from canon.verify.verdict import decide
from canon.watermarks import Controls, Key, Message
from tests.verify.small import disguise, example, tiny


def key(seed: int, message: Message | None = None) -> Key:
    """A key that fits the network's layers, with a message of choice."""
    data = zoo.dataset("digits").limited(8, 8).resized(8)
    drawn = message or Message.random(seed, 48)
    return watermarks.get("uchida17").draw_key(tiny(), data, message=drawn, seed=seed)


def read_key() -> Key:
    """A key whose message is what it reads from the network: made afterwards."""
    found = watermarks.get("uchida17").extract(tiny(), key(1))
    return key(1, Message.of(int(bit or 0) for bit in found.bits))


@cache
def documents() -> dict[str, dict[str, Any]]:
    """Evidence of every kind."""
    suspect, owner = disguise(tiny(), example()), tiny()
    noisy = attack(_noisy(owner), example(), "nso_zero", ratio=0.3).model
    layout = register(owner, example(), seed=0)
    notes = {"command": "canon verify …", "case": "7", "examiner": "somebody"}
    found = {
        "mark": judge(suspect, example(), reference=owner, watermark_key=read_key(), notes=notes),
        "no key": judge(suspect, example(), reference=owner),
        "wrong key": judge(suspect, example(), reference=owner, watermark_key=key(2)),
        "derived": judge(noisy, example(), reference=owner),
        "stranger": judge(tiny(5), example(), reference=owner),
        "layout": judge(suspect, example(), layout_key=layout),
    }
    return {name: each.evidence for name, each in found.items()}


def _noisy(model: torch.nn.Module) -> torch.nn.Module:
    noisy = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in noisy.parameters():
            tensor.mul_(1 + 0.05 * torch.randn(tensor.shape, generator=generator))
    return noisy


NAMES = ("mark", "no key", "wrong key", "derived", "stranger", "layout")


def test_every_document_has_its_name() -> None:
    assert tuple(documents()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_documents_check(name: str) -> None:
    read_evidence(json.dumps(documents()[name], allow_nan=False))


def test_verdicts() -> None:
    words = {name: (d["verdict"]["kind"], d["answers"]["network"]["answer"]) for name, d in documents().items()}
    assert words == {
        "mark": ("matches", "equal"),
        "no key": ("matches", "equal"),
        "wrong key": ("inconclusive", "equal"),
        "derived": ("matches", "derived"),
        "stranger": ("refuted", "unrelated"),
        "layout": ("matches", "equal"),
    }
    assert documents()["mark"]["record"]["examiner"] == "somebody"
    assert documents()["mark"]["record"]["created"].endswith("+00:00")


def _verdict(document: dict[str, Any]) -> None:
    document["verdict"] = {"kind": "proved", "reason": document["verdict"]["reason"]}


EDITS: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "verdict": ("stranger", _verdict),
    "verdict's reason": ("stranger", lambda d: d["verdict"].update(reason="another")),
    "answer": ("stranger", lambda d: d["answers"]["network"].update(answer="equal")),
    "equality": ("stranger", lambda d: d["equality"].update(passed=True)),
    "equality and residual": ("stranger", lambda d: d["equality"].update(passed=True, worst=1e-9)),
    "containment": ("stranger", lambda d: d["containment"].update(answer="contained")),
    "function": ("stranger", lambda d: d["function"]["comparisons"][0].update(difference=1e-9)),
    "coverage": ("no key", lambda d: d["equality"].update(numbers=17)),
    "bits": ("wrong key", lambda d: d["watermark"].update(matched=48)),
    "p-value": ("wrong key", lambda d: d["watermark"].update(p_value=1e-15)),
    "controls": ("wrong key", lambda d: d["watermark"]["controls"].update(void=True)),
    "priority": ("wrong key", lambda d: d["priority"].update(answer="first")),
    "residual": ("no key", lambda d: d["certificate"]["layers"][0].update(max_rel_err=0.5)),
    "bias": ("no key", lambda d: d["certificate"]["parameters"].update({"fc.bias": 0.5})),
    "tolerance": ("no key", lambda d: d["certificate"].update(tolerance=1e-9)),
    "precision": ("no key", lambda d: d["precision"].update(epsilon=0.1)),
    "options": ("no key", lambda d: d["options"].update(tolerance=1e9)),
    "tier 2": ("wrong key", lambda d: d["watermark"]["tier2"].update(passed=True)),
    "histogram": ("no key", lambda d: d["certificate"]["histogram"]["counts"].append(1)),
    "alignment": ("no key", lambda d: d["alignment"].update(distinct=0.1)),
    "field": ("no key", lambda d: d.update(signature="mine")),
    "missing field": ("no key", lambda d: d.pop("function")),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_document_fails_its_own_check(name: str) -> None:
    kind, edit = EDITS[name]
    document = copy.deepcopy(documents()[kind])
    edit(document)
    with pytest.raises(VerificationError, match="changed after it was written"):
        check_evidence(document)


@pytest.mark.parametrize("name", [name for name in EDITS if name != "coverage"])
def test_an_edit_with_a_new_digest_contradicts_itself(name: str) -> None:
    kind, edit = EDITS[name]
    document = copy.deepcopy(documents()[kind])
    edit(document)
    document.pop("digest")
    document["digest"] = document_digest(document)
    with pytest.raises(VerificationError, match=r"contradicts itself|incomplete|does not"):
        check_evidence(document)


def _derived(document: dict[str, Any]) -> None:
    found = document["containment"]
    found.update(answer="derived", layers_found=found["layers_in_all"], numbers_found=found["numbers"])


def _alone(document: dict[str, Any]) -> None:
    document["equality"].update(alone=True, passed=True, worst=1e-9, established=True, form="canonical")
    document["function"]["comparisons"][0].update(difference=0.0)


def _claimed(document: dict[str, Any]) -> None:
    document["priority"].update(answer="first", reason="it was")
    document["priority"]["claims"] = [{"role": "presented", "time": "2020", "timestamps": [], "wrong": []}]


def _given_probes_alone(document: dict[str, Any]) -> None:
    kept = {**document["function"]["comparisons"][0], "source": "mine", "difference": 1e-9}
    document["function"]["comparisons"] = [kept]


def _few_controls(document: dict[str, Any]) -> None:
    mark, kinds = document["watermark"], tuple(document["watermark"]["controls"]["kinds"])
    few = Controls(mark["scheme"], 1, kinds * 2, tuple(mark["controls"]["matched"][:6]), mark["total"], True)
    mark["controls"] = plain(few.to_dict())
    mark["p_value"] = few.p_value(mark["matched"], mark["alternatives"])


def _fewer_kinds(document: dict[str, Any]) -> None:
    mark = document["watermark"]
    matched = tuple(mark["controls"]["matched"])
    kinds: Any = ("redrawn",) * len(matched)
    kept = Controls(mark["scheme"], 1, kinds, matched, mark["total"], True)
    mark["controls"] = plain(kept.to_dict())
    mark["p_value"] = kept.p_value(mark["matched"], mark["alternatives"])


def _shifted(figures: dict[str, Any], name: str) -> None:
    figures[name] += 0.1


CONCLUDED: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "another word for what was located": ("stranger", lambda d: d["containment"].update(answer="derived")),
    "a word that locating does not know": ("stranger", lambda d: d["containment"].update(answer="equal")),
    "a stranger is derived": ("stranger", _derived),
    "nothing beside the owner's network": ("stranger", _alone),
    "a coverage without channels": ("stranger", lambda d: d["containment"].update(answer="derived", deep=1.0)),
    "changed numbers are contained": ("derived", lambda d: d["containment"].update(answer="contained")),
    "another residual": ("derived", lambda d: d["containment"].update(residual=1e-9)),
    "more layers were found": ("stranger", lambda d: d["containment"].update(layers_found=5)),
    "incomparable": ("stranger", lambda d: d.update(structure="another architecture")),
    "nothing was looked for": ("stranger", lambda d: d.update(containment=None)),
    "a difference is gone": ("stranger", lambda d: d["function"]["comparisons"][0].update(difference=None)),
    "a negative difference": ("stranger", lambda d: d["function"]["comparisons"][0].update(difference=-1.0)),
    "first without a claim": ("no key", lambda d: d["priority"].update(answer="first")),
    "first with a claim that nobody stamped": ("no key", _claimed),
    "random probes are gone": ("stranger", _given_probes_alone),
    "probes twice": ("no key", lambda d: d["function"]["comparisons"].append(d["function"]["comparisons"][0])),
    "few controls": ("mark", _few_controls),
    "controls of one kind": ("mark", _fewer_kinds),
    "controls of another scheme": ("mark", lambda d: d["watermark"]["controls"].update(scheme="greedy")),
    "another scheme": ("mark", lambda d: d["watermark"].update(scheme="riga21")),
    "what was lost": ("mark", lambda d: _shifted(d["watermark"]["tier2"], "drop")),
    "the suspect's similarity": ("mark", lambda d: _shifted(d["watermark"]["tier2"], "attacked")),
    "the mark's similarity": ("mark", lambda d: d["watermark"].update(similarity=0.3)),
    "a similarity that is no share": ("mark", lambda d: d["watermark"]["tier2"].update(clean=7.0)),
    "another λ": ("mark", lambda d: d["watermark"]["tier2"].update(fraction=0.1)),
    "bits as given": ("mark", lambda d: d["watermark"]["as_given"].update(matched=47)),
    "more bits as given than there are": ("mark", lambda d: d["watermark"]["as_given"].update(matched=99)),
    "fewer bits as given": ("mark", lambda d: d["watermark"]["as_given"].update(total=12)),
    "places to choose from": ("mark", lambda d: d["watermark"].update(alternatives=0)),
    "two tolerances": ("stranger", lambda d: d["certificate"].update(tolerance=0.01)),
    "layers of a certificate": ("no key", lambda d: d["certificate"]["layers"].pop()),
    "all decisions agree, outputs do not": ("stranger", lambda d: d["function"]["comparisons"][0].update(probes=-1)),
    "numbers of the owner's": ("derived", lambda d: d["containment"].update(numbers=d["containment"]["numbers"] - 9)),
    "the worst of an alignment": ("no key", lambda d: d["alignment"].update(worst=1e-12)),
    "the share of channels within": ("derived", lambda d: d["certificate"].update(match_frac=1.0)),
    "another tolerance passes": ("derived", lambda d: d["certificate"]["sweep"][-1].update(passed=True)),
    "the worst at another tolerance": ("derived", lambda d: d["certificate"]["sweep"][0].update(max_rel_err=1e-9)),
    "a tolerance is left out": ("no key", lambda d: d["certificate"]["sweep"].pop()),
    "the end of the distribution": ("no key", lambda d: d["certificate"]["quantiles"].update({"1": 1.0})),
    "borders of the histogram": ("no key", lambda d: d["certificate"]["histogram"]["borders"].pop()),
    "a canonical form": ("no key", lambda d: d["certificate"].update(canonical=True)),
    "a folded form": ("layout", lambda d: d["equality"].update(form="folded")),
    "what came from the owner": ("no key", lambda d: d["form"].update(from_owner=["mean"])),
    "another matching": ("no key", lambda d: d["options"].update(matching="optimal")),
    "recovery was not asked for": ("no key", lambda d: d["options"].update(recover=False)),
    "channels removed": ("derived", lambda d: d["recovery"].update(removed=0)),
    "channels merged": ("derived", lambda d: d["recovery"].update(merged=99)),
    "nothing was recovered": ("no key", lambda d: d.update(recovery=None)),
    "where the mark was read": ("mark", lambda d: d["watermark"].update(read_from="extracted")),
    "a place where no mark is read": ("mark", lambda d: d["watermark"].update(read_from="elsewhere")),
    "whom outputs were compared with": ("no key", lambda d: d["function"].update(against="the registered model")),
    "a median beyond the worst": ("no key", lambda d: d["alignment"]["spaces"][0].update(median=0.5)),
    "more ambiguous channels than there are": ("no key", lambda d: d["alignment"]["spaces"][0].update(ambiguous=999)),
    "a count below zero": ("no key", lambda d: d["equality"].update(numbers=-1)),
    "a count that is none": ("no key", lambda d: d["network"][0].update(suspect="many")),
    "something that evidence does not say": ("no key", lambda d: d["certificate"].update(signed=True)),
    "a time that is none": ("no key", lambda d: d["record"].update(created="last year")),
    "figures of a mark that was not read": ("mark", lambda d: d["watermark"].update(refused="no")),
    "a column left out of the histogram": ("no key", lambda d: d["certificate"]["histogram"]["counts"].pop()),
    "no precision at all": ("no key", lambda d: d["precision"].update(owner="float8_e4m3fn")),
    "widths of layers": ("no key", lambda d: d["certificate"]["layers"][0].update(width=1)),
}  # fmt: skip


@pytest.mark.parametrize("name", CONCLUDED)
def test_an_edit_that_draws_its_conclusions_contradicts_itself(name: str) -> None:
    """Answers, verdict and digest are made to follow; what was counted and measured says otherwise."""
    kind, edit = CONCLUDED[name]
    document = copy.deepcopy(documents()[kind])
    edit(document)
    answers = answers_of(document)
    verdict = decide(answers, unusual_options(document["options"]))
    document |= {"answers": plain(asdict(answers)), "verdict": {"kind": verdict.kind, "reason": verdict.reason}}
    document.pop("digest")
    document["digest"] = document_digest(document)
    with pytest.raises(VerificationError, match=r"contradicts itself|cannot be right|does not follow the schema"):
        check_evidence(document)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "canon-evidence", "version": 9}', "[" * 100_000])
def test_what_is_no_evidence_is_refused(text: str) -> None:
    with pytest.raises(VerificationError):
        read_evidence(text)


@pytest.mark.parametrize("version", [2, 3])
def test_a_document_made_from_nothing_is_refused(version: int) -> None:
    document: dict[str, Any] = {
        "format": "canon-evidence", "version": version, "verdict": {"kind": "proved", "reason": "so"},
        "certificate": None, "watermark": None, "alignment": {"established": True}, "form": {"kind": "given"},
    }  # fmt: skip
    with pytest.raises(VerificationError, match=r"does not follow the schema|version 2"):
        check_evidence({**document, "digest": document_digest(document)})


def test_digests(tmp_path: Path) -> None:
    assert model_digest(tiny()) == model_digest(tiny())
    assert model_digest(tiny()) != model_digest(tiny(1))
    assert model_digest(tiny()) != model_digest(tiny().double())
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    assert file_digest(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_document_that_says_something_twice_is_refused() -> None:
    text = json.dumps(documents()["stranger"])
    with pytest.raises(VerificationError, match="twice"):
        read_evidence('{"verdict": {"kind": "proved", "reason": "all agree"}, ' + text[1:])


def test_the_checker_knows_every_word_of_the_schema() -> None:
    def words(schema: dict[str, Any]) -> set[str]:
        below = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
        return schema.keys() | {word for part in below if isinstance(part, dict) for word in words(part)}

    known = {"type", "const", "enum", "pattern", "minimum", "maximum", "required", "items", "properties"}
    assert words(evidence_schema()) - known <= {"$schema", "title", "description", "additionalProperties"}


WORDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "structure": ("stranger", ("structure",)),
    "claims": ("no key", ("priority", "reason")),
    "what was located": ("undecided", ("containment", "reason")),
    "what the mark was not read for": ("wrong key", ("watermark", "refused")),
}
"""Where a document holds words of the run, which nobody can work out again."""


@pytest.mark.parametrize("name", WORDS)
def test_words_of_the_run_stand_in_quotation_marks(name: str) -> None:
    """Whoever writes something else there puts it in his own mouth, and cannot end the quotation."""
    kind, path = WORDS[name]
    document = copy.deepcopy(documents()["derived" if kind == "undecided" else kind])
    if kind == "undecided":
        document["containment"]["answer"] = "not decided"
    part = document
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = "none” and so all of it is proved"
    answers = answers_of(document)
    told = " ".join((answers.network.reason, answers.mark.reason, answers.priority.reason))
    assert "“none’ and so all of it is proved”" in told


def test_what_was_found_is_said_from_figures() -> None:
    document = copy.deepcopy(documents()["derived"])
    document["containment"]["reason"] = "every number is the owner's"
    assert answers_of(document).network.reason == documents()["derived"]["answers"]["network"]["reason"]
