"""Time and memory, measured the same way on the host and on a device."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Times:
    """The seconds of several runs."""

    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        """The run in the middle."""
        return statistics.median(self.runs)

    def record(self) -> dict[str, float | int]:
        """As data: the median, the fastest and the slowest run, and how many there were."""
        return {
            "median": round(self.median, 5),
            "least": round(min(self.runs), 5),
            "most": round(max(self.runs), 5),
            "runs": len(self.runs),
        }


@dataclass(frozen=True)
class Timed:
    """Something to be timed."""

    run: Callable[[], object]
    prepare: Callable[[], object] | None = None
    """Called before each run, and not timed."""

    rounds: int | None = None
    """Of how many rounds the step is part; None: of all."""

    large: bool = False
    """Whether it writes memory of the size of a model. A run that is timed then follows one that is not."""


def times_of(steps: Mapping[str, Timed], *, repeats: int, device: str) -> dict[str, Times]:
    """Time steps in turn, round by round, so that a machine that is slow for a while is so for all of them.

    Before every run on the host, memory that was freed is given back to the system, as if the process were new.
    Otherwise a copy into pages left over from the call before would be several times faster than one into fresh ones.
    Yet which pages a system has ready for large writes depends on what ran before, so that should be the same step.

    Args:
        steps: What to call, by name.
        repeats: How many rounds there are.
        device: On CUDA, events on the stream are timed, with everything before and after waited for.
    """
    seconds = _device_seconds if device.startswith("cuda") else _host_seconds
    runs: dict[str, list[float]] = {name: [] for name in steps}
    for attempt in range(max([repeats, *(step.rounds or 0 for step in steps.values())])):
        for name, step in steps.items():
            if attempt >= (repeats if step.rounds is None else step.rounds):
                continue
            for counts in (False, True) if step.large else (True,):
                if step.prepare is not None:
                    step.prepare()
                _give_back()
                taken = seconds(step.run)
                if counts:
                    runs[name].append(taken)
    return {name: Times(tuple(found)) for name, found in runs.items()}


def time_of(function: Callable[[], object], *, repeats: int, device: str) -> Times:
    """Time one call, each time after one that is not timed."""
    return times_of({"": Timed(function, large=True)}, repeats=repeats, device=device)[""]


def _give_back() -> None:
    """Return free memory to the system, where the C library can: pages still held would hide what a call takes."""
    gc.collect()
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _host_seconds(function: Callable[[], object]) -> float:
    """Of the process: with one thread what the clock shows on an idle machine, and little more on a busy one."""
    started = time.process_time()
    function()
    return time.process_time() - started


def _device_seconds(function: Callable[[], object]) -> float:
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    first.record()
    function()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) / 1e3


def peak_extra_bytes(function: Callable[[], object], device: str) -> int | None:
    """How much more memory a call needs at its peak than is in use before it; None where the system does not tell."""
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - before)
    if not _CLEAR.exists():
        return None
    _give_back()
    _CLEAR.write_text("5", encoding="ascii")
    before = _kilobytes("VmRSS")
    function()
    return (_kilobytes("VmHWM") - before) * 1024


def _kilobytes(name: str) -> int:
    lines = _STATUS.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def read_bandwidth(device: str) -> float:
    """Bytes per second at which a gibibyte of float32 numbers is read once."""
    data: Tensor = torch.ones(1 << 28, device=device)
    return data.nbytes / time_of(data.sum, repeats=5, device=device).median
