"""Schemes and attacks on trial, and the packages that one begins with."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from canon import attacks
from canon.api.trials import conforms, disguise, survival
from canon.cli.exit_codes import ExitCode
from canon.cli.main import app, execute
from canon.watermarks.conformance import ConformanceError


def begun(kind: str, name: str, folder: Path) -> ModuleType:
    """A package as `canon new` writes it, imported."""
    assert execute(app, ["new", kind, name, "--in", str(folder)]) == ExitCode.OK
    spec = importlib.util.spec_from_file_location(name, folder / name / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_new_scheme_conforms_and_its_mark_comes_back(tmp_path: Path) -> None:
    scheme = begun("scheme", "new_marks", tmp_path).NewMarks()
    found = survival(scheme, conforms(scheme))
    assert found.clean == 1.0
    assert max(found.attacked.values()) < 0.9
    assert min(found.recovered.values()) == 1.0


def test_a_scheme_that_reads_anything_is_told_so(tmp_path: Path) -> None:
    scheme = begun("scheme", "says_yes", tmp_path).SaysYes()
    honest = type(scheme).read
    type(scheme).read = lambda self, reader, key: honest(self, reader, key).__class__(key.message.signs(), margin=1.0)
    with pytest.raises(ConformanceError):
        conforms(scheme)


def test_a_new_attack_keeps_the_function_and_is_undone(tmp_path: Path) -> None:
    attacks.add(begun("attack", "new_twins", tmp_path).NewTwins)
    found = disguise("new_twins", seeds=[0])
    assert found.drift < 1e-9
    assert found.growth > 1.2
    assert found.recovered
    assert found.coverage == 1.0


def test_the_table_of_an_attack(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(app, ["attack", "test", "nso_split", "--alone", "--json"]) == ExitCode.OK
    (row,) = json.loads(capsys.readouterr().out)["attacks"]
    assert (row["attack"], row["recovered"], row["answer"]) == ("nso_split", True, "contained")


def test_a_class_is_taken_from_the_folder_that_one_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(app, ["new", "attack", "here_twins", "--in", str(tmp_path)]) == ExitCode.OK
    monkeypatch.chdir(tmp_path / "here_twins")
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert execute(app, ["attack", "test", "here_twins:HereTwins", "--alone"]) == ExitCode.OK
    assert "here_twins" in capsys.readouterr().out
    assert execute(app, ["attack", "test", "here_twins:Nobody", "--alone"]) == ExitCode.USAGE


@pytest.mark.parametrize("name", ["two words", "Upper", "class", "../out", "naïve", "uchida17", "json"])
def test_names_that_no_package_can_have_are_refused(name: str, tmp_path: Path) -> None:
    assert execute(app, ["new", "scheme", name, "--in", str(tmp_path)]) == ExitCode.USAGE
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert execute(app, ["new", "attack", "mine", "--in", str(tmp_path)]) == ExitCode.USAGE
    assert not list((tmp_path / "mine").iterdir())


@pytest.mark.parametrize("kind", ["scheme", "attack"])
def test_what_is_no_scheme_or_attack_is_named(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(app, [kind, "test", "tests.verify.small:tiny", "--alone"]) == ExitCode.USAGE
    assert "does not name a subclass of canon." in capsys.readouterr().err
