"""`canon verify` on files whose norms were folded away: no option is needed, and the terminal says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import canon
from canon.api import read_evidence
from canon.attacks import attack
from canon.cli.exit_codes import ExitCode
from canon.cli.main import app, execute
from canon.rewrite import fold_norms
from tests.verify.small import example, tiny

ARCH = "tests.verify.small:tiny"


def run(verb: str, *arguments: object) -> int:
    return execute(app, [verb, *map(str, arguments), "--arch", ARCH, "--size", "3x8x8"])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folded")
    owner = tiny(1)
    canon.save(owner, folder / "owner.safetensors")
    hidden = attack(owner, example(), ["nso_zero", "nso_split"], ratio=0.3).model
    canon.save(fold_norms(hidden, example()).model, folder / "hidden.safetensors")
    canon.save(fold_norms(tiny(2), example()).model, folder / "other.safetensors")
    torch.save(fold_norms(owner, example(), layers={"conv2"}).model.state_dict(), folder / "partly.pt")
    assert run("register", folder / "owner.safetensors", "--out", folder / "layout.key") == ExitCode.OK
    return folder


@pytest.mark.parametrize("anchor", [("--reference", "owner.safetensors"), ("--layout-key", "layout.key")])
@pytest.mark.parametrize(
    ("suspect", "expected", "norms"),
    [("hidden.safetensors", ExitCode.OK, 3), ("other.safetensors", ExitCode.REFUTED, 3), ("partly.pt", ExitCode.OK, 1)],
)
def test_folded_files_get_their_verdicts(
    anchor: tuple[str, str],
    suspect: str,
    expected: ExitCode,
    norms: int,
    files: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "evidence.json"
    assert run("verify", files / suspect, anchor[0], files / anchor[1], "--out", out) == expected
    assert f"norms: {norms} were folded away in the suspect" in capsys.readouterr().out
    form = read_evidence(out.read_text(encoding="utf-8"))["form"]
    assert form["kind"] == "folded"
    assert len(form["restored"]) == norms


def test_the_json_output_names_the_norms(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--layout-key", files / "layout.key", "--out", tmp_path / "evidence.json", "--json")
    assert run("verify", files / "partly.pt", *given) == ExitCode.OK
    form = json.loads(capsys.readouterr().out)["form"]
    assert form["restored"] == [{"norm": "norm2", "layer": "conv2"}]
