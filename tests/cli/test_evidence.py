"""`canon evidence`: documents are checked, shown and repeated; whatever was bent is noticed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import canon
from canon.api import compare_documents, examine_evidence, load_document
from canon.cli.exit_codes import ExitCode
from canon.cli.main import app, execute
from canon.errors import VerificationError
from canon.verify.schema import check_schema, evidence_schema
from tests.report.documents import NAMES, concluded, documents, hidden, key_of, marked, noisy, sealed
from tests.verify.small import example, tiny

ARCH = ("--arch", "tests.verify.small:tiny", "--size", "3x8x8")
SCHEMA = evidence_schema()
EVIDENCE = [name for name in NAMES if name not in ("recovered", "clean")]


def run(*arguments: object) -> int:
    return execute(app, [*map(str, arguments)])


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of a verification, and its evidence."""
    folder = tmp_path_factory.mktemp("desk")
    key = key_of(tiny(), 0)
    owner = marked(tiny(), key)
    canon.save(owner, folder / "owner.safetensors")
    canon.save(hidden(owner), folder / "suspect.safetensors")
    canon.save(noisy(hidden(owner), 0.05), folder / "noisy.safetensors")
    key.save(folder / "owner.key")
    np.savez(folder / "probes.npz", torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0)).numpy())
    for name in ("suspect", "noisy"):
        status = run("verify", folder / f"{name}.safetensors", *anchors(folder), "--out", folder / f"{name}.json",
                     "--case", "2026/17; it's", "--examiner", "R. E.")  # fmt: skip
        assert status == ExitCode.OK
    return folder


def anchors(folder: Path) -> tuple[object, ...]:
    return (
        "--reference", folder / "owner.safetensors", "--watermark-key", folder / "owner.key",
        "--probes", folder / "probes.npz", *ARCH,
    )  # fmt: skip


def test_the_record_says_how_it_was_made(desk: Path) -> None:
    document = load_document(desk / "suspect.json")
    record = document["record"]
    assert record["case"] == "2026/17; it's"
    assert record["examiner"] == "R. E."
    assert record["command"].startswith(f"canon verify {desk}/suspect.safetensors --reference ")
    assert """--case '2026/17; it'"'"'s'""" in record["command"]
    assert document["inputs"]["probes"]["preparation"] == "6 probes, the arrays arr_0 as they are"
    assert document["answers"]["function"]["probes"] == {"random": 16, "probes.npz": 6}
    assert len(document["inputs"]["watermark_key"]["sha256"]) == 64


@pytest.mark.parametrize("name", EVIDENCE)
def test_documents_follow_the_schema(name: str) -> None:
    check_schema(json.loads(json.dumps(documents()[name])), SCHEMA)


def test_files_follow_the_schema(desk: Path) -> None:
    check_schema(load_document(desk / "noisy.json"), SCHEMA)


@pytest.mark.parametrize("name", EVIDENCE)
def test_honest_documents_hold(name: str) -> None:
    assert [finding for finding in examine_evidence(documents()[name]) if not finding.holds] == []


EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "verdict": lambda d: d["verdict"].update(kind="proved"),
    "reason": lambda d: d["verdict"].update(reason="because"),
    "answer": lambda d: d["answers"]["network"].update(answer="contained"),
    "bits": lambda d: d["watermark"].update(matched=63),
    "p-value": lambda d: d["watermark"].update(p_value=1e-30),
    "controls": lambda d: d["watermark"]["controls"]["matched"].__setitem__(0, 64),
    "kinds": lambda d: d["watermark"]["controls"]["kinds"].update(redrawn=10**15),
    "void": lambda d: d["watermark"]["controls"].update(void=True),
    "residual": lambda d: d["certificate"]["layers"][0].update(max_rel_err=0.5),
    "difference": lambda d: d["function"]["comparisons"][0].update(difference=0.5),
    "share": lambda d: d["equality"].update(share=0.5),
    "priority": lambda d: d["priority"].update(answer="first"),
    "tolerance": lambda d: d["options"].update(tolerance=0.5),
    "kind": lambda d: d["watermark"].update(matched="64"),
    "gone": lambda d: d["equality"].pop("worst"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_document_fails_even_with_a_new_digest(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = copy.deepcopy(documents()["equal"])
    EDITS[name](document)
    path = tmp_path / "evidence.json"
    for edited, words in ((document, "changed after it was written"), (sealed(document), "FAILS")):
        path.write_text(json.dumps(edited))
        assert run("evidence", "check", path) == ExitCode.REFUTED
        text = capsys.readouterr().out
        assert words in text
        assert "not consistent" in text
    assert run("evidence", "report", path, "--out", tmp_path / "page.html") == ExitCode.USAGE
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": "canon-evidence", "version": 9}', '{"format": "canon-evidence", "version": 1}',
     "[" * 100_000, '{"format": "canon-evidence", "version": 2}', '{"a": NaN}', "\ud800",
     '{"format": 1e9999}', "9" * 5000],
)  # fmt: skip
def test_what_is_no_evidence_is_unreadable(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "evidence.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert run("evidence", "check", path, "--json") == ExitCode.USAGE
    assert json.loads(capsys.readouterr().out)["error"]["status"] == 2


def test_a_document_that_says_something_twice_is_refused(tmp_path: Path) -> None:
    whole = json.dumps(documents()["unrelated"])
    path = tmp_path / "evidence.json"
    path.write_text('{"verdict": {"kind": "proved", "reason": "mine"}, ' + whole[1:])
    with pytest.raises(VerificationError, match="twice"):
        load_document(path)


def test_check_tells_programs(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evidence", "check", desk / "suspect.json", "--json") == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert found["consistent"] is True
    assert found["verdict"] == "matches"
    assert len(found["checks"]) >= 8


def test_further_checks_have_their_place() -> None:
    def unsigned(document: object) -> None:
        raise VerificationError("no signature")

    finding = examine_evidence(documents()["equal"], [("the signature is the examiner's", unsigned)])[-1]
    assert (finding.what, finding.holds, finding.problem) == ("the signature is the examiner's", False, "no signature")


def test_the_page_is_made_again(desk: Path, tmp_path: Path) -> None:
    page, again = tmp_path / "page.html", tmp_path / "again.html"
    assert run("evidence", "report", desk / "suspect.json", "--out", page) == ExitCode.OK
    assert run("evidence", "report", desk / "suspect.json", "--out", again) == ExitCode.OK
    assert page.read_bytes() == again.read_bytes()
    assert "The suspect holds the owner" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["suspect", "noisy"])
def test_a_run_is_reproduced(name: str, desk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "again.json"
    suspect = desk / f"{name}.safetensors"
    assert (
        run("evidence", "rerun", desk / f"{name}.json", "--suspect", suspect, *anchors(desk), "--out", out)
        == ExitCode.OK
    )
    text = capsys.readouterr().out
    assert "all digests are those of the document" in text
    assert "reproduced: the verdict 'matches' with all that it rests on" in text
    assert load_document(out)["verdict"]["kind"] == "matches"


def test_other_inputs_are_said_first(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suspect = desk / "noisy.safetensors"
    assert run("evidence", "rerun", desk / "suspect.json", "--suspect", suspect, *anchors(desk)) == ExitCode.REFUTED
    captured = capsys.readouterr()
    assert captured.err.startswith("another input: inputs.suspect.sha256 is ")
    assert captured.out.startswith("other input  inputs.suspect.sha256: the document says ")
    assert "not reproduced: the document says 'matches'" in captured.out


def test_a_missing_exhibit_is_a_difference(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--suspect", desk / "suspect.safetensors", "-r", desk / "owner.safetensors", *ARCH, "--json")
    assert run("evidence", "rerun", desk / "suspect.json", *arguments) == ExitCode.REFUTED
    found = json.loads(capsys.readouterr().out)
    assert found["reproduced"] is False
    different = [field["name"] for field in found["different"]]
    assert different[:2] == ["inputs.probes.preparation", "inputs.probes.sha256"]
    assert "watermark" in different


def test_bent_figures_are_not_reproduced() -> None:
    """A document may agree with itself and still be false: only the repeated run shows it."""
    said = documents()["derived"]
    bent = copy.deepcopy(said)
    bent["function"]["comparisons"][0]["difference"] *= 1.01
    found = compare_documents(concluded(bent), said)
    assert "function.comparisons[0].difference" in [field.name for field in found.different]
    assert compare_documents(said, said).reproduced


def test_rounding_and_versions_are_no_difference() -> None:
    said = copy.deepcopy(documents()["equal"])
    found = copy.deepcopy(said)
    found["certificate"]["max_rel_err"] *= 1.7
    found["environment"]["torch"] = "9.9"
    compared = compare_documents(said, found)
    assert compared.reproduced
    assert [field.name for field in compared.versions] == ["torch"]
    assert [field.name for field in compared.fields if field.word == "near"] == ["certificate.max_rel_err"]
    found["watermark"]["p_value"] *= 1.7
    assert [field.name for field in compare_documents(said, found).different] == ["watermark.p_value"]


def test_probes_need_the_owners_model(desk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    canon.register(tiny(), example()).save(tmp_path / "layout.key")
    arguments = ("--layout-key", tmp_path / "layout.key", "--probes", desk / "probes.npz", "--out", tmp_path / "e.json")
    assert run("verify", desk / "suspect.safetensors", *arguments, *ARCH) == ExitCode.USAGE
    assert "a layout key knows outputs" in " ".join(capsys.readouterr().err.split())
