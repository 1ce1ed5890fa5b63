"""Runs: two phases, resuming, faults, and the same records from every executor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from canon.bench import trained
from canon.bench.cases import TWIN, Recovery, Training
from canon.bench.lab import Setup
from canon.bench.records import Record, Store
from canon.bench.run import RunOptions, Summary, run_suite
from canon.bench.suite import Suite, load_suite
from canon.cli.main import app, execute
from canon.errors import BenchError
from canon.zoo.training import train_options
from canon_benchmarks.cases import Clean

MODEL = "timm:test_resnet"
SUITE = """
title = "Small"
about = "A test."
[[cases]]
kind = "clean"
dataset = "digits"
model = "timm:test_resnet"
scheme = "ipr_gan"
[[cases]]
kind = "recovery"
dataset = "digits"
model = "timm:test_resnet"
scheme = "ipr_gan"
ratio = 0.2
attack = "nso_clique"
"""


class Watcher:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.parts: list[float] = []
        self.steps: list[tuple[str, str]] = []

    @contextmanager
    def progress(self, what: str) -> Iterator[Callable[[float], None]]:
        self.phases.append(what)
        yield self.parts.append

    def tell(self, place: str, record: Record) -> None:
        self.steps.append((place, record.case.name))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with a marked model and a stranger's, trained for an epoch: enough to be measured, not to be good."""
    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        options = train_options("digits", MODEL, "cpu")
        patch.setattr(trained, "train_options", lambda *_: replace(options, epochs=1, cooldown=1))
        suite = Suite("one", "", "", (Clean(dataset="digits", model=MODEL, scheme="ipr_gan"),))
        run_suite(suite, RunOptions(out=folder / "out", setup=Setup(folder)))
        stranger = Training(dataset="digits", model=MODEL, scheme=TWIN, seed=1)
        run_suite(Suite("two", "", "", (stranger,)), RunOptions(out=folder / "out", setup=Setup(folder)))
    return folder


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    (tmp_path / "small.toml").write_text(SUITE, encoding="utf-8")
    return load_suite(str(tmp_path / "small.toml"))


@pytest.fixture
def run(tmp_path: Path, cache: Path, suite: Suite) -> Callable[..., Summary]:
    def go(out: str = "records", watcher: Any = None, **options: Any) -> Summary:
        chosen = RunOptions(out=tmp_path / out, setup=Setup(cache), **options)
        heard = watcher or Watcher()
        return run_suite(suite, chosen, heard.progress, heard.tell)

    return go


def metrics(folder: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    records = Store.open(folder, "small").records
    return {name: (record.outcome, dict(record.metrics)) for name, record in records.items()}


def test_records_are_made_skipped_and_made_again(run: Callable[..., Summary], tmp_path: Path) -> None:
    watcher = Watcher()
    first = run(watcher=watcher)
    assert [record.outcome for record in first.records] == ["done"] * 2
    assert watcher.phases == ["small: 2 to do"], "nothing was trained"
    assert [place for place, _ in watcher.steps] == ["1/2", "2/2"]
    assert watcher.parts == [0.5, 1.0]
    before = metrics(tmp_path / "records")
    clean, recovered = first.records[0].metrics, first.records[1].metrics
    assert clean["parameter_false_positives"] == 0
    assert clean["untouched"] is True
    assert recovered["tier1_passed"] is True
    assert recovered["aligned_similarity"] == recovered["clean_similarity"]
    assert recovered["recovered_delta_accuracy"] == 0
    assert recovered["wrong_owner_verdict"] == "refuted"
    assert {"trace", "attack", "recover", "align", "certify", "extract", "cpu"} <= set(first.records[1].seconds)

    gone = tmp_path / "records" / "small" / f"{first.records[1].case.name}.json"
    gone.unlink()
    again = Watcher()
    run(watcher=again)
    assert again.steps == [("1/1", first.records[1].case.name)], "what had a record was measured again"
    assert metrics(tmp_path / "records") == before


def test_every_executor_gives_the_same_records(run: Callable[..., Summary], tmp_path: Path) -> None:
    run("here")
    run("processes", executor="processes", jobs=2)
    assert metrics(tmp_path / "here") == metrics(tmp_path / "processes")
    assert len(metrics(tmp_path / "here")) == 2


KILLED = """
import os, signal, sys
from canon.bench.records import Store

add = Store.add


def killed(self, record):
    add(self, record)
    os.kill(os.getpid(), signal.SIGKILL)


Store.add = killed
from canon.cli.main import app, execute

execute(app, ["bench", "run", *sys.argv[1:]])
"""


def test_a_killed_run_goes_on(cache: Path, suite: Suite, tmp_path: Path) -> None:
    out = tmp_path / "records"
    words = [str(tmp_path / "small.toml"), "--out", str(out), "--cache", str(cache)]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *words],
        capture_output=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    kept = {path: path.stat().st_mtime_ns for path in out.glob("small/*.json")}
    assert len(kept) == 1
    watcher = Watcher()
    summary = run_suite(suite, RunOptions(out=out, setup=Setup(cache)), watcher.progress, watcher.tell)
    assert summary.left == 0
    assert len(watcher.steps) == 1
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in kept.items())


def test_faults_do_not_stop_a_run(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = Clean(dataset="digits", model=MODEL, scheme="ipr_gan")
    refused = Recovery(dataset="digits", model=MODEL, scheme="ipr_gan", attack="nso_zero", ratio=1.5)
    untrained = Clean(dataset="digits", model=MODEL, scheme="greedy")

    def cannot(*_: Any) -> None:
        raise ValueError("no such luck")

    monkeypatch.setattr(trained, "_train", cannot)
    options = RunOptions(out=tmp_path, setup=Setup(cache))
    summary = run_suite(Suite("mixed", "", "", (untrained, refused, good)), options)
    assert [record.outcome for record in summary.records] == ["failed", "refused", "done"]
    assert "no such luck" in str(summary.records[0].error)
    assert "ratio must be in" in str(summary.records[1].error)
    assert summary.status == 1
    again = Watcher()
    run_suite(Suite("mixed", "", "", (untrained,)), options, again.progress, again.tell)
    assert not again.steps, "what failed is repeated only if that is asked for"
    run_suite(Suite("mixed", "", "", (untrained,)), replace(options, retry=True), again.progress, again.tell)
    assert again.phases == ["training: 1 to do"]


def test_a_damaged_model_is_named(tmp_path: Path, cache: Path) -> None:
    broken = tmp_path / "digits-timm_test_resnet-ipr_gan-0"
    broken.mkdir()
    (broken / "model.safetensors").write_bytes(b"nothing")
    suite = Suite("one", "", "", (Clean(dataset="digits", model=MODEL, scheme="ipr_gan"),))
    summary = run_suite(suite, RunOptions(out=tmp_path / "out", setup=Setup(tmp_path)))
    assert summary.records[0].outcome == "failed"
    assert "Delete the folder" in str(summary.records[0].error)


def test_nothing_begins_when_time_is_up(run: Callable[..., Summary]) -> None:
    summary = run(minutes=0)
    assert (len(summary.records), summary.left, summary.status) == (0, 2, 3)


def test_a_training_case_reads_the_cache(cache: Path, tmp_path: Path) -> None:
    case = Training(dataset="digits", model=MODEL, scheme=TWIN, seed=1)
    record = run_suite(Suite("t", "", "", (case,)), RunOptions(out=tmp_path, setup=Setup(cache))).records[0]
    figures = json.loads((cache / "digits-timm_test_resnet-twin-1" / "training.json").read_text())
    assert record.metrics["accuracy"] == figures["accuracy"]
    assert record.metrics["model"] == figures["model"][:16]


def test_the_command_tells_how_far_it_is(
    cache: Path, suite: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--out", str(tmp_path / "records"), "--cache", str(cache)]
    assert execute(app, ["bench", "run", str(tmp_path / "small.toml"), *where, "--only", "clean"]) == 0
    told = capsys.readouterr()
    assert "1/1  clean-digits-timm_test_resnet-ipr_gan-0-exact: done" in told.err
    assert "1 cases: 1 done; 0 not as they should be" in told.out


def test_a_full_disk_while_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trained, "_train", full)
    with pytest.raises(BenchError, match=r"No space left.*--cache"):
        trained.ModelCache(tmp_path).make(Training(dataset="digits", model=MODEL, scheme=TWIN), None)  # type: ignore[arg-type]
