"""`canon locate`: files in, the owner's network out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch

import canon
from canon import zoo
from canon.attacks import attack
from canon.cli.exit_codes import ExitCode
from canon.cli.main import app, execute
from canon.io import save
from canon_benchmarks.subjects import subject

NAME = "squeezenet1_1"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    model, example = subject(NAME), zoo.example_input(NAME)
    save(model, folder / "owner.safetensors")
    save(attack(model, example, ["nso_zero", "nso_clique"], ratio=0.2).model, folder / "hidden.safetensors")
    save(subject(NAME, seed=3), folder / "other.safetensors")
    canon.register(model, example).save(folder / "layout.key")
    return folder


def run(*arguments: object) -> int:
    return execute(app, ["locate", *map(str, arguments), "--arch", NAME])


@pytest.mark.parametrize("anchor", [("--reference", "owner.safetensors"), ("--layout-key", "layout.key")])
def test_the_network_is_found_and_written(
    anchor: tuple[str, str], files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "extracted.safetensors"
    given = (files / "hidden.safetensors", anchor[0], files / anchor[1], "--out", out, "--json")
    assert run(*given) == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert document["answer"] == "contained"
    assert document["coverage"] == 1.0
    assert document["inputs"]["suspect"]["file"] == "hidden.safetensors"
    ours, theirs = (safetensors.torch.load_file(path) for path in (out, files / "owner.safetensors"))
    assert {name: tensor.shape for name, tensor in ours.items()} == {name: t.shape for name, t in theirs.items()}


def test_a_stranger_is_no_success(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = (files / "other.safetensors", "--reference", files / "owner.safetensors")
    assert run(*given) == ExitCode.INCONCLUSIVE
    assert "unrelated" in capsys.readouterr().out


def test_an_ancestor_is_heard(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    public = files / "other.safetensors"
    given = (files / "hidden.safetensors", "--reference", files / "owner.safetensors", "--ancestor", public, "--json")
    assert run(*given) == ExitCode.OK
    assert len(json.loads(capsys.readouterr().out)["ancestors"]) == 1


def test_either_reference_or_key(files: Path) -> None:
    assert run(files / "hidden.safetensors") == ExitCode.USAGE


def test_no_output_is_an_input(files: Path) -> None:
    given = (files / "hidden.safetensors", "--reference", files / "owner.safetensors")
    before = (files / "hidden.safetensors").read_bytes()
    assert run(*given, "--out", files / "hidden.safetensors", "--force") == ExitCode.USAGE
    assert (files / "hidden.safetensors").read_bytes() == before
