"""`canon bench` on the command line."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from canon.bench.records import Record, Store
from canon.bench.suite import load_suite
from canon.cli.bench import Live
from canon.cli.console import Talker
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "papr"], "Did you mean 'paper'"),
        (["run", "quick", "--only", "nothing"], "matches 'nothing'"),
        (["run", "quick", "--executor", "slurm"], "no executor is called 'slurm'"),
        (["pack", "--records", "nowhere"], "no such folder of records"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(app, ["bench", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_terminal_gets_a_bar_with_the_time_left() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=160)
    bad = records()[3]
    with Live(Talker(err=console)) as live:
        live.phase("training", 1)
        live.step(records()[0], 0, 0)
        live.phase("paper", 2)
        live.step(bad, 1, 600)
        live._bar.refresh()
    shown = screen.getvalue()
    assert "paper" in shown
    assert "1/2" in shown
    assert "10 min left" in shown
    assert "failed (ValueError: <oh>)" in shown, "what goes wrong is said at once"
