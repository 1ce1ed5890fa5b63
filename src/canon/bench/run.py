"""Running a suite: what has a record is not measured again.

There are two phases: first every model that is not in the cache yet is trained, then the cases are measured. A run can
be stopped at any time and goes on where it was.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from canon.bench.cases import Case, Training
from canon.bench.executors import Executor, Work, executor
from canon.bench.lab import Setup, ensure_trained
from canon.bench.machine import machine
from canon.bench.measures import measure
from canon.bench.measures.sheet import Sheet
from canon.bench.records import Record, Store
from canon.bench.suite import Suite, check_suite, trainings_of


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a suite is run; none of this changes what is measured."""

    out: Path
    """Folder of the records."""

    setup: Setup
    executor: str = "here"
    jobs: int = 1
    address: str | None = None
    """Of a Ray cluster."""

    minutes: float | None = None
    """After this time nothing is begun."""

    retry: bool = False
    """Whether cases that failed or did not come out as they should are measured again."""


def default_executor(jobs: int, address: str | None) -> str:
    """Where to measure when nobody says: on the cluster that is named, in several processes, or here."""
    return "ray" if address is not None else "processes" if jobs > 1 else "here"


Progress = Callable[[str], AbstractContextManager[Callable[[float], None]]]
"""Is told what is under way, and gives what hears which part of it is done, from 0 to 1."""

Tell = Callable[[str, Record], None]
"""Hears which of how many cases is done, as `3/20`, and its record."""


@dataclass(frozen=True)
class Summary:
    """What came of a run."""

    records: tuple[Record, ...]
    """Of all cases that have one, in the suite's order."""

    left: int
    """Cases without a record."""

    @property
    def bad(self) -> tuple[Record, ...]:
        """Those that failed or did not come out as they should."""
        return tuple(record for record in self.records if not record.good)

    @property
    def status(self) -> int:
        """0: all is well; 1: some are bad; 3: some are left."""
        return 1 if self.bad else 3 if self.left else 0

    def __str__(self) -> str:
        outcomes = [record.outcome for record in self.records]
        counts = ", ".join(f"{outcomes.count(kind)} {kind}" for kind in dict.fromkeys(outcomes)) or "none"
        text = f"{len(self.records)} cases: {counts}; {len(self.bad)} not as they should be"
        return text + (f"; {self.left} still to do" if self.left else "")


def run_suite(
    suite: Suite,
    options: RunOptions,
    progress: Progress = lambda _what: nullcontext(lambda _done: None),
    tell: Tell = lambda _place, _record: None,
) -> Summary:
    """Measure the cases that have no record, training what they need."""
    check_suite(suite)
    store = Store.open(options.out, suite.name)
    todo = [case for case in suite.cases if _wanted(store, case, options.retry)]
    deadline = None if options.minutes is None else time.monotonic() + 60 * options.minutes

    def stop() -> bool:
        return deadline is not None and time.monotonic() > deadline

    pool = executor(options.executor, jobs=options.jobs, address=options.address, device=options.setup.device)
    runner = _Runner(suite, options.setup, pool, stop, progress, tell)
    for record in runner.measure(todo, runner.train(todo)):
        store.add(record)
    found = [store.records[case.name] for case in suite.cases if case.name in store.records]
    return Summary(tuple(found), len(suite.cases) - len(found))


def _wanted(store: Store, case: Case, retry: bool) -> bool:
    record = store.records.get(case.name)
    return record is None or (retry and not record.good)


@dataclass(frozen=True)
class _Runner:
    """The two phases of a run."""

    suite: Suite
    setup: Setup
    pool: Executor
    stop: Callable[[], bool]
    progress: Progress
    tell: Tell

    def train(self, todo: Sequence[Case]) -> dict[Training, str]:
        """Train what is not in the cache, unmarked twins first; returns what could not be trained, and why."""
        missing = [training for training in trainings_of(todo) if not self.setup.models.has(training)]
        failed = {}
        for record in self._watched("training", functools.partial(prepare, setup=self.setup), missing):
            if record.outcome == "failed":
                failed[record.case] = record.error or "unknown"
        return failed

    def measure(self, todo: Sequence[Case], failed: Mapping[Training, str]) -> Iterator[Record]:
        """Measure the cases; those whose models could not be trained have failed, and those for whose models there was
        no time are left."""
        ready = []
        for case in todo:
            broken = next((training for training in case.trainings if training in failed), None)
            if broken is not None:
                yield Record(case, "failed", error=f"{broken.name}: {failed[broken]}", environment=machine())
            elif not self.stop() or all(map(self.setup.models.has, case.trainings)):
                ready.append(case)
        yield from self._watched(self.suite.name, functools.partial(measure, setup=self.setup), ready)

    def _watched(self, phase: str, work: Work, cases: Sequence[Case]) -> Iterator[Record]:
        if not cases:
            return
        with self.progress(f"{phase}: {len(cases)} to do") as advance:
            for done, record in enumerate(self.pool.run(work, cases, self.suite.takes, self.stop), 1):
                self.tell(f"{done}/{len(cases)}", record)
                advance(done / len(cases))
                yield record


def prepare(case: Case, threads: int = 1, *, setup: Setup) -> Record:
    """Train a model into the cache."""
    assert isinstance(case, Training), "only models are trained"
    torch.set_num_threads(threads)
    sheet = Sheet(setup.device)
    try:
        ensure_trained(setup, case)
    except Exception as fault:
        return Record(case, "failed", error=f"{type(fault).__name__}: {fault}")
    sheet.lap("training")
    return Record(case, "done", seconds=sheet.seconds)


def line(record: Record) -> str:
    """A record in one line."""
    text = f"{record.case.name}: {record.outcome}"
    if record.error is not None:
        text += f" ({record.error})"
    elif not record.good:
        text += ", not as it should be"
    return text + f", {sum(took for stage, took in record.seconds.items() if stage != 'cpu'):.1f} s"
