"""A Ray cluster: one that exists, or one of a few processes on this machine.

Workers on other machines need Canon installed, and the folders of models and data under the same paths; a model that
is not in a worker's cache is trained there.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from canon.bench.cases import Case
from canon.bench.executors import Executor, Work, lost
from canon.bench.records import Record
from canon.bench.suite import Resources
from canon.errors import BenchError, import_extra

RETRIES: Final = 2
"""How often a case is tried again when its worker dies."""

AHEAD: Final = 2
"""Cases handed to the cluster beyond one for every core, so that no worker waits for this process."""


class RayCluster(Executor):
    """Measures on a cluster. Ray tries a case again when its worker is lost; only this process writes records."""

    def __init__(self, jobs: int, address: str | None, device: str) -> None:
        self._ray = import_extra("ray", "ray")
        self._jobs, self._address, self._gpu = jobs, address, device.startswith("cuda")

    def run(
        self, work: Work, cases: Sequence[Case], takes: Callable[[Case], Resources], stop: Callable[[], bool]
    ) -> Iterator[Record]:
        """See `Executor`."""
        ray = self._ray
        started = not ray.is_initialized()
        if started:
            self._connect()

        def call(case: Case, threads: int) -> Record:
            return work(case, threads)

        try:
            yield from self._through(ray.remote(call), deque(cases), takes, stop)
        finally:
            if started:
                ray.shutdown()

    def _through(
        self, remote: Any, waiting: deque[Case], takes: Callable[[Case], Resources], stop: Callable[[], bool]
    ) -> Iterator[Record]:
        ray = self._ray
        running: dict[Any, Case] = {}
        while True:
            # A cluster may grow while it works.
            slots = int(ray.cluster_resources().get("CPU", 1)) + AHEAD
            while waiting and len(running) < slots and not stop():
                case = waiting.popleft()
                needs = takes(case)
                running[remote.options(**self._options(needs)).remote(case, needs.cpus)] = case
            if not running:
                return
            ready, _ = ray.wait(list(running), num_returns=1, timeout=1.0)
            for reference in ready:
                yield self._result(reference, running.pop(reference))

    def _result(self, reference: Any, case: Case) -> Record:
        ray = self._ray
        try:
            record: Record = ray.get(reference)
        except ray.exceptions.RayError as error:
            first = str(error).strip().splitlines()[0]
            return lost(case, f"WorkerLost: tried {RETRIES + 1} times; {type(error).__name__}: {first}")
        return record

    def _options(self, needs: Resources) -> dict[str, Any]:
        options: dict[str, Any] = {"num_cpus": needs.cpus, "max_retries": RETRIES}
        if self._gpu:
            options["num_gpus"] = needs.gpus
        if needs.memory_gb:
            options["memory"] = int(needs.memory_gb * 2**30)
        return options

    def _connect(self) -> None:
        ray = self._ray
        options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        try:
            if self._address is None:
                ray.init(num_cpus=self._jobs, include_dashboard=False, **options)
            else:
                ray.init(address=self._address, **options)
        except Exception as error:  # Ray raises ConnectionError, RuntimeError, ValueError, ...
            raise BenchError(
                f"the Ray cluster cannot be reached: {error}",
                where=self._address,
                hint="Start one with `ray start --head`, or leave --address out",
            ) from error
