"""Throw damaged files at the readers: `python -m tests.io.fuzz --count 10000 --out summary.json`.

Every file is made from a seed, so a failure can be made again: `python -m tests.io.fuzz --only 'onnx:4711'`. Files are
read in worker processes that are watched: a reader may refuse a file with a CanonError and do nothing else out of the
ordinary. It may not raise anything else, take long, take memory, open a file for writing, start a process or connect.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.io.corpus import KINDS, make_corpus, read
from tests.io.mutations import mutate

SECONDS = 10.0
"""Longest time that reading a file may take."""

BUSY = 6
"""A reader that waits for the processor or the disk may take as many times longer by the clock."""

MEMORY = 1 << 30
"""Most memory above the size of the file."""

ADDRESS_SPACE = 6 << 30
"""Room of a worker: it must survive what it is not supposed to need."""

_WRITING = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "shutil.rmtree")
_LEAVING = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect", "socket.bind")


Reader = Callable[[str, Path], None]


@dataclass
class Outcome:
    """What happened to one file."""

    index: int
    refused: bool = False
    seconds: float = 0.0
    memory: int = 0
    """Bytes above the size of the file."""

    fault: str | None = None


class Watch:
    """Notes what a reader must not do."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[str] = []
        sys.addaudithook(self.hook)

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            mode, flags = args[1], args[2] if isinstance(args[2], int) else 0
            if any(c in str(mode or "") for c in "wax+") or flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self.seen.append(f"opened {args[0]!r} for writing")
        elif event.startswith((*_WRITING, *_LEAVING)):
            self.seen.append(f"{event}{args!r:.200}")


class Late(BaseException):
    """Time is up."""


def _work(corpus: Path, seed: int, tasks: Connection) -> None:
    """A worker: is told kinds and numbers of files, answers with outcomes."""
    import torch

    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=corpus.parent))
    shutil.copytree(corpus, folder, dirs_exist_ok=True)
    os.chdir(folder)
    for kind, name in KINDS.items():  # imports and caches are not the file's
        read(kind, folder / name)
    watch = Watch()
    tasks.send("ready")
    while (task := tasks.recv()) is not None:
        kind, index = task
        path = folder / f"given-{KINDS[kind]}"
        path.write_bytes(damaged_file(kind, corpus, seed, index))
        tasks.send(observe(kind, path, index, watch))
        path.unlink()
    shutil.rmtree(folder)


def damaged_file(kind: str, corpus: Path, seed: int, index: int) -> bytes:
    """The file of that number."""
    return mutate((corpus / KINDS[kind]).read_bytes(), kind, random.Random(f"{seed}:{kind}:{index}"))


def observe(
    kind: str, path: Path, index: int, watch: Watch, reader: Reader = read, seconds: float = SECONDS, most: int = MEMORY
) -> Outcome:
    """Read a file and note what happens."""
    from canon.errors import CanonError

    outcome = Outcome(index)
    begun, used = time.perf_counter(), time.process_time()

    def late(*_: object) -> None:
        if time.process_time() - used >= seconds or time.perf_counter() - begun >= BUSY * seconds:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise Late

    signal.signal(signal.SIGALRM, late)
    files = set(os.listdir(path.parent))
    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory starts anew
    before = _memory("VmHWM")
    watch.seen.clear()
    sys.dont_write_bytecode = True  # where a module is first imported now, that is not the file's doing
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    watch.on = True
    try:
        reader(kind, path)
    except CanonError:
        outcome.refused = True
    except Late:
        outcome.fault = f"took longer than {seconds} s"
    except BaseException:
        outcome.fault = traceback.format_exc()
    finally:
        watch.on = sys.dont_write_bytecode = False
        signal.setitimer(signal.ITIMER_REAL, 0)
    outcome.seconds = time.perf_counter() - begun
    outcome.memory = max(0, _memory("VmHWM") - before - path.stat().st_size)
    if outcome.memory > most:
        outcome.fault = outcome.fault or f"took {outcome.memory >> 20} MiB"
    if set(os.listdir(path.parent)) != files or watch.seen:
        outcome.fault = outcome.fault or f"did more than reading: {watch.seen[:3]}"
    return outcome


def _memory(field_name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field_name):
            return int(line.split()[1]) << 10
    raise OSError(f"the system does not tell {field_name}")


@dataclass
class Summary:
    """What happened to all files of one kind."""

    kind: str
    files: int = 0
    refused: int = 0
    seconds: float = 0.0
    """Longest time for one."""

    memory: int = 0
    """Most memory for one, above the size of the file."""

    faults: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count one more."""
        self.files += 1
        self.refused += outcome.refused
        self.seconds = max(self.seconds, outcome.seconds)
        self.memory = max(self.memory, outcome.memory)
        if outcome.fault is not None:
            self.faults.append(f"{self.kind}:{outcome.index}: {outcome.fault}")

    def row(self) -> dict[str, Any]:
        """For the table of results."""
        return {
            "files": self.files,
            "refused": self.refused,
            "read": self.files - self.refused - len(self.faults),
            "faults": len(self.faults),
            "longest_seconds": round(self.seconds, 3),
            "most_memory_mib": round(self.memory / (1 << 20), 1),
        }


def fuzz(corpus: Path, tasks: Iterable[tuple[str, int]], seed: int = 0) -> dict[str, Summary]:
    """Read damaged files in a worker; a worker that dies or hangs is a fault and is replaced."""
    found: dict[str, Summary] = {}
    context = multiprocessing.get_context("spawn")
    queue: Iterator[tuple[str, int]] = iter(tasks)
    task = next(queue, None)
    while task is not None:
        ours, theirs = context.Pipe()
        worker = context.Process(target=_work, args=(corpus, seed, theirs), daemon=True)
        worker.start()
        theirs.close()
        if not ours.poll(300) or ours.recv() != "ready":
            raise RuntimeError("a worker does not start")
        try:
            while task is not None:
                kind, index = task
                ours.send(task)
                hangs = not ours.poll(120)
                outcome = Outcome(index, seconds=120, fault="hangs where no signal reaches") if hangs else ours.recv()
                found.setdefault(kind, Summary(kind)).add(outcome)
                task = next(queue, None)
                if hangs:
                    break
            else:
                ours.send(None)
                worker.join(30)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            worker.join(30)
            outcome = Outcome(index, fault=f"the process died with status {worker.exitcode}")
            found.setdefault(kind, Summary(kind)).add(outcome)
            task = next(queue, None)
        finally:
            if worker.is_alive():
                worker.kill()
    return found


def table(document: dict[str, Any]) -> str:
    """The results as Markdown, for docs/files.md."""
    lines = ["| Format | Files | Refused | Read | Faults | Longest | Most memory |", "|---|---|---|---|---|---|---|"]
    for kind, row in document["kinds"].items():
        counts = " | ".join(f"{row[name]:,}" for name in ("files", "refused", "read", "faults"))
        lines.append(f"| {kind} | {counts} | {row['longest_seconds']} s | {row['most_memory_mib']} MiB |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Fuzz all kinds, print a table, and end with 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="files of every kind")
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="only this kind; repeatable")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", metavar="KIND:NUMBER", help="one file, in this process")
    parser.add_argument("--out", type=Path, help="where to write the table, as JSON")
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        make_corpus(corpus)
        if options.only:
            kind, _, number = options.only.rpartition(":")
            path = corpus / f"given-{KINDS[kind]}"
            path.write_bytes(damaged_file(kind, corpus, options.seed, int(number)))
            read(kind, path)
            return
        rows = {}
        for kind in options.kind or KINDS:
            summary = fuzz(corpus, ((kind, index) for index in range(options.count)), options.seed)[kind]
            rows[kind] = summary.row()
            print(kind, json.dumps(rows[kind]), flush=True)
            for fault in summary.faults[:5]:
                print(fault, flush=True)
            failed = failed or bool(summary.faults)
    if options.out is not None:
        limits = {"seconds": SECONDS, "memory_mib": MEMORY >> 20}
        document = {"seed": options.seed, "limits": limits, "kinds": rows}
        options.out.write_text(json.dumps(document, indent=2) + "\n")
        print(table(document))
    sys.exit(failed)


if __name__ == "__main__":
    main()
