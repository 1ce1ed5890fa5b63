"""What the shell offers after Tab, and what an interrupted command says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from canon._files import write_text
from canon.cli import completion
from canon.cli.exit_codes import ExitCode
from canon.cli.main import execute


def test_names_are_offered_by_their_beginning() -> None:
    assert completion.schemes("uch") == ["uchida17"]
    assert completion.operations("mix") == ["mix-opseq", "mix-opseq-per-merge-group"]
    assert completion.methods("") == ["exact", "probe"]
    assert "quick" in completion.suites("q")
    assert "resnet18" in completion.architectures("resnet1")


def test_files_and_folders_are_offered_before_architectures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "resnet.onnx").touch()
    (tmp_path / "resources").mkdir()
    assert completion.models("res")[:2] == ["resnet.onnx", "resources/"]
    assert completion.files("[") == []


def test_the_shell_is_answered() -> None:
    asked = {
        **os.environ,
        "_CANON_COMPLETE": "complete_bash",
        "COMP_WORDS": "canon attack x --op od",
        "COMP_CWORD": "4",
    }
    program = [sys.executable, "-c", "from canon.cli import run; import sys; sys.argv = ['canon']; run()"]
    found = subprocess.run(program, env=asked, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["odd_group", "odd_replace"]


def _verb(written: list[Path]) -> typer.Typer:
    app = typer.Typer()

    @app.command()
    def verb() -> None:
        for path in written:
            write_text(path, "whole")
        raise KeyboardInterrupt

    return app


@pytest.mark.parametrize("files", [0, 1, 5])
def test_an_interrupted_command_says_what_was_kept(
    files: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = [tmp_path / f"{index}.txt" for index in range(files)]
    assert execute(_verb(written), []) == ExitCode.INTERRUPTED
    said = capsys.readouterr().err
    assert ("nothing was written" in said) == (files == 0)
    assert all(str(path) in said for path in written[:3])
    assert ("and 2 more" in said) == (files == 5)
