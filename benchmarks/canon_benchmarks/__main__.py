"""`python -m canon_benchmarks SUITE`: `canon bench run` where neither typer nor rich is installed: plain lines.

Without a suite it lists them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from canon.bench.executors import executors
from canon.bench.lab import Setup
from canon.bench.records import Record, Store
from canon.bench.run import CACHE, OUT, RunOptions, default_executor, line, run_suite, spell
from canon.bench.suite import load_suite, suite_names
from canon.errors import CanonError


class Lines:
    """A watcher that writes lines to standard error."""

    def __init__(self) -> None:
        self._total = 0

    def phase(self, name: str, total: int) -> None:
        """Say what begins."""
        self._total = total
        self._say(f"{name}: {total} to do")

    def step(self, record: Record, left: int, seconds_left: float) -> None:
        """Say what is done."""
        self._say(f"{self._total - left}/{self._total}  {line(record)}, {spell(seconds_left)} left")

    def _say(self, text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a suite; the status is 1 when a case failed or did not come out as it should, 3 when some are still to do."""
    parser = argparse.ArgumentParser(prog="python -m canon_benchmarks", description=__doc__)
    parser.add_argument("suite", nargs="?", help="its name, or the path of a TOML file; without one, all are listed")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the records")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder of the trained models")
    parser.add_argument("--data", type=Path, help="folder of the datasets, for all but digits")
    parser.add_argument("--device", default="cpu", help="where to compute: cpu, cuda")
    parser.add_argument(
        "--executor",
        choices=executors(),
        help="default: processes where there are several jobs, ray where there is an address",
    )
    parser.add_argument("--jobs", type=int, default=1, help="cases beside each other")
    parser.add_argument("--address", help="of a Ray cluster; auto finds one on this machine")
    parser.add_argument("--minutes", type=float, help="begin nothing after this time; run again to go on")
    parser.add_argument("--only", help="cases whose name matches this pattern")
    parser.add_argument(
        "--retry", action="store_true", help="measure cases again that failed or did not come out as they should"
    )
    parser.add_argument("--pack", action="store_true", help="put all records into one file at the end")
    chosen = parser.parse_args(arguments)
    if chosen.suite is None:
        sys.stdout.write("".join(f"  {name:18} {load_suite(name).title}\n" for name in suite_names()))
        return 0
    options = RunOptions(
        out=chosen.out,
        setup=Setup(chosen.cache, chosen.data, chosen.device),
        executor=chosen.executor or default_executor(chosen.jobs, chosen.address),
        jobs=chosen.jobs,
        address=chosen.address,
        minutes=chosen.minutes,
        retry=chosen.retry,
    )
    try:
        suite = load_suite(chosen.suite)
        summary = run_suite(suite.only(chosen.only), options, Lines())
        if chosen.pack:
            Store.open(options.out, suite.name).pack()
    except CanonError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{suite.name}: {summary}\n")
    return summary.status


if __name__ == "__main__":
    sys.exit(main())
