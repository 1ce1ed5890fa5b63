"""What the shell offers after Tab. Nothing heavy is imported before the user asks for it."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable


def schemes(incomplete: str) -> list[str]:
    """Watermarking schemes."""
    from canon import watermarks

    return _starting(watermarks.names(), incomplete)


def operations(incomplete: str) -> list[str]:
    """Attacks, and mixes of them."""
    from canon.attacks import names
    from canon.attacks.options import MIX

    return _starting([*names(), *MIX], incomplete)


def methods(incomplete: str) -> list[str]:
    """Methods of recovery."""
    from canon.recovery.pipeline import METHODS

    return _starting(METHODS, incomplete)


def suites(incomplete: str) -> list[str]:
    """Suites of the benchmark, and files."""
    from canon.bench.suite import suite_names

    return _starting(suite_names(), incomplete) + files(incomplete)


def architectures(incomplete: str) -> list[str]:
    """Architectures of torchvision, which are quick to list."""
    from canon import zoo

    return _starting(zoo.model_names(), incomplete)


def models(incomplete: str) -> list[str]:
    """Files and folders, and architectures."""
    return files(incomplete) + architectures(incomplete)


def files(incomplete: str) -> list[str]:
    """Files and folders whose names begin so."""
    found = sorted(glob.glob(glob.escape(incomplete) + "*"))
    return [name + os.sep if os.path.isdir(name) else name for name in found]


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
