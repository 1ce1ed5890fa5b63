"""One case after the other, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from canon.bench.cases import Case
from canon.bench.executors.interface import Executor, Work
from canon.bench.records import Record
from canon.bench.suite import Resources


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
