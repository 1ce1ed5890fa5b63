"""Records: written whole, read back, packed, and refused when damaged."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from canon.bench import records as module
from canon.bench.records import Record, Store, suites_in
from canon.errors import BenchError
from canon_benchmarks.cases import Clean

HERE = {"canon": "1", "device": "cpu"}


def record(scheme: str, *, machine: str = "a") -> Record:
    case = Clean(dataset="digits", model="timm:test_resnet", scheme=scheme)
    return Record(case, "done", {"good": True, "shares": [1.0, 0.5], "gap": None}, {"cpu": 1.5}, {**HERE, "m": machine})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.open(tmp_path, "mine")
    for scheme, machine in (("greedy", "a"), ("riga21", "b"), ("lottery", "a")):
        store.add(record(scheme, machine=machine))
    return store


def test_single_and_packed_records_are_read_alike(store: Store) -> None:
    assert Store.open(store.folder, "mine").records == store.records
    assert len(list(store.loose.iterdir())) == 3
    path = store.pack()
    assert not store.loose.exists()
    assert Store.open(store.folder, "mine").records == store.records
    head = json.loads(path.read_text().splitlines()[0])
    assert len(head["environments"]) == 2, "every machine is written once"
    assert suites_in(store.folder) == ("mine",)


def test_a_single_record_replaces_a_packed_one(store: Store) -> None:
    store.pack()
    changed = Record(record("greedy").case, "failed", error="ValueError: no")
    store.add(changed)
    found = Store.open(store.folder, "mine")
    assert found.records[changed.case.name] == changed
    assert len(found.records) == 3
    found.pack()
    assert Store.open(store.folder, "mine").records == found.records


def test_packing_leaves_what_another_run_writes_meanwhile(store: Store) -> None:
    other = Store.open(store.folder, "mine")
    other.add(record("uchida17"))
    store.pack()
    assert [path.stem for path in store.loose.iterdir()] == [record("uchida17").case.name]
    assert len(Store.open(store.folder, "mine").records) == 4


@pytest.mark.parametrize("text", ["", "{", "[]", '{"outcome": "done"}', '{"case": {}, "outcome": "fine"}'])
def test_damaged_records_are_named(store: Store, text: str) -> None:
    path = store.loose / f"{record('greedy').case.name}.json"
    path.write_text(text)
    with pytest.raises(BenchError, match=r"cannot be read.*Delete it") as caught:
        Store.open(store.folder, "mine")
    assert str(path) in str(caught.value)


def test_a_record_in_the_wrong_file_is_refused(store: Store) -> None:
    (store.loose / f"{record('greedy').case.name}.json").rename(store.loose / "other.json")
    with pytest.raises(BenchError, match="it is about"):
        Store.open(store.folder, "mine")


@pytest.mark.parametrize(
    ("line", "text", "message"),
    [
        (0, "{}", "not a file of packed records"),
        (0, '{"format": "canon-bench-records", "version": 99, "environments": []}', "format version 99.*Upgrade"),
        (2, "{", "line 3"),
        (1, '{"environment": 9}', "line 2"),
    ],
)
def test_damaged_packs_are_named(store: Store, line: int, text: str, message: str) -> None:
    path = store.pack()
    lines = path.read_text().splitlines()
    lines[line] = text
    path.write_text("\n".join(lines))
    with pytest.raises(BenchError, match=message):
        Store.open(store.folder, "mine")


def test_a_full_disk_is_told_and_leaves_nothing_half_written(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(target: Path, text: str, *, force: bool) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "write_text", full)
    with pytest.raises(BenchError, match=r"the disk is full.*make room and run again"):
        store.add(record("uchida17"))
    with pytest.raises(BenchError, match="the disk is full"):
        store.pack()
    assert len(Store.open(store.folder, "mine").records) == 3


def test_no_folder() -> None:
    with pytest.raises(BenchError, match="no such folder"):
        suites_in(Path("nowhere"))
