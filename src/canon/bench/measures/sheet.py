"""What is written down while a case is measured, so that a case that fails keeps what it had found."""

from __future__ import annotations

import math
import time

import torch

from canon.bench.records import Value


class Sheet:
    """Metrics and stage times of one case."""

    def __init__(self, device: str = "cpu") -> None:
        self.metrics: dict[str, Value] = {}
        self.seconds: dict[str, float] = {}
        self._device = device
        self._begun = time.process_time()
        self._last = self._now()

    def note(self, **metrics: Value) -> None:
        """Write metrics down; numbers that are not finite become None."""
        for name, value in metrics.items():
            self.metrics[name] = None if isinstance(value, float) and not math.isfinite(value) else value

    def begin(self) -> None:
        """Start the clock of the next stage anew: what came before is no stage."""
        self._last = self._now()

    def lap(self, stage: str) -> float:
        """End a stage; returns its seconds."""
        now = self._now()
        took = now - self._last
        self.seconds[stage] = round(self.seconds.get(stage, 0.0) + took, 4)
        self._last = now
        return took

    def finish(self) -> None:
        """Write down the processor time of everything."""
        self.seconds["cpu"] = round(time.process_time() - self._begun, 3)

    def _now(self) -> float:
        if self._device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter()


def short(value: float) -> float:
    """Three significant digits, which is more than any residual means.

    >>> short(1.23456e-07)
    1.23e-07
    """
    return float(f"{value:.3g}")
