"""Models that are larger than memory should be: each verb on a folder of shards, its memory and its time.

`python -m canon_benchmarks large [SIZE] [--folder FOLDER] [--only COMMAND]` makes a checkpoint in the shape of a Llama,
random numbers in bfloat16, attacks its MLPs, runs recover, register, locate and verify on the folders as a user would,
and writes docs/results/large.json and docs/results/large.md. SIZE is `small`, `1b` (2.2 GB) or `7b` (13.5 GB); about
four times as much is needed on the disk. With `--folder`, what lies there already is used and everything stays; with
`--only`, rows of other commands stay as they were measured.

The yardstick is reading and summing once all shards that a command is given, taken right before and right after it.
Where other work runs beside it, seconds of the processor say more than seconds of the clock.

Memory is what belongs to the process alone (`RssAnon` and `RssShmem` of /proc/PID/status, looked at every 10 ms). Pages
of mapped files are not counted: they hold what is on the disk anyway, and the system takes them back when it likes.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from canon._environment import environment
from canon._untrusted import Limits
from canon.io.folder.build import build_skeleton
from canon.io.folder.config import Config
from canon.io.folder.shards import MappedTensors, find_shards
from canon.io.folder.writing import ShardWriter

RESULTS: Final = Path("docs/results/large.json")
PAGE: Final = Path("docs/results/large.md")
EVERY: Final = 0.01

DISTINCT: Final = 4
"""Blocks whose numbers are drawn; the others hold the same ones again, stored in full."""

_LLAMA: Final = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "dtype": "bfloat16",
    "tie_word_embeddings": False, "max_position_embeddings": 2048,
}  # fmt: skip
SIZES: Final[dict[str, tuple[dict[str, int], int]]] = {
    "small": ({"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 4, "num_attention_heads": 4,
               "num_key_value_heads": 2, "vocab_size": 300}, 100_000),
    "1b": ({"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
            "num_key_value_heads": 4, "vocab_size": 32000}, 256 << 20),
    "7b": ({"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 32, "vocab_size": 32000}, 2 << 30),
}  # fmt: skip
"""By name: the config, and the bytes of a shard."""


@dataclass(frozen=True)
class Row:
    """One command."""

    what: str
    seconds: float
    processor: float
    """Seconds of the processor."""

    readings: float
    """Seconds, in units of reading and summing once all shards that it was given."""

    processor_readings: float
    """The same in seconds of the processor."""

    peak: int
    """Most bytes that belonged to the process alone."""

    exit_code: int
    said: str


@dataclass(frozen=True)
class Reading:
    """How long reading and summing took."""

    seconds: float
    processor: float

    @staticmethod
    def of(folders: Sequence[Path]) -> Reading:
        """Read and sum all shards of some folders once."""
        begun, used = time.perf_counter(), time.process_time()
        for folder in folders:
            sum_all(folder)
        return Reading(time.perf_counter() - begun, time.process_time() - used)


def build(folder: Path, size: str, seed: int = 0) -> None:
    """Write a checkpoint with random numbers, tensor by tensor."""
    numbers, shard = SIZES[size]
    values: dict[str, Any] = {**_LLAMA, **numbers}
    skeleton = build_skeleton(Config(values, "transformers", "LlamaForCausalLM"), size)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")
    generator = torch.Generator().manual_seed(seed)
    drawn: dict[str, Tensor] = {}
    shapes = {name: (tuple(tensor.shape), torch.bfloat16) for name, tensor in skeleton.state_dict().items()}
    with ShardWriter(folder, "model", shapes, shard) as writer:
        for name, (shape, _) in shapes.items():
            found = re.search(r"\.layers\.(\d+)\.", name)
            if found is None:
                writer.add(name, _drawn(shape, generator))
                continue
            again = name.replace(found[0], f".layers.{int(found[1]) % DISTINCT}.")
            if again not in drawn:
                drawn[again] = _drawn(shape, generator)
            writer.add(name, drawn[again])


def _drawn(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    made = torch.empty(shape, dtype=torch.bfloat16)
    if len(shape) == 1:
        return made.uniform_(0.5, 1.5, generator=generator)
    for rows in made.split(1024):
        rows.copy_(torch.randn(rows.shape, generator=generator) / shape[-1] ** 0.5)
    return made


def sum_all(folder: Path) -> float:
    """Read all shards of a folder once and sum what they hold."""
    tensors = MappedTensors(find_shards(folder, Limits()))
    return sum(float(tensors[name].sum(dtype=torch.float32)) for name in tensors)


def run(command: list[str], what: str, given: Sequence[Path]) -> Row:
    """Run a command of Canon in a process of its own, and watch its memory; read what it was given before and after."""
    before, used = Reading.of(given), resource.getrusage(resource.RUSAGE_CHILDREN)
    begun, peak = time.perf_counter(), 0
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen([sys.executable, "-m", "canon.cli", *command], stdout=said, stderr=said)
        while process.poll() is None:
            peak = max(peak, own_bytes(process.pid))
            time.sleep(EVERY)
        seconds = time.perf_counter() - begun
        said.seek(0)
        text = said.read().decode(errors="replace")[-600:]
    done, after = resource.getrusage(resource.RUSAGE_CHILDREN), Reading.of(given)
    processor = done.ru_utime + done.ru_stime - used.ru_utime - used.ru_stime
    return Row(
        what,
        round(seconds, 2),
        round(processor, 2),
        _ratio(seconds, before.seconds, after.seconds),
        _ratio(processor, before.processor, after.processor),
        peak,
        process.returncode,
        text,
    )


def _ratio(taken: float, *yardstick: float) -> float:
    return round(taken / (sum(yardstick) / len(yardstick)), 2)


def own_bytes(process: int) -> int:
    """Bytes of memory that belong to a process alone."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return sum(int(fields.get(name, "0 kB").split()[0]) for name in ("RssAnon", "RssShmem")) * 1024


def commands(place: Path) -> Iterator[tuple[str, list[str]]]:
    """What is run, in order."""
    owner, suspect, key = (str(place / name) for name in ("owner", "suspect", "owner.key"))
    yield "attack", ["attack", owner, "-o", suspect, "--ratio", "0.1", "--seed", "1"]
    yield "inspect", ["inspect", suspect]
    yield "register", ["register", owner, "-o", key]
    yield "recover", ["recover", suspect, "-o", str(place / "recovered")]
    yield "locate by key", ["locate", suspect, "--layout-key", key]
    yield "locate by reference", ["locate", suspect, "--reference", owner]
    yield "verify by reference", ["verify", suspect, "--reference", owner, "-o", str(place / "by_reference.json")]
    yield "verify by key", ["verify", suspect, "--layout-key", key, "-o", str(place / "by_key.json")]


def measure(size: str, place: Path, only: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Make the folders and run everything; gives what is known after each command."""
    if not (place / "owner").exists():
        build(place / "owner", size)
    for what, command in commands(place):
        if only and what not in only and not (what == "attack" and not (place / "suspect").exists()):
            continue
        _remove(place, command)
        read = [word for before, word in pairwise(command) if before != "-o"]
        row = run(command, what, [place / name for name in ("owner", "suspect") if str(place / name) in read])
        sys.stdout.write(f"{row}\n")
        sys.stdout.flush()
        shards = find_shards(place / "suspect", Limits())
        yield {
            "size": size,
            "bytes": sum(entry.size for _, entry in shards.entries.values()),
            "files": len(shards.files),
            "threads": torch.get_num_threads(),
            "row": asdict(row),
        }
        shutil.rmtree(place / "recovered", ignore_errors=True)


def _remove(place: Path, command: Sequence[str]) -> None:
    """Take away what a command of an earlier run has written."""
    for word in command[2:]:
        if Path(word).parent == place and command[command.index(word) - 1] == "-o":
            shutil.rmtree(word) if Path(word).is_dir() else Path(word).unlink(missing_ok=True)


def page(results: list[dict[str, Any]]) -> str:
    """The results for people."""
    lines = ["# Large models", "", "Made by `python -m canon_benchmarks large` from `large.json`; do not edit.", ""]
    lines += [
        "Checkpoints in the shape of a Llama with random numbers in bfloat16, in shards, their MLPs attacked (`canon "
        f"attack --ratio 0.1`); {DISTINCT} blocks are drawn, and the others hold these again, stored in full. "
        "Each command is a process of its own, started from the shell, on one thread. *Memory* is what belongs to the "
        "process alone; pages of mapped files are not counted. *Readings*: seconds, start of Python included, in units "
        "of reading and summing once all shards that the command was given, taken right before and right after it. "
        "*Processor* is the same in seconds of the processor, for command and reading: where other work runs on the "
        "machine, as it did here, that is the fairer number. *One reading* is what that was, in seconds of the "
        "processor: it is not the same in every row, since summing makes copies in float32, for which the system has "
        "large pages to give or not. Rows "
        "were measured one by one, some before the last changes of the code; commands that are not listed were not.",
        "",
    ]
    for result in results:
        lines += [
            f"## {result['size']}: {result['bytes'] / 1e9:.1f} GB in {result['files']} files",
            "",
            "| Command | Seconds | of the processor | One reading | Readings | Processor | Memory | Exit |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for row in result["rows"]:
            lines.append(
                f"| {row['what']} | {row['seconds']:.1f} | {row['processor']:.1f} "
                f"| {row['processor'] / row['processor_readings']:.1f} | {row['readings']:.1f} | "
                f"{row['processor_readings']:.1f} | {row['peak'] / 1e9:.2f} GB | {row['exit_code']} |"
            )
        lines.append("")
    return "\n".join(lines)


def _record(found: dict[str, Any]) -> None:
    """Put one row into the results; all others stay."""
    known = json.loads(RESULTS.read_text())["results"] if RESULTS.is_file() else []
    results = {old["size"]: old for old in known}
    row = found.pop("row")
    rows = {old["what"]: old for old in results.get(found["size"], {}).get("rows", [])}
    rows[row["what"]] = row
    order = [what for what, _ in commands(Path())]
    results[found["size"]] = {**found, "rows": [rows[what] for what in order if what in rows]}
    ordered = [results[size] for size in SIZES if size in results]
    RESULTS.write_text(json.dumps({"environment": environment(), "results": ordered}, indent=1) + "\n")
    PAGE.write_text(page(ordered))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure one size and write the results; other sizes stay as they were."""
    parser = argparse.ArgumentParser(prog="python -m canon_benchmarks large")
    parser.add_argument("size", nargs="?", default="1b", choices=SIZES)
    parser.add_argument("--folder", type=Path, help="where to work, and leave what was made; default: a temporary one")
    parser.add_argument("--only", action="append", help="run only this command, and attack if nothing was attacked yet")
    given = parser.parse_args(arguments)
    place = Path(tempfile.mkdtemp(prefix="canon-large-")) if given.folder is None else given.folder
    try:
        for found in measure(given.size, place, given.only):
            _record(found)
    finally:
        if given.folder is None:
            shutil.rmtree(place, ignore_errors=True)
    return 0
