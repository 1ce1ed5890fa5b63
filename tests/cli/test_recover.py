"""`canon recover`: weights and a report for the user, one document for a program, errors before any work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from canon import attack, zoo
from canon.cli.exit_codes import ExitCode
from canon.cli.main import app, execute
from canon_benchmarks.subjects import shapes, subject

NAME = "squeezenet1_1"


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An attacked model in a file."""
    path = tmp_path_factory.mktemp("suspect") / "hidden.safetensors"
    result = attack(subject(NAME), zoo.example_input(NAME), ["nso_clique", "nso_split"], ratio=0.2, expand_kernels=True)
    save_file(result.model.state_dict(), path)
    return path


def test_a_person_sees_what_was_found(
    hidden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    out, report = tmp_path / "clean.safetensors", tmp_path / "found.json"
    before = hidden.read_bytes()
    arguments = ["recover", str(hidden), "--arch", NAME, "-o", str(out), "--report", str(report)]
    assert execute(app, arguments) == ExitCode.OK
    text = capsys.readouterr().out
    assert text.split("\n")[0].split() == [
        "space", "before", "after", "zero-in", "zero-out", "clique", "duplicate", "constant",
    ]  # fmt: skip
    assert "kernels cropped back in" in text
    assert "largest difference of outputs" in text
    clean = subject(NAME)
    found = load_file(out)
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == shapes(clean)
    document = json.loads(report.read_text())
    decisions = [d for space in document["spaces"] for d in space["decisions"]]
    assert {d["kind"] for d in decisions} == {"clique", "duplicate"}
    assert hidden.read_bytes() == before


def test_a_program_reads_one_document(hidden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "clean.safetensors"
    arguments = ["recover", str(hidden), "--arch", NAME, "-o", str(out), "--widths", NAME, "--no-check", "--json"]
    assert execute(app, arguments) == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert document["changed"] is True
    assert document["agreement"] is None
    assert document["parameters"][1] == 727626
    assert Path(document["weights"]) == out


def test_a_clean_model_comes_back_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, out = tmp_path / "given.safetensors", tmp_path / "clean.safetensors"
    state = subject(NAME).half().state_dict()
    save_file(state, given)
    arguments = ["recover", str(given), "--arch", NAME, "-o", str(out), "--widths", str(given)]
    assert execute(app, arguments) == ExitCode.OK
    assert "nothing found, nothing changed" in capsys.readouterr().out
    assert all(torch.equal(tensor, state[name]) for name, tensor in load_file(out).items())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--method", "magic"], "unknown recovery method 'magic'"),
        (["--widths", "resnet1"], "neither torchvision nor timm has a model 'resnet1'"),
        (["--device", "abacus"], "the device 'abacus' cannot be used here"),
    ],
)
def test_errors(hidden: Path, tmp_path: Path, more: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "clean.safetensors"
    arguments = ["recover", str(hidden), "--arch", NAME, "-o", str(out), *more]
    assert execute(app, arguments) == ExitCode.USAGE
    assert words in " ".join(capsys.readouterr().err.split())
    assert not out.exists()


def test_an_existing_file_is_kept(hidden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "clean.safetensors"
    out.write_text("precious")
    assert execute(app, ["recover", str(hidden), "--arch", NAME, "-o", str(out)]) == ExitCode.USAGE
    assert out.read_text() == "precious"
    assert "exists already" in capsys.readouterr().err
