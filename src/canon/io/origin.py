"""Which bytes were read: digests of files that did not change between reading and hashing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from canon.errors import FileFormatError

Value = TypeVar("Value")

FileState = tuple[int, int, int, int, int]
"""Device, number, size and times of a file: another state, another content."""


def file_state(path: str | os.PathLike[str] | int) -> FileState:
    """The state of a file, by path or as it is open."""
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def unchanged_digest(path: Path, state: FileState) -> str:
    """SHA-256 of a file that is still in the state in which it was read.

    Raises:
        FileFormatError: It was changed or replaced since.
    """
    with open(path, "rb") as file:
        before = file_state(file.fileno())
        found = hashlib.file_digest(file, "sha256").hexdigest()
        if before != state or file_state(file.fileno()) != state:
            raise FileFormatError(
                "the file was changed while it was read", where=str(path), hint="Work on a copy of it"
            )
    return found


def folder_origin(folder: Path, states: Mapping[Path, FileState]) -> dict[str, str]:
    """For evidence: the name of a folder, and the digests of all its files that were read."""
    found = {"folder": folder.resolve().name}
    for part in sorted(states):
        found[f"sha256 of {part.name}"] = unchanged_digest(part, states[part])
    return found


def origin_of(path: Path, states: Mapping[Path, FileState]) -> dict[str, str]:
    """For evidence: the name and digest of a file, and the digests of all others that were read with it."""
    found = {"file": path.name, "sha256": unchanged_digest(path, states[path])}
    for part in sorted(states.keys() - {path}):
        found[f"sha256 of {os.path.relpath(part, path.parent)}"] = unchanged_digest(part, states[part])
    return found


def read_with_origin(path: Path, read: Callable[[Path], Value]) -> tuple[Value, dict[str, str]]:
    """What one file holds, and its name and digest."""
    # What cannot be read says so itself.
    state = file_state(path) if path.is_file() else None
    found = read(path)
    return found, {} if state is None else origin_of(path, {path: state})
