"""`canon bench` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from canon.bench.records import Record, Store
from canon.bench.suite import load_suite
from canon.cli.main import app, execute
from tests.bench.samples import ENVIRONMENT, records


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(app, ["bench", "list", "--json"]) == 0
    found = {row["suite"]: row["cases"] for row in json.loads(capsys.readouterr().out)}
    assert found["paper"] == 360


def test_a_finished_suite_is_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store.open(tmp_path, "tolerance")
    for case in load_suite("tolerance").cases:
        store.records[case.name] = Record(case, "done", {"good": True}, environment=ENVIRONMENT)
    store.pack()
    where = ["--out", str(tmp_path), "--cache", str(tmp_path / "models")]
    assert execute(app, ["bench", "run", "tolerance", *where]) == 0
    assert "45 cases: 45 done; 0 not as they should be" in capsys.readouterr().out
    bad = load_suite("tolerance").cases[3]
    store.add(Record(bad, "failed", error="ValueError: no", environment=ENVIRONMENT))
    assert execute(app, ["bench", "run", "tolerance", *where, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["bad"] == [bad.name]


def test_nothing_is_trained_when_time_is_up(tmp_path: Path) -> None:
    where = ["--out", str(tmp_path), "--cache", str(tmp_path / "models")]
    assert execute(app, ["bench", "run", "quick", "--minutes", "0", "--only", "clean", *where]) == 3
    assert not (tmp_path / "models").exists()


def test_pack_export_and_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store.open(tmp_path / "records", "paper")
    for record in records():
        store.add(record)
    folder = ["--records", str(tmp_path / "records")]
    assert execute(app, ["bench", "pack", *folder]) == 0
    assert "5 records" in capsys.readouterr().out
    assert execute(app, ["bench", "export", str(tmp_path / "t.csv"), "paper", *folder]) == 0
    assert "5 rows" in capsys.readouterr().out
    assert execute(app, ["bench", "report", *folder, "--out", str(tmp_path / "pages")]) == 0
    assert {"README.md", "paper.md", "results.html"} <= {path.name for path in (tmp_path / "pages").iterdir()}
    assert (tmp_path / "pages" / "figures" / "paper-similarity.svg").exists()


MINE = """
title = "My own suite"
about = "A test."
[[cases]]
kind = "recovery"
dataset = "mnist"
model = "resnet18"
scheme = "uchida17"
ratio = 0.2
attack = ["nso_zero", "nso_clique", "nso_split", "mix-opseq", "mix-opseq-per-merge-group"]
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A suite of a user's own, with records of some of its cases."""
    store = Store.open(tmp_path / "records", "mine")
    for record in records()[:4]:
        store.add(record)
    path = tmp_path / "mine.toml"
    path.write_text(MINE, encoding="utf-8")
    return path


def test_a_report_of_ones_own_suite(mine: Path, tmp_path: Path) -> None:
    where = ["--records", str(tmp_path / "records"), "--out", str(tmp_path / "pages")]
    assert execute(app, ["bench", "report", str(mine), *where]) == 0
    page = (tmp_path / "pages" / "mine.md").read_text(encoding="utf-8")
    assert page.startswith("# My own suite\n")
    assert "4 of 5 cases have a record" in page
    first = (tmp_path / "pages" / "README.md").read_text(encoding="utf-8")
    assert "[My own suite](mine.md)" in first
    assert "recovery_grid" not in first, "only pages that are there are named"
    assert "paper.md" not in first
    assert execute(app, ["bench", "report", *where]) == 0
    told = (tmp_path / "pages" / "mine.md").read_text(encoding="utf-8")
    assert "of which there are records only" in told, "without its file it is told from its records"
    assert "4 of 4 cases" in told


def test_a_report_of_some_suites_leaves_what_speaks_of_all(mine: Path, tmp_path: Path) -> None:
    where = ["--records", str(tmp_path / "records"), "--out", str(tmp_path / "pages")]
    store = Store.open(tmp_path / "records", "paper")
    for record in records():
        store.add(record)
    assert execute(app, ["bench", "report", *where]) == 0
    of_all = {name: (tmp_path / "pages" / name).read_bytes() for name in ("README.md", "results.html", "paper.md")}
    assert execute(app, ["bench", "report", str(mine), *where]) == 0
    assert (tmp_path / "pages" / "mine.md").read_text(encoding="utf-8").startswith("# My own suite\n")
    assert {name: (tmp_path / "pages" / name).read_bytes() for name in of_all} == of_all


def test_a_report_finds_what_a_run_wrote(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mine.parent)
    (mine.parent / "runs" / "bench").mkdir(parents=True)
    (mine.parent / "records").rename("runs/bench/records")
    (mine.parent / "docs" / "results" / "records").mkdir(parents=True)  # as in Canon's repository
    assert execute(app, ["bench", "report", mine.name]) == 0
    assert (mine.parent / "runs" / "bench" / "mine.md").is_file()


def test_a_report_of_nothing_fails(mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(message: str, *arguments: str) -> None:
        assert execute(app, ["bench", "report", *arguments, "--out", str(tmp_path / "pages")]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
        assert not (tmp_path / "pages").exists()

    folder = str(tmp_path / "records")
    (tmp_path / "empty").mkdir()
    fails("no such folder of records", "--records", str(tmp_path / "nowhere"))
    fails("there are no records", "--records", str(tmp_path / "empty"))
    fails("the suite 'paper' has no records", "paper", "--records", folder)
    fails("Did you mean 'paper'", "papr", "--records", folder)
    mine.write_text(MINE.replace("0.2", "0.4"), encoding="utf-8")
    fails("none of the 4 records of 'mine' is about one of its cases", str(mine), "--records", folder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "papr"], "Did you mean 'paper'"),
        (["run", "quick", "--only", "nothing"], "matches 'nothing'"),
        (["run", "quick", "--executor", "slurm"], "no executor is called 'slurm'"),
        (["pack", "--records", "nowhere"], "no such folder of records"),
        (["pack", "quick", "--records", "."], "the suite 'quick' has no records"),
    ],
)
def test_wrong_usage(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert execute(app, ["bench", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
