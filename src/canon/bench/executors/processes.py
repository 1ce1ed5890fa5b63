"""Several processes on this machine."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Final

from canon.bench.cases import Case, Training
from canon.bench.executors.interface import Executor, Work, lost
from canon.bench.records import Record
from canon.bench.suite import Resources

TRIES: Final = 2
"""How often a case is begun before its dying workers are taken to be its own fault."""


@dataclass(eq=False)
class _Worker:
    """One process, which keeps the model that it worked on last at hand."""

    pool: ProcessPoolExecutor
    last: Training | None = None


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
                    case = _choose(waiting, worker, {other.training for _, other in running.values()})
                    tries[case] = tries.get(case, 0) + 1
                    worker.last = case.training
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


def _choose(waiting: list[Case], worker: _Worker, taken: set[Training]) -> Case:
    """Take the next case: of the model at hand, else of one that nobody is at, else the first."""
    for wanted in (lambda case: case.training == worker.last, lambda case: case.training not in taken):
        for index, case in enumerate(waiting):
            if wanted(case):
                return waiting.pop(index)
    return waiting.pop(0)


def _process() -> ProcessPoolExecutor:
    # CUDA does not survive a fork.
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
