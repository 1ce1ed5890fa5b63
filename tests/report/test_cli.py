"""`--report` of the verbs that find something."""

from __future__ import annotations

from pathlib import Path

import pytest

import canon
from canon.cli.exit_codes import ExitCode
from canon.cli.main import app, execute
from tests.report.documents import hidden
from tests.verify.small import tiny

ARCH = ("--arch", "tests.verify.small:tiny")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("files")
    canon.save(tiny(), found / "owner.safetensors")
    canon.save(hidden(tiny()), found / "suspect.safetensors")
    return found


def run(*arguments: object) -> int:
    return execute(app, [*map(str, arguments), *ARCH])


def test_verify_writes_a_page(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, suspect = tmp_path / "found.html", folder / "suspect.safetensors"
    options = ("--reference", folder / "owner.safetensors", "--out", tmp_path / "evidence.json", "--report", page)
    assert run("verify", suspect, *options) == ExitCode.OK
    assert f"report: {page}" in capsys.readouterr().out.replace("\n", "")
    text = page.read_text(encoding="utf-8")
    assert "The suspect holds the owner&#39;s network" in text
    assert "suspect.safetensors" in text


def test_recover_writes_a_page(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "found.html"
    out = ("--out", tmp_path / "recovered.safetensors", "--report", page)
    assert run("recover", folder / "suspect.safetensors", *out) == ExitCode.OK
    assert "Structural obfuscation was found and removed" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("verb", ["verify", "recover"])
def test_an_existing_page_is_kept_and_nothing_else_written(verb: str, folder: Path, tmp_path: Path) -> None:
    page, out = tmp_path / "found.html", tmp_path / "result.safetensors"
    page.write_text("mine")
    reference = ("--reference", folder / "owner.safetensors") if verb == "verify" else ()
    assert run(verb, folder / "suspect.safetensors", *reference, "--out", out, "--report", page) == ExitCode.USAGE
    assert page.read_text() == "mine"
    assert not out.exists()
