"""`python -m canon.bench`: every micro-benchmark in one table, and as JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import torch

from canon.bench.attack_time import measure_attack
from canon.bench.micro import Measurement, save, table
from canon.bench.trace import measure_trace

MEASUREMENTS: Final[tuple[Callable[[], Measurement], ...]] = (measure_trace, measure_attack)
"""Every micro-benchmark. Add yours here."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the micro-benchmarks; the status is 1 when one is over its limit."""
    parser = argparse.ArgumentParser(prog="python -m canon.bench", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/micro.json"), help="file to write")
    parser.add_argument("--threads", type=int, default=1, help="threads that torch may use")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    found = [measure() for measure in MEASUREMENTS]
    save(found, chosen.out)
    sys.stdout.write(table(found))
    return 0 if all(measurement.within for measurement in found) else 1


if __name__ == "__main__":
    sys.exit(main())
