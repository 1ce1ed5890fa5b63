"""Where cases are measured: in this process, in several beside it, or on a Ray cluster. The records are the same."""

from __future__ import annotations

from typing import Final

from canon.bench.executors.here import Here
from canon.bench.executors.interface import Executor, Work, lost
from canon.bench.executors.processes import Processes
from canon.errors import BenchError

EXECUTORS: Final = ("here", "processes", "ray")
"""By name."""


def executor(name: str, *, jobs: int = 1, address: str | None = None, device: str = "cpu") -> Executor:
    """An executor by name.

    Args:
        name: One of `EXECUTORS`.
        jobs: Cases that are measured beside each other, on this machine.
        address: Of an existing Ray cluster; None: a cluster of `jobs` processes is started here.
        device: Where cases are computed; GPUs are asked for only if it is one.
    """
    if name not in EXECUTORS:
        raise BenchError(f"no executor is called '{name}'", hint=f"There are: {', '.join(EXECUTORS)}")
    if jobs < 1:
        raise BenchError(f"at least one job is needed, got {jobs}")
    if address is not None and name != "ray":
        raise BenchError("only Ray has an address", hint="Add --executor ray")
    if name == "here":
        return Here()
    if name == "processes":
        return Processes(jobs)
    from canon.bench.executors.cluster import RayCluster

    return RayCluster(jobs, address, device)


__all__ = ["EXECUTORS", "Executor", "Here", "Processes", "Work", "executor", "lost"]
