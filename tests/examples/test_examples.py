"""Every example runs from top to bottom; each ends with assertions of its own."""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path

import pytest
import torch

from canon.attacks.registry import PRIMITIVES
from canon.watermarks.registry import SCHEMES

FOLDER = Path(__file__).parents[2] / "examples"
STORIES = ("check_a_suspect", "test_my_scheme", "add_an_attack")


def test_there_is_one_for_every_story() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(STORIES)
    for name in STORIES:
        assert (FOLDER.parent / "docs" / f"{name}.md").exists()


@pytest.mark.parametrize("name", STORIES)
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in (PRIMITIVES, SCHEMES):
        monkeypatch.setattr(registry, "added", {})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng(devices=[]):
        values = runpy.run_path(str(FOLDER / f"{name}.py"))
    if name == "check_a_suspect":
        assert (values["folder"] / "report.html").stat().st_size > 20_000
