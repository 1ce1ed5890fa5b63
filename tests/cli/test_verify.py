"""`canon register` and `canon verify`: files in, verdict and evidence out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from canon import zoo
from canon.api import read_evidence
from canon.attacks import attack
from canon.cli.exit_codes import ExitCode
from canon.cli.main import app, execute
from canon.io import save
from canon_benchmarks.subjects import subject

NAME = "squeezenet1_1"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    model = subject(NAME)
    save(model, folder / "owner.safetensors")
    hidden = attack(model, zoo.example_input(NAME), ["nso_zero", "nso_clique"], ratio=0.2).model
    save(hidden, folder / "hidden.safetensors")
    save(subject(NAME, seed=3), folder / "other.safetensors")
    assert run("register", folder / "owner.safetensors", "--out", folder / "layout.safetensors") == ExitCode.OK
    return folder


def run(verb: str, *arguments: object) -> int:
    return execute(app, [verb, *map(str, arguments), "--arch", NAME])


@pytest.mark.parametrize(
    ("suspect", "anchor", "expected"),
    [
        ("hidden", ("--reference", "owner"), ExitCode.OK),
        ("hidden", ("--layout-key", "layout"), ExitCode.OK),
        ("other", ("--reference", "owner"), ExitCode.REFUTED),
        ("other", ("--layout-key", "layout"), ExitCode.INCONCLUSIVE),  # a small key tells too little
    ],
)
def test_verdicts_become_exit_codes_and_evidence(
    suspect: str, anchor: tuple[str, str], expected: ExitCode, files: Path, tmp_path: Path
) -> None:
    out = tmp_path / "evidence.json"
    against = files / f"{anchor[1]}.safetensors"
    assert run("verify", files / f"{suspect}.safetensors", anchor[0], against, "--out", out) == expected
    document = read_evidence(out.read_text(encoding="utf-8"))
    assert document["inputs"]["suspect"]["file"] == f"{suspect}.safetensors"
    assert len(document["inputs"]["suspect"]["sha256"]) == 64


def test_an_unrecovered_suspect_still_holds_the_network(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--reference", files / "owner.safetensors", "--recovered", "--json", "--out", tmp_path / "e.json")
    assert run("verify", files / "hidden.safetensors", *arguments) == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"]["kind"] == "matches"
    assert document["recovery"] is None


def test_an_anchor_is_needed(files: Path) -> None:
    assert run("verify", files / "hidden.safetensors") == ExitCode.USAGE


def test_files_that_are_not_models_are_wrong_usage(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes((files / "owner.safetensors").read_bytes()[:1000])
    key = files / "layout.safetensors"
    assert run("verify", broken, "--layout-key", key, "--out", tmp_path / "e.json") == ExitCode.USAGE
    assert "damaged" in capsys.readouterr().err
    assert run("verify", key, "--layout-key", key, "--out", tmp_path / "e.json") == ExitCode.USAGE
    assert "the file is a layout key, not a model" in capsys.readouterr().err
    model = files / "owner.safetensors"
    assert run("verify", model, "--layout-key", model, "--out", tmp_path / "e.json") == ExitCode.USAGE
    assert "not a layout key" in capsys.readouterr().err


def test_an_existing_output_is_kept(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "evidence.json"
    out.write_text("mine")
    arguments = ("--layout-key", files / "layout.safetensors", "--out", out)
    assert run("verify", files / "owner.safetensors", *arguments) == ExitCode.USAGE
    assert out.read_text() == "mine"
