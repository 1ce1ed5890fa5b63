"""The machine and the versions that numbers were measured with."""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path

import torch

from canon._version import __version__


@functools.cache
def machine() -> dict[str, str]:
    """Versions and machine, for a record."""
    return {
        "canon": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def _processor() -> str:
    """The processor's name, as far as the system tells it."""
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
