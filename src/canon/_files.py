"""Write files whole or not at all, and never over what was read.

A result that took an hour is lost twice when it overwrites another one and is then cut off half way. Everything Canon
writes for a user goes through `atomic_path`. It does not lock: of two writers to one path, the last to finish wins.
Folders of many large files go through `resumable_folder`, so that files that were finished are not written again.

What is read may be an exhibit. `check_outputs` refuses, before any work, an output that is an input under whatever
name, two outputs that are one file, and a place that cannot be written.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from canon.errors import CanonError

WRITTEN: list[Path] = []
"""Files that this process has written, for who must say what an interrupted command has left."""

UNFINISHED: list[Path] = []
"""Folders that this process has begun, and that the same command goes on with."""


class OutputError(CanonError):
    """An output cannot be written where it was asked for."""


def check_output(target: Path, *, force: bool = False) -> None:
    """Raise `OutputError` if `target` cannot take a file; call it before the long work, not after.

    >>> check_output(Path("no-such-folder") / "model.safetensors")
    Traceback (most recent call last):
    ...
    canon._files.OutputError: the folder of the output does not exist (at no-such-folder). Create it first
    """
    folder = target.parent
    if not folder.is_dir():
        raise OutputError("the folder of the output does not exist", where=str(folder), hint="Create it first")
    try:
        found = os.stat(target)
    except FileNotFoundError:
        found = None
    except OSError as error:
        raise OutputError(f"the output cannot be written: {error.strerror}", where=str(target)) from error
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise OutputError("the output is a folder, not a file", where=str(target), hint="Name a file in it")
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise OutputError("the output is no ordinary file", where=str(target), hint="Name a file")
    if found is not None and not force:
        raise OutputError("the output exists already", where=str(target), hint="Name another, or use --force")
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        what = f"the folder of the output cannot be written: {error.strerror}"
        raise OutputError(what, where=str(folder), hint="Name another one") from error


def check_outputs(
    outputs: Iterable[str | os.PathLike[str] | None], inputs: Iterable[object] = (), *, force: bool = False
) -> None:
    """Raise `OutputError` unless all outputs can be written and none of them is an input, or another output.

    Args:
        outputs: The files that will be written; None for one that was not asked for.
        inputs: What will be read: paths, also of folders, whose files then count. Whatever is no file does not count.
        force: Whether outputs may exist. An output that is an input is refused all the same.

    >>> check_outputs(["page.html", "./page.html"])
    Traceback (most recent call last):
    ...
    canon._files.OutputError: two outputs are one file (at page.html). Name another file
    """
    seen: list[Path] = []
    read = [*_files_of(inputs)]
    for target in (Path(output) for output in outputs if output is not None):
        for path in read:
            if _same(target, path):
                raise OutputError(
                    f"the output is an input as well: {path}",
                    where=str(target),
                    hint="Inputs are never changed; name another",
                )
        for path in seen:
            if _same(target, path):
                raise OutputError("two outputs are one file", where=str(target), hint="Name another file")
        seen.append(target)
        check_output(target, force=force)


def _files_of(inputs: Iterable[object]) -> Iterator[Path]:
    for given in inputs:
        if not isinstance(given, str | os.PathLike):
            continue
        path = Path(given)
        try:
            if path.is_dir():
                yield from (one for one in path.rglob("*") if one.is_file())
            elif path.exists() or path.is_symlink():
                yield path
        except (OSError, ValueError):
            continue


def _same(first: Path, second: Path) -> bool:
    """Whether two paths are one file: by their names, through links, or as hard links of each other."""
    if os.path.realpath(first) == os.path.realpath(second):
        return True
    # The name itself is what is replaced, so a link counts as well as what it leads to.
    names = [os.path.join(os.path.realpath(path.parent), path.name) for path in (first, second)]
    if names[0] == names[1]:
        return True
    try:
        return os.path.samefile(first, second)
    except OSError:
        return False


@contextmanager
def atomic_path(target: str | os.PathLike[str], *, force: bool = False, size: int = 0) -> Iterator[Path]:
    """Give a path to write to, which becomes `target` when the block ends well and vanishes when it does not.

    The path has the name of `target`, in a temporary folder beside it, so that writers who look at the suffix see the
    right one and the move never crosses file systems. An existing `target` is replaced only with `force`. Nothing is
    begun where there is no room for `size` bytes: writers of large files end in many ways when a disk is full.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_path(Path(folder) / "note.txt") as path:
    ...         _ = path.write_text("whole")
    ...     (Path(folder) / "note.txt").read_text()
    'whole'
    """
    target = Path(target)
    check_output(target, force=force)
    if shutil.disk_usage(target.parent).free < size:
        where = str(target.parent)
        raise OutputError(f"there is no room for {size:,} bytes", where=where, hint="Make room, or name another folder")
    with tempfile.TemporaryDirectory(prefix=".canon-", dir=target.parent) as folder:
        path = Path(folder) / target.name
        yield path
        # Another process may have written it since.
        check_output(target, force=force)
        os.replace(path, target)
        WRITTEN.append(target)


@contextmanager
def resumable_folder(target: str | os.PathLike[str], work: str) -> Iterator[Path]:
    """Give a folder to write to, which becomes `target` when the block ends well and stays when it does not.

    Who asks again for the same target and work is given it with all that is in it: whole files, if whoever writes them
    gives them their names when they are whole.

    Args:
        target: Where the folder shall be; there must be nothing yet.
        work: A digest of all that decides what is written.

    Raises:
        OutputError: There is something at that place, or another process is at the same work.
    """
    target = Path(target)
    check_output(target)
    around = target.parent / f".canon-{work[:32]}"
    around.mkdir(mode=0o700, exist_ok=True)
    found = os.lstat(around)
    if not stat.S_ISDIR(found.st_mode) or (hasattr(os, "getuid") and found.st_uid != os.getuid()):
        raise OutputError("what another user has begun is not gone on with", where=str(around), hint="Name another one")
    place = around / target.name
    UNFINISHED.append(around)
    with _alone_in(around):
        place.mkdir(exist_ok=True)
        yield place
        check_output(target)
        os.replace(place, target)
        around.rmdir()
    UNFINISHED.remove(around)
    WRITTEN.append(target)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder for as long as this one lives."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OutputError("another process is writing the same", where=str(folder), hint="Wait for it") from error
        yield
    finally:
        os.close(handle)


def write_text(target: str | os.PathLike[str], text: str, *, force: bool = False) -> None:
    """Write `text` as UTF-8 to `target`, atomically."""
    with atomic_path(target, force=force) as path:
        path.write_text(text, encoding="utf-8")
