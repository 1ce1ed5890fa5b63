"""Run many cases, over several processes if wanted, and keep their records in one file.

A case is a small frozen dataclass of plain values; its record is a JSON object that begins with them. The file is
written anew every few seconds, whole or not at all, so that a grid can be stopped at any time: cases that have a record
are not run again.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from canon._environment import environment
from canon._files import write_text
from canon.errors import BenchError

Case = TypeVar("Case")
Record = dict[str, Any]

SAVE_EVERY = 2.0
"""Seconds between two writes of the file."""


@dataclass
class GridFile:
    """The records of a grid, in one JSON file with one record per line."""

    path: Path
    keys: tuple[str, ...]
    """The fields that name a case."""

    records: dict[tuple[Any, ...], Record] = field(default_factory=dict)

    @staticmethod
    def open(path: Path, keys: Sequence[str]) -> GridFile:
        """What the file holds so far; nothing when there is none."""
        store = GridFile(path, tuple(keys))
        if path.exists():
            try:
                found = json.loads(path.read_text(encoding="utf-8"))["records"]
                for record in found:
                    store.add(record)
            except (ValueError, KeyError, TypeError) as error:
                raise BenchError("the file is not one that a grid wrote", where=str(path)) from error
        return store

    def key(self, values: Record) -> tuple[Any, ...]:
        """What names a case."""
        return tuple(values[key] for key in self.keys)

    def add(self, record: Record) -> None:
        """Take a record up, in place of an older one of the same case."""
        self.records[self.key(record)] = record

    def save(self) -> None:
        """Write all records, in the order of their cases."""
        ordered = sorted(self.records.values(), key=lambda record: [str(record[key]) for key in self.keys])
        lines = ",\n".join(json.dumps(record) for record in ordered)
        text = f'{{"environment": {json.dumps(environment())},\n"records": [\n{lines}\n]}}\n'
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, text, force=True)


def run_cases(
    cases: Sequence[Case],
    measure: Callable[[Case], Record],
    store: GridFile,
    *,
    jobs: int = 1,
    minutes: float | None = None,
) -> int:
    """Run the cases that have no record; returns how many are still without one.

    Args:
        cases: What to run, in this order.
        measure: From a case to its record; a function of a module, so that other processes can call it.
        store: Where records go.
        jobs: Processes.
        minutes: After this time no further case is begun.
    """
    todo = [case for case in cases if store.key(_fields(case)) not in store.records]
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    saved = time.monotonic()
    done = 0
    results = _here(todo, measure, deadline) if jobs == 1 else _beside(todo, measure, deadline, jobs)
    for case, record, error in results:
        if record is None:
            _say(f"failed  {_fields(case)}: {error}")
            continue
        done += 1
        store.add({**_fields(case), **record})
        _say(f"{done}/{len(todo)}  {json.dumps({**_fields(case), **record})}")
        if time.monotonic() - saved > SAVE_EVERY:
            store.save()
            saved = time.monotonic()
    store.save()
    return len(todo) - done


Finished = tuple[Case, Record | None, BaseException | None]


def _here(todo: Sequence[Case], measure: Callable[[Case], Record], deadline: float | None) -> Iterator[Finished[Case]]:
    for case in todo:
        if deadline is not None and time.monotonic() > deadline:
            return
        yield _measured(measure, case)


def _beside(
    todo: Sequence[Case], measure: Callable[[Case], Record], deadline: float | None, jobs: int
) -> Iterator[Finished[Case]]:
    remaining = iter(todo)
    # CUDA does not survive a fork.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        running: set[Future[Finished[Case]]] = set()
        while True:
            late = deadline is not None and time.monotonic() > deadline
            while not late and len(running) < 2 * jobs and (case := next(remaining, None)) is not None:
                running.add(pool.submit(_measured, measure, case))
            if late:
                for future in running:
                    future.cancel()
                running = {future for future in running if not future.cancelled()}
            if not running:
                return
            ready, running = wait(running, return_when=FIRST_COMPLETED)
            for future in ready:
                yield future.result()


def _measured(measure: Callable[[Case], Record], case: Case) -> Finished[Case]:
    """One case; a fault in it is told and the grid goes on."""
    try:
        return case, measure(case), None
    except Exception as error:
        return case, None, RuntimeError(f"{type(error).__name__}: {error}")


def _fields(case: Any) -> Record:
    return asdict(case)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
