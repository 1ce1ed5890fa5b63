"""The demo tells the whole story, and its figures are the ones it measured."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from canon.cli.main import app


def test_help_says_what_happens() -> None:
    """The help names the steps and gives examples."""
    result = CliRunner().invoke(app, ["demo", "--help"])
    assert result.exit_code == 0
    assert "canon demo --ratio 0.5" in result.output


@pytest.mark.slow
def test_the_watermark_comes_back() -> None:
    """Even after one epoch: what the key reads before the attack it reads after recovery."""
    result = CliRunner().invoke(app, ["demo", "--epochs", "1", "--json"])
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    clean, attacked, recovered = record["parameters"]
    assert attacked > clean == recovered
    assert record["passed"]
    assert record["match_frac"] == 1.0
    assert record["recovered_similarity"] == record["key_similarity"] == record["clean_similarity"]
    assert record["attacked_similarity"] < record["clean_similarity"]
