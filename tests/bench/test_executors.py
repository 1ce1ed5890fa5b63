"""Executors: every case once, whatever happens to the workers."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from canon.bench.executors import Executor, executor
from canon.bench.records import Record
from canon.bench.suite import Resources
from canon.errors import BenchError, MissingExtraError
from tests.bench.workers import attempts, cases, work, workers

COUNT = 8


def run(
    pool: Executor, marks: Path, *, fatal: int | None = None, deaths: int = 0, stop_after: int = 99, together: int = 1
) -> list[Record]:
    done: list[Record] = []
    job = functools.partial(work, marks=marks, fatal=fatal, deaths=deaths, together=together)
    for record in pool.run(job, cases(COUNT), lambda case: Resources(cpus=1), lambda: len(done) >= stop_after):
        done.append(record)
    return done


def squares(records: list[Record]) -> list[tuple[int, object]]:
    return sorted((record.case.seed, record.metrics.get("square")) for record in records)


EXPECTED = [(seed, seed**2) for seed in range(COUNT)]


def test_here(tmp_path: Path) -> None:
    assert squares(run(executor("here"), tmp_path)) == EXPECTED
    assert workers(tmp_path) == {os.getpid()}


@pytest.mark.parametrize("deaths", [0, 1])
def test_processes(tmp_path: Path, deaths: int) -> None:
    assert squares(run(executor("processes", jobs=2), tmp_path, fatal=3, deaths=deaths)) == EXPECTED
    assert attempts(tmp_path) == {seed: 2 if seed == 3 and deaths else 1 for seed in range(COUNT)}
    assert 2 <= len(workers(tmp_path)) <= 2 + deaths  # the other one may be idle, and take the case again
    assert os.getpid() not in workers(tmp_path)


def test_a_case_that_always_kills_its_worker_fails_alone(tmp_path: Path) -> None:
    records = run(executor("processes", jobs=2), tmp_path, fatal=3, deaths=9)
    assert len(records) == COUNT
    assert {record.case.seed for record in records if record.outcome == "failed"} == {3}
    assert "died 2 times" in str(next(record.error for record in records if record.case.seed == 3))


@pytest.mark.parametrize("name", ["here", "processes"])
def test_nothing_is_begun_after_the_end(tmp_path: Path, name: str) -> None:
    records = run(executor(name, jobs=2), tmp_path, stop_after=2)
    assert 2 <= len(records) <= 3
    assert len(attempts(tmp_path)) == len(records)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A real cluster of two nodes on this machine."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        root = Path(__file__).parents[2]
        patch.setenv("PYTHONPATH", os.pathsep.join([str(root), str(root / "benchmarks")]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_memory_monitor_refresh_ms", "0")  # what else takes memory here ends no worker
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        nodes.add_node(num_cpus=1)
        yield nodes.address
        nodes.shutdown()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("deaths", [0, 1])
def test_ray(tmp_path: Path, cluster: str, deaths: int) -> None:
    records = run(executor("ray", address=cluster), tmp_path, fatal=3, deaths=deaths, together=2)
    assert squares(records) == EXPECTED, "no case lost, none twice"
    assert attempts(tmp_path) == {seed: 2 if seed == 3 and deaths else 1 for seed in range(COUNT)}
    assert len(workers(tmp_path)) >= 2
    assert os.getpid() not in workers(tmp_path)


def test_ray_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"canon-nso\[ray\]"):
        executor("ray")


def test_wrong_executors() -> None:
    with pytest.raises(BenchError, match="no executor is called 'slurm'"):
        executor("slurm")
    with pytest.raises(BenchError, match="at least one job"):
        executor("processes", jobs=0)
    with pytest.raises(BenchError, match="only a cluster has an address"):
        executor("here", address="auto")
