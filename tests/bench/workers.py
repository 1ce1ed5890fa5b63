"""Work for executors to be tested with: no models, but workers that die."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from canon.bench.cases import Training
from canon.bench.records import Record


def cases(count: int) -> list[Training]:
    return [Training(dataset="digits", model=f"m{index % 3}", scheme="twin", seed=index) for index in range(count)]


def work(
    case: Training, threads: int, *, marks: Path, fatal: int | None = None, deaths: int = 0, together: int = 1
) -> Record:
    """Note the attempt; the case with seed `fatal` kills its worker on the first `deaths` attempts.

    No case ends before `together` workers have begun one: a quick worker would do everything while others start.
    """
    attempt = len(list(marks.glob(f"{case.seed}-*")))
    (marks / f"{case.seed}-{attempt}-{os.getpid()}").touch()
    patience = time.monotonic() + 300
    while len(workers(marks)) < together and time.monotonic() < patience:
        time.sleep(0.02)
    time.sleep(0.05)
    if case.seed == fatal and attempt < deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return Record(case, "done", {"threads": threads, "square": case.seed**2})


def attempts(marks: Path) -> dict[int, int]:
    """How often each case was begun."""
    seeds = [int(path.name.split("-")[0]) for path in marks.iterdir()]
    return {seed: seeds.count(seed) for seed in seeds}


def workers(marks: Path) -> set[int]:
    """The processes that took part."""
    return {int(path.name.split("-")[2]) for path in marks.iterdir()}
