"""Damaged files are refused in words: nothing else happens. And the watch would see it if it did."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from canon.errors import FileFormatError
from tests.io.corpus import KINDS, make_corpus
from tests.io.fuzz import MEMORY, SECONDS, Outcome, Reader, Watch, fuzz, observe, table

DOCS = Path(__file__).parents[2] / "docs"
COUNT = 200
"""Files of every kind. `make fuzz` reads many more."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz") / "corpus"
    folder.mkdir()
    make_corpus(folder)
    return folder


def test_damaged_files_do_no_harm(corpus: Path) -> None:
    found = fuzz(corpus, [(kind, index) for kind in KINDS for index in range(COUNT)])
    assert [fault for summary in found.values() for fault in summary.faults] == []
    for kind in KINDS:
        assert found[kind].files == COUNT
        assert 0.3 * COUNT < found[kind].refused < COUNT, "some damage must matter and some must not"


def test_published_results_are_good_and_shown() -> None:
    document = json.loads((DOCS / "results" / "fuzz.json").read_text(encoding="utf-8"))
    assert list(document["kinds"]) == list(KINDS)
    for row in document["kinds"].values():
        assert row["files"] >= 10_000
        assert row["faults"] == 0
        assert row["longest_seconds"] < document["limits"]["seconds"] == SECONDS
        assert row["most_memory_mib"] < document["limits"]["memory_mib"] == MEMORY >> 20
    assert table(document) in (DOCS / "files.md").read_text(encoding="utf-8")


def refuse(kind: str, path: Path) -> None:
    raise FileFormatError("no")


def fail(kind: str, path: Path) -> None:
    raise ZeroDivisionError


def dawdle(kind: str, path: Path) -> None:
    time.sleep(60)


def hoard(kind: str, path: Path) -> None:
    pages = mmap.mmap(-1, 40 << 20)  # and not from memory that an earlier test has given back
    pages[:: mmap.PAGESIZE] = b"1" * (len(pages) // mmap.PAGESIZE)


def write(kind: str, path: Path) -> None:
    (path.parent / "evil").write_text("evil")


def write_elsewhere(kind: str, path: Path) -> None:
    with open(os.devnull, "w") as file:
        file.write("evil")


def run_something(kind: str, path: Path) -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


watch = Watch()


def outcome_of(reader: Reader, folder: Path) -> Outcome:
    path = folder / "given"
    path.write_bytes(b"")
    seconds = 0.2 if reader is dawdle else SECONDS
    return observe("safetensors", path, 0, watch, reader, seconds=seconds, most=32 << 20)


@pytest.fixture
def alarm() -> Iterator[None]:
    """The watch takes the alarm signal for itself."""
    import signal

    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize(
    ("reader", "words"),
    [
        (fail, "ZeroDivisionError"),
        (dawdle, "took longer"),
        (hoard, "MiB"),
        (write, "did more than reading"),
        (write_elsewhere, "for writing"),
        (run_something, "did more than reading"),
    ],
)
def test_the_watch_sees_harm(reader: Reader, words: str, tmp_path: Path) -> None:
    fault = outcome_of(reader, tmp_path).fault
    assert fault is not None
    assert words in fault


@pytest.mark.usefixtures("alarm")
def test_a_refusal_is_no_harm(tmp_path: Path) -> None:
    outcome = outcome_of(refuse, tmp_path)
    assert outcome.refused
    assert outcome.fault is None
