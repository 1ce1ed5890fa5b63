"""The whole way over files: owner's safetensors, a thief's exported program, recovery, verdict."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import canon
from canon import zoo
from canon.cli.exit_codes import ExitCode
from canon.cli.main import app, execute
from canon_benchmarks.subjects import subject
from tests.io.small import attacked, example, small

ARCH = "tests.io.small:SmallNet"


def run(*arguments: object) -> int:
    return execute(app, [*map(str, arguments)])


def test_from_safetensors_through_a_program_to_a_match(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """resnet18: the suspect is a program, the reference is weights, and nothing but files connects them."""
    owner, hidden, clean = tmp_path / "owner.safetensors", tmp_path / "hidden.pt2", tmp_path / "clean.pt2"
    canon.save(subject("resnet18"), owner, architecture="resnet18")
    assert run("attack", owner, "-o", hidden, "--op", "nso_clique", "--op", "nso_zero", "--seed", 5) == ExitCode.OK
    assert run("recover", hidden, "-o", clean) == ExitCode.OK
    capsys.readouterr()
    out = tmp_path / "evidence.json"
    assert run("verify", hidden, "-r", owner, "--arch", "resnet18", "-o", out, "--json") == ExitCode.OK
    evidence = json.loads(capsys.readouterr().out)
    assert evidence["verdict"]["kind"] == "matches"
    assert evidence["inputs"]["suspect"]["file"] == "hidden.pt2"
    with torch.no_grad():
        x = zoo.example_input("resnet18", batch=3, seed=9)
        assert torch.allclose(canon.load(clean)(x), canon.load(owner)(x), atol=1e-4)
    widths = {n: t.shape for n, t in canon.load(owner).state_dict().items()}
    assert {n: t.shape for n, t in canon.load(clean).state_dict().items()} == widths


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for suffix in (".safetensors", ".pt", ".pt2", ".onnx"):
        canon.save(attacked(), folder / f"hidden{suffix}", example=example())
    canon.save(small(), folder / "owner.safetensors")
    canon.register(small(), example()).save(folder / "layout.key")
    return folder


@pytest.mark.parametrize(
    ("suffix", "format"),
    [
        (".safetensors", "safetensors"),
        (".pt", "state dict of torch"),
        (".pt2", "torch.export program"),
        (".onnx", "ONNX"),
    ],
)
def test_inspect_says_what_a_file_is(suffix: str, format: str, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", files / f"hidden{suffix}", "--arch", ARCH, "--size", 16, "--json") == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == format
    assert document["file"] == f"hidden{suffix}"
    assert len(document["sha256"]) == 64
    assert document["parameters"] == sum(p.numel() for p in attacked().parameters())
    widths = {space["name"]: space["width"] for space in document["spaces"]}
    assert max(widths.values()) > 8
    assert any(pin["reason"] == "model output" for space in document["spaces"] for pin in space["pins"])


def test_inspect_of_what_is_no_model(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", files / "layout.key") == ExitCode.OK
    assert "layout.key: layout key;" in capsys.readouterr().out
    assert run("inspect", files / "hidden.safetensors") == ExitCode.OK
    text = capsys.readouterr().out
    assert "stem.weight" in text
    assert "Name the architecture with --arch" in text


def test_sizes_and_limits(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suspect = files / "hidden.safetensors"
    assert run("inspect", suspect, "--arch", ARCH, "--size", "3x20x20", "--json") == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["inputs"] == [[2, 3, 20, 20]]
    for arguments, words in (
        (["--size", "big"], "no size"),
        (["--limit", "tensors"], "no limit"),
        (["--limit", "nothing=3"], "no limit"),
        (["--limit", "tensors=3"], "and at most 3 are allowed"),
    ):
        assert run("inspect", suspect, "--arch", ARCH, *arguments) == ExitCode.USAGE
        assert words in " ".join(capsys.readouterr().err.split())


def test_pickles_are_refused_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "whole.pt"
    torch.save(small(), path)
    assert run("recover", path, "--out", tmp_path / "out.safetensors") == ExitCode.USAGE
    text = capsys.readouterr().err
    assert "a pickle of a 'tests.io.small.SmallNet': its code is not run" in text
    assert "--arch" in text
    assert run("inspect", path, "--arch", ARCH, "--size", 16) == ExitCode.OK
    assert "no code of it was run" in capsys.readouterr().err
    torch.save([1, 2], path)
    assert run("inspect", path, "--arch", ARCH) == ExitCode.USAGE
    text = capsys.readouterr().err
    assert "a pickle of a list, not a state dict" in text
    assert "--trust-pickle" in text
    torch.save(small(), path)
    assert run("inspect", path, "--size", 16, "--trust-pickle") == ExitCode.OK
    captured = capsys.readouterr()
    assert "code in it may have run" in captured.err
    assert "pickled module" in captured.out


def test_the_ending_of_an_output_is_checked_first(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "clean.h5"
    assert run("recover", files / "hidden.pt2", "-o", out) == ExitCode.USAGE
    assert list(tmp_path.iterdir()) == []


FACTORY = """
from torch import nn

def make() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
"""


def test_a_factory_in_the_present_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [path for path in sys.path if path])
    (tmp_path / "factories_of_this_test.py").write_text(FACTORY)
    assert run("inspect", "factories_of_this_test:make", "--json") == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["parameters"] == 8 * 27 + 8 + 4 * 72 + 4
    assert run("inspect", "factories_of_this_test:nothing") == ExitCode.USAGE
    assert "the factory failed" in capsys.readouterr().err
