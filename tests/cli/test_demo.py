"""The demo tells the whole story, and its figures are the ones it measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from canon._files import OutputError
from canon.cli.main import app
from canon.zoo.text import library_texts


@pytest.mark.slow
def test_the_watermark_comes_back(tmp_path: Path) -> None:
    """Even after one epoch: what the key reads before the attack it reads after recovery."""
    page = tmp_path / "demo.html"
    result = CliRunner().invoke(app, ["demo", "--epochs", "1", "--json", "--report", str(page)])
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    clean, attacked, recovered = record["parameters"]
    assert attacked > clean == recovered
    assert record["verdicts"] == ["matches", "matches"]
    assert record["report"] == str(page)
    assert "The suspect holds the owner&#39;s network" in page.read_text(encoding="utf-8")
    assert record["match_frac"] == 1.0
    assert record["recovered_similarity"] == record["key_similarity"] == record["clean_similarity"]
    assert record["attacked_similarity"] < record["clean_similarity"]


def test_a_language_model_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same story of text: fewer texts than the demo takes, and all its steps."""
    monkeypatch.setattr("canon.zoo.datasets.library_texts", lambda: library_texts(768))
    page = tmp_path / "demo.html"
    result = CliRunner().invoke(app, ["demo", "--model", "text", "--epochs", "2", "--json", "--report", str(page)])
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    clean, attacked, recovered = record["parameters"]
    assert attacked > clean == recovered
    assert set(record["verdicts"]) <= {"proved", "matches"}
    assert record["clean_similarity"] == record["recovered_similarity"] == record["key_similarity"] > 0.95
    assert record["attacked_similarity"] < 0.7
    assert record["accuracy"] > 0.25, "a model that says spaces alone has less"
    assert record["attacked_difference"] < 1e-4
    assert "The suspect holds the owner&#39;s network" in page.read_text(encoding="utf-8")


def test_an_existing_report_is_kept(tmp_path: Path) -> None:
    """And the user hears of it before the training, not after."""
    page = tmp_path / "demo.html"
    page.write_text("mine")
    result = CliRunner().invoke(app, ["demo", "--report", str(page)])
    assert isinstance(result.exception, OutputError)
    assert page.read_text() == "mine"
