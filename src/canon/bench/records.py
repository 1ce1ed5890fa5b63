"""Records: what came of each case, one JSON file each while a suite runs, one packed file when it is kept.

The records of a suite are the files `FOLDER/SUITE/CASE.json` and the lines of `FOLDER/SUITE.jsonl`; where a case has
both, its own file is the newer. Every file is written whole or not at all, by the one process that drives a run.
"""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from canon._files import write_text
from canon.bench.cases import read_case
from canon.errors import BenchError

FORMAT: Final = "canon-bench-records"
VERSION: Final = 1

Outcome = Literal["done", "refused", "failed"]
"""Measured; or the attack would not be carried out; or something went wrong."""

Value = Any
"""What a metric can be: whatever JSON can hold."""


@dataclass(frozen=True)
class Record:
    """One case, measured."""

    case: Any
    """A `Case`; whoever makes a page of one kind knows its fields."""

    outcome: Outcome
    metrics: Mapping[str, Value] = field(default_factory=dict)
    """All that was found; of a case that failed, what had been found by then."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall time of every stage, and `cpu`, the processor time of all of them."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Versions and machine."""

    error: str | None = None
    """Why it was refused or failed."""

    @property
    def good(self) -> bool:
        """Whether it came out as it should; what was refused is neither good nor bad, and counts as good here."""
        return self.outcome == "refused" or (self.outcome == "done" and self.metrics.get("good", True) is True)

    def document(self) -> dict[str, Any]:
        """The record as a JSON object."""
        values: dict[str, Any] = {"case": self.case.values, "outcome": self.outcome}
        if self.error is not None:
            values["error"] = self.error
        return values | {
            "metrics": dict(self.metrics),
            "seconds": dict(self.seconds),
            "environment": dict(self.environment),
        }


def read_record(values: Any, where: str) -> Record:
    """The record that `Record.document` gave; BenchError where it is none."""
    try:
        outcome = values["outcome"]
        if outcome not in ("done", "refused", "failed"):
            raise ValueError(f"no outcome '{outcome}'")
        parts = (values["metrics"], values["seconds"], values["environment"])
        if not all(isinstance(part, dict) for part in parts):
            raise TypeError("metrics, seconds and environment are objects")
        return Record(read_case(values["case"]), outcome, *parts, values.get("error"))
    except (KeyError, TypeError, ValueError, AttributeError, BenchError) as error:
        raise _damaged(where, error) from error


def _damaged(where: str, error: Exception) -> BenchError:
    return BenchError(
        f"the record cannot be read: {error}", where=where, hint="Delete it, and the case will be measured again"
    )


@dataclass
class Store:
    """The records of one suite in one folder."""

    folder: Path
    suite: str
    records: dict[str, Record] = field(default_factory=dict)
    """By the name of the case."""

    @property
    def packed(self) -> Path:
        """The file of all records."""
        return self.folder / f"{self.suite}.jsonl"

    @property
    def loose(self) -> Path:
        """The folder of single records."""
        return self.folder / self.suite

    @staticmethod
    def open(folder: Path, suite: str) -> Store:
        """What there is so far; nothing when there is nothing."""
        store = Store(folder, suite)
        if store.packed.exists():
            store._take(_unpack(store.packed))
        if store.loose.is_dir():
            store._take(_read(path) for path in sorted(store.loose.glob("*.json")))
        return store

    def _take(self, records: Iterable[Record]) -> None:
        for record in records:
            self.records[record.case.name] = record

    def add(self, record: Record) -> None:
        """Write a record to a file of its own."""
        path = self.loose / f"{record.case.name}.json"
        try:
            self.loose.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(record.document(), indent=1, allow_nan=False) + "\n", force=True)
        except OSError as error:
            raise _unwritable(path, error) from error
        self.records[record.case.name] = record

    def pack(self) -> Path:
        """Put all records into one file, one per line, and remove the single ones."""
        environments: list[Mapping[str, str]] = []
        lines = []
        for name in sorted(self.records):
            document = self.records[name].document()
            if document["environment"] not in environments:
                environments.append(document["environment"])
            document["environment"] = environments.index(document["environment"])
            lines.append(json.dumps(document, separators=(",", ":"), allow_nan=False))
        head = {"format": FORMAT, "version": VERSION, "suite": self.suite, "environments": environments}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(self.packed, "\n".join([json.dumps(head), *lines]) + "\n", force=True)
        except OSError as error:
            raise _unwritable(self.packed, error) from error
        for name in self.records:
            (self.loose / f"{name}.json").unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not there, or another run is writing to it
            self.loose.rmdir()
        return self.packed


def suites_in(folder: Path) -> tuple[str, ...]:
    """The suites that have records in a folder."""
    if not folder.is_dir():
        raise BenchError("there is no such folder of records", where=str(folder))
    packed = {path.stem for path in folder.glob("*.jsonl")}
    loose = {path.parent.name for path in folder.glob("*/*.json")}
    return tuple(sorted(packed | loose))


def stores_of(folder: Path, suites: Iterable[str] = ()) -> Iterator[Store]:
    """The records of some suites, or of all that have any; BenchError for a suite without records."""
    present = suites_in(folder)
    for name in tuple(suites) or present:
        if name not in present:
            raise BenchError(
                f"the suite '{name}' has no records",
                where=str(folder),
                hint=f"Run: canon bench run {name}. There are records of: {', '.join(present) or 'none'}",
            )
        yield Store.open(folder, name)


def _read(path: Path) -> Record:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _damaged(str(path), error) from error
    record = read_record(values, str(path))
    if record.case.name != path.stem:
        raise _damaged(str(path), ValueError(f"it is about '{record.case.name}'"))
    return record


def _unpack(path: Path) -> Iterable[Record]:
    lines = path.read_text(encoding="utf-8").splitlines()
    try:
        head = json.loads(lines[0])
        if head["format"] != FORMAT:
            raise ValueError(f"the format is '{head['format']}'")
        version, environments = int(head["version"]), head["environments"]
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise BenchError(f"not a file of packed records: {error}", where=str(path)) from error
    if version > VERSION:
        raise BenchError(
            f"the records have format version {version}; this Canon reads up to {VERSION}",
            where=str(path),
            hint="Upgrade Canon",
        )
    for number, line in enumerate(lines[1:], 2):
        where = f"{path}, line {number}"
        try:
            values = json.loads(line)
            values["environment"] = environments[values["environment"]]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise _damaged(where, error) from error
        yield read_record(values, where)


def _unwritable(path: Path, error: OSError) -> BenchError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return BenchError(
        "the disk is full" if full else f"the record cannot be written: {error.strerror or error}",
        where=str(path),
        hint="Finished cases are kept; make room and run again to go on" if full else None,
    )
