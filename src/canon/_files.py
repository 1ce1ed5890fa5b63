"""Write files whole or not at all.

A result that took an hour is lost twice when it overwrites another one and is then cut off half way. Everything Canon
writes for a user goes through `atomic_path`. It does not lock: of two writers to one path, the last to finish wins.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from canon.errors import CanonError


class OutputError(CanonError):
    """An output cannot be written where it was asked for."""


def check_output(target: Path, *, force: bool = False) -> None:
    """Raise `OutputError` if `target` cannot take a file; call it before the long work, not after.

    >>> check_output(Path("no-such-folder") / "model.safetensors")
    Traceback (most recent call last):
    ...
    canon._files.OutputError: the folder of the output does not exist (at no-such-folder). Create it first
    """
    if not target.parent.is_dir():
        raise OutputError("the folder of the output does not exist", where=str(target.parent), hint="Create it first")
    if target.is_dir():
        raise OutputError("the output is a folder, not a file", where=str(target), hint="Name a file in it")
    if target.exists() and not force:
        raise OutputError("the output exists already", where=str(target), hint="Name another, or use --force")


@contextmanager
def atomic_path(target: str | os.PathLike[str], *, force: bool = False) -> Iterator[Path]:
    """Give a path to write to, which becomes `target` when the block ends well and vanishes when it does not.

    The path has the name of `target`, in a temporary folder beside it, so that writers who look at the suffix see the
    right one and the move never crosses file systems. An existing `target` is replaced only with `force`.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_path(Path(folder) / "note.txt") as path:
    ...         _ = path.write_text("whole")
    ...     (Path(folder) / "note.txt").read_text()
    'whole'
    """
    target = Path(target)
    check_output(target, force=force)
    with tempfile.TemporaryDirectory(prefix=".canon-", dir=target.parent) as folder:
        path = Path(folder) / target.name
        yield path
        # Another process may have written it since.
        check_output(target, force=force)
        os.replace(path, target)


def write_text(target: str | os.PathLike[str], text: str, *, force: bool = False) -> None:
    """Write `text` as UTF-8 to `target`, atomically."""
    with atomic_path(target, force=force) as path:
        path.write_text(text, encoding="utf-8")
