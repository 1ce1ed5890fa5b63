"""`canon verify` with a claim: who was first, signed evidence, a sealed case."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from canon import claims
from canon.cli.exit_codes import ExitCode
from canon.cli.main import app, execute
from canon.io import save
from canon.verify import register
from tests.claims.authority import Authority
from tests.verify.small import disguise, example, tiny

ARCH = "tests.verify.small:tiny"


@dataclass(frozen=True)
class Files:
    """What an owner and an examiner have."""

    folder: Path
    words: list[str]
    claim: list[str]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("claims")
    owner, suspect = tiny(), disguise(tiny(), example())
    save(owner, folder / "owner.safetensors")
    save(suspect, folder / "suspect.safetensors")
    register(owner, example()).save(folder / "layout.key")
    authority = Authority(folder / "authority")
    made = claims.commit(owner, key=claims.new_key(folder / "owner.pem"))
    claims.attach(made.claim, authority.stamp(made.claim.encode())).save(folder / "owner.claim")
    made.opening.save(folder / "owner.opening")
    suspect_file, reference = str(folder / "suspect.safetensors"), str(folder / "owner.safetensors")
    words = ["verify", suspect_file, "--reference", reference, "--arch", ARCH, "--size", "3x8x8"]
    brought = ["--claim", str(folder / "owner.claim"), "--opening", str(folder / "owner.opening")]
    return Files(folder, words, [*brought, "--root", str(authority.root_file)])


def run(words: list[str]) -> int:
    return execute(app, words)


def day(offset: int) -> list[str]:
    when = f"{datetime.now(UTC) + timedelta(days=offset):%Y-%m-%dT%H:%M:%S}Z"
    return ["--suspect-date", when, "--suspect-date-source", "an upload's record"]


def verdict(files: Files, out: str, *more: str) -> tuple[int, dict[str, str]]:
    path = files.folder / out
    status = run([*files.words, *more, "--out", str(path), "--force"])
    document = json.loads(path.read_text())
    answers = document["answers"]
    return status, {"verdict": document["verdict"]["kind"], "priority": answers["priority"]["answer"]}


def test_a_claim_that_was_there_first_proves(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    later = datetime.now(UTC) + timedelta(days=30)
    monkeypatch.setattr("canon.claims.trust.Trust.moment", property(lambda self: later))
    assert verdict(files, "first.json", *files.claim, *day(10)) == (
        ExitCode.OK, {"verdict": "proved", "priority": "first"})  # fmt: skip


def test_a_claim_made_after_the_suspect_gives_no_strong_word(files: Files) -> None:
    assert verdict(files, "late.json", *files.claim, *day(-10)) == (
        ExitCode.INCONCLUSIVE, {"verdict": "inconclusive", "priority": "not first"})  # fmt: skip


def test_a_claim_without_a_date_matches(files: Files) -> None:
    assert verdict(files, "undated.json", *files.claim) == (
        ExitCode.OK, {"verdict": "matches", "priority": "nothing shown"})  # fmt: skip


def test_signed_evidence_and_a_sealed_case(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    folder, key = files.folder / "case", files.folder / "owner.pem"
    out, page = files.folder / "signed.json", files.folder / "signed.html"
    words = [*files.words, *files.claim, "--sign", str(key), "--case", str(folder), "--out", str(out)]
    assert run([*words, "--report", str(page)]) == ExitCode.OK
    assert "payloadType" in json.loads(out.read_text())
    assert {"SHA256SUMS", "owner.claim", "owner.opening", "report.html"} <= {path.name for path in folder.iterdir()}
    claims.check_case(folder)
    assert run(["evidence", "check", str(out)]) == ExitCode.OK
    assert run(["evidence", "check", str(out), "--key", str(folder / "signer.pem")]) == ExitCode.OK
    other = files.folder / "other"
    other.mkdir()
    claims.seal({}, claims.new_key(other / "other.pem"))
    (other / "public.pem").write_text((folder / "signer.pem").read_text().replace("A", "B"))
    assert run(["evidence", "check", str(out), "--key", str(other / "public.pem")]) == ExitCode.REFUTED
    changed = out.read_text().replace('"payload":"', '"payload":"A', 1)
    (files.folder / "changed.json").write_text(changed)
    assert run(["evidence", "check", str(files.folder / "changed.json")]) == ExitCode.USAGE
    assert run(words) == ExitCode.USAGE, "the case is there already"
    capsys.readouterr()


def test_what_belongs_to_a_claim_needs_one(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*files.words, *day(-1), "--out", str(files.folder / "none.json")]) == ExitCode.USAGE
    assert "belong to a --claim" in capsys.readouterr().err
