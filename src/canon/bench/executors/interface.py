"""What an executor is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from canon.bench.cases import Case
from canon.bench.records import Record
from canon.bench.suite import Resources

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
