"""Where cases are measured: in this process, in several beside it, or where an extension can. Records are the same."""

from __future__ import annotations

import multiprocessing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Final

from canon.bench import extensions
from canon.bench.cases import Case
from canon.bench.records import Record
from canon.bench.suite import Resources
from canon.errors import BenchError, choices

TRIES: Final = 2
"""How often a case is begun before its dying workers are taken to be its own fault."""


Work = Callable[[Case, int], Record]
"""From a case and a number of threads to its record; a function of a module, so that other processes can call it."""


class Executor(ABC):
    """Measures cases, in any order and in any process, each once.

    A worker may die under a case. The case is then tried again, and if it takes a worker with it once more, it comes
    back as failed; other cases are not touched by that.
    """

    @abstractmethod
    def run(
        self,
        work: Work,
        cases: Sequence[Case],
        takes: Callable[[Case], Resources],
        stop: Callable[[], bool],
    ) -> Iterator[Record]:
        """Records as they come; no further case is begun once `stop` says so."""


def lost(case: Case, reason: str) -> Record:
    """The record of a case whose workers died."""
    return Record(case, "failed", error=reason)


class Here(Executor):
    """Measures in this process."""

    def run(
        self, work: Work, cases: Sequence[Case], takes: Callable[[Case], Resources], stop: Callable[[], bool]
    ) -> Iterator[Record]:
        """See `Executor`."""
        for case in cases:
            if stop():
                return
            yield work(case, takes(case).cpus)


@dataclass(eq=False)
class _Worker:
    """One process, which keeps the model that it worked on last at hand."""

    pool: ProcessPoolExecutor
    last: object = None


class Processes(Executor):
    """Some processes, each with one case at a time. One that dies is replaced and takes no other case with it."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs

    def run(
        self, work: Work, cases: Sequence[Case], takes: Callable[[Case], Resources], stop: Callable[[], bool]
    ) -> Iterator[Record]:
        """See `Executor`."""
        waiting = list(cases)
        idle = [_Worker(_process()) for _ in range(min(self._jobs, len(waiting)))]
        workers = list(idle)
        running: dict[Future[Record], tuple[_Worker, Case]] = {}
        tries: dict[Case, int] = {}
        try:
            while True:
                while idle and waiting and not stop():
                    worker = idle.pop()
                    case = _choose(waiting, worker, [other.shared for _, other in running.values()])
                    tries[case] = tries.get(case, 0) + 1
                    worker.last = case.shared
                    running[worker.pool.submit(work, case, takes(case).cpus)] = worker, case
                if not running:
                    return
                ready, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in ready:
                    worker, case = running.pop(future)
                    idle.append(worker)
                    try:
                        yield future.result()
                    except BrokenProcessPool:
                        worker.pool.shutdown()
                        worker.pool = _process()
                        if tries[case] < TRIES:
                            waiting.insert(0, case)
                        else:
                            yield lost(case, f"WorkerLost: the process that measured it died {TRIES} times")
        finally:
            for worker in workers:
                worker.pool.shutdown(wait=True, cancel_futures=True)


def _choose(waiting: list[Case], worker: _Worker, taken: Sequence[object]) -> Case:
    """Take the next case: of the model at hand, else of one that nobody is at, else the first."""
    for wanted in (lambda case: case.shared == worker.last, lambda case: case.shared not in taken):
        for index, case in enumerate(waiting):
            if wanted(case):
                return waiting.pop(index)
    return waiting.pop(0)


def _process() -> ProcessPoolExecutor:
    # CUDA does not survive a fork.
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def executors() -> tuple[str, ...]:
    """The names that there are."""
    return ("here", "processes", *extensions.executors())


def executor(name: str, *, jobs: int = 1, address: str | None = None, device: str = "cpu") -> Executor:
    """An executor by name.

    Args:
        name: One of `executors()`.
        jobs: Cases that are measured beside each other, on this machine.
        address: Of an existing cluster; None: what is needed is started here.
        device: Where cases are computed; GPUs are asked for only if it is one.
    """
    if name not in executors():
        raise BenchError(f"no executor is called '{name}'", hint=choices(name, executors()))
    if jobs < 1:
        raise BenchError(f"at least one job is needed, got {jobs}")
    if name in extensions.executors():
        found: Executor = resolve_name(extensions.executors()[name])(jobs, address, device)
        return found
    if address is not None:
        raise BenchError("only a cluster has an address", hint="Add --executor ray")
    return Here() if name == "here" else Processes(jobs)
