"""Models that are larger than memory should be: each verb on a folder of shards, its memory and its time.

`python -m canon_benchmarks large [SIZE] [--folder FOLDER] [--keep]` makes a checkpoint in the shape of a Llama, random
numbers in bfloat16, attacks its MLPs, runs recover, register, locate and verify on the folders as a user would, and
writes docs/results/large.json and docs/results/large.md. SIZE is `small`, `1b` (2.2 GB) or `7b` (13.5 GB); about four
times as much is needed on the disk. The yardstick is reading and summing all shards once, in the same run.

Memory is what belongs to the process alone (`RssAnon` and `RssShmem` of /proc/PID/status, looked at every 10 ms). Pages
of mapped files are not counted: they hold what is on the disk anyway, and the system takes them back when it likes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
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
    readings: float
    """Seconds, in units of reading and summing all shards of the suspect once."""

    peak: int
    """Most bytes that belonged to the process alone."""

    exit_code: int
    said: str


def build(folder: Path, size: str, seed: int = 0) -> None:
    """Write a checkpoint with random numbers, tensor by tensor."""
    numbers, shard = SIZES[size]
    values: dict[str, Any] = {**_LLAMA, **numbers}
    skeleton = build_skeleton(Config(values, "transformers", "LlamaForCausalLM"), size)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: (tuple(tensor.shape), torch.bfloat16) for name, tensor in skeleton.state_dict().items()}
    with ShardWriter(folder, "model", shapes, shard) as writer:
        for name, (shape, _) in shapes.items():
            writer.add(name, _drawn(shape, generator))


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


def run(command: list[str], what: str, yardstick: float) -> Row:
    """Run a command of Canon in a process of its own, and watch its memory."""
    begun, peak = time.perf_counter(), 0
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen([sys.executable, "-m", "canon.cli", *command], stdout=said, stderr=said)
        while process.poll() is None:
            peak = max(peak, own_bytes(process.pid))
            time.sleep(EVERY)
        seconds = time.perf_counter() - begun
        said.seek(0)
        text = said.read().decode(errors="replace")[-600:]
    return Row(
        what, round(seconds, 2), round(seconds / yardstick, 2) if yardstick else 0.0, peak, process.returncode, text
    )


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
    yield "verify by reference", ["verify", suspect, "--reference", owner]
    yield "verify by key", ["verify", suspect, "--layout-key", key]


def measure(size: str, place: Path, only: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Make the folders and run everything; gives what is known after each command."""
    build(place / "owner", size)
    rows: list[Row] = []
    yardstick = 0.0
    for what, command in commands(place):
        if only and what not in only:
            continue
        rows.append(run(command, what, yardstick))
        sys.stdout.write(f"{rows[-1]}\n")
        sys.stdout.flush()
        if what == "attack":
            times = []
            for _ in range(3):
                begun = time.perf_counter()
                sum_all(place / "suspect")
                times.append(time.perf_counter() - begun)
            yardstick = sorted(times)[1]
            sys.stdout.write(f"reading and summing: {yardstick:.2f} s\n")
        shards = find_shards(place / "suspect", Limits())
        yield {
            "size": size,
            "bytes": sum(entry.size for _, entry in shards.entries.values()),
            "files": len(shards.files),
            "reading_seconds": round(yardstick, 3),
            "threads": torch.get_num_threads(),
            "rows": [asdict(row) for row in rows],
        }


def page(results: list[dict[str, Any]]) -> str:
    """The results for people."""
    lines = ["# Large models", "", "Made by `python -m canon_benchmarks large` from `large.json`; do not edit.", ""]
    lines += [
        "Checkpoints in the shape of a Llama with random numbers in bfloat16, in shards, their MLPs attacked "
        "(`canon attack --ratio 0.1`). Each command is a process of its own, started from the shell, on one thread. "
        "*Memory* is what belongs to the process alone; pages of mapped files are not counted. *Readings*: seconds, "
        "start of Python included, in units of reading and summing all shards of the suspect once in the same run. "
        "Commands that are not listed were not measured.",
        "",
    ]
    for result in results:
        lines += [
            f"## {result['size']}: {result['bytes'] / 1e9:.1f} GB in {result['files']} files",
            "",
            f"Reading and summing took {result['reading_seconds']:.1f} s.",
            "",
            "| Command | Seconds | Readings | Memory | Exit |",
            "|---|---|---|---|---|",
        ]
        for row in result["rows"]:
            memory = f"{row['peak'] / 1e9:.2f} GB"
            readings = f"{row['readings']:.1f}" if row["readings"] else "before it"
            lines.append(f"| {row['what']} | {row['seconds']:.1f} | {readings} | {memory} | {row['exit_code']} |")
        lines.append("")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure one size and write the results; other sizes stay as they were."""
    parser = argparse.ArgumentParser(prog="python -m canon_benchmarks large")
    parser.add_argument("size", nargs="?", default="1b", choices=SIZES)
    parser.add_argument("--folder", type=Path, help="where to work; default: a temporary folder")
    parser.add_argument("--keep", action="store_true", help="leave the folders that were made")
    parser.add_argument("--only", action="append", help="run only this command, and attack")
    given = parser.parse_args(arguments)
    place = Path(tempfile.mkdtemp(prefix="canon-large-", dir=given.folder))
    try:
        for result in measure(given.size, place, given.only):
            known = json.loads(RESULTS.read_text())["results"] if RESULTS.is_file() else []
            results = [*(old for old in known if old["size"] != given.size), result]
            results.sort(key=lambda one: list(SIZES).index(one["size"]))
            RESULTS.write_text(json.dumps({"environment": environment(), "results": results}, indent=1) + "\n")
            PAGE.write_text(page(results))
    finally:
        if not given.keep:
            shutil.rmtree(place, ignore_errors=True)
    return 0
