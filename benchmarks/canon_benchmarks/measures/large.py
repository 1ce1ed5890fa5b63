"""Models that are larger than memory should be: each verb on a folder of shards, its memory and its time.

A checkpoint in the shape of a Llama is made of random numbers in bfloat16 and its MLPs are attacked; then recover,
register, locate and verify run on the folders as a user would. What is made lies in the folder of trained models and
stays there; about four times a checkpoint is needed on the disk.

The yardstick is reading and summing once all shards that a command is given, taken right before and right after it.
Where other work runs beside it, seconds of the processor say more than seconds of the clock.

Memory is what belongs to the process alone (`RssAnon` and `RssShmem` of /proc/PID/status, looked at every 10 ms). Pages
of mapped files are not counted: they hold what is on the disk anyway, and the system takes them back when it likes.
"""

from __future__ import annotations

import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from canon._untrusted import Limits
from canon.bench.lab import Setup
from canon.bench.measures.sheet import Sheet
from canon.io.folder.build import build_skeleton
from canon.io.folder.config import Config
from canon.io.folder.shards import MappedTensors, find_shards
from canon.io.folder.writing import ShardWriter
from canon_benchmarks.cases import Large

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


def run(command: list[str], given: Sequence[Path]) -> dict[str, Any]:
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
    return {
        "seconds": round(seconds, 2),
        "processor": round(processor, 2),
        "readings": _ratio(seconds, before.seconds, after.seconds),
        "processor_readings": _ratio(processor, before.processor, after.processor),
        "peak": peak,
        "exit_code": process.returncode,
        "said": text,
    }


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


COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "attack": ("attack", "owner", "-o", "suspect", "--ratio", "0.1", "--seed", "1"),
    "inspect": ("inspect", "suspect"),
    "register": ("register", "owner", "-o", "owner.key"),
    "recover": ("recover", "suspect", "-o", "recovered"),
    "locate by key": ("locate", "suspect", "--layout-key", "owner.key"),
    "locate by reference": ("locate", "suspect", "--reference", "owner"),
    "verify by reference": ("verify", "suspect", "--reference", "owner", "-o", "by_reference.json"),
    "verify by key": ("verify", "suspect", "--layout-key", "owner.key", "-o", "by_key.json"),
}
"""What is run, in this order; words that are files lie in one folder, and those behind `-o` are made anew."""

FILES: Final = ("owner", "suspect", "recovered", "owner.key", "by_reference.json", "by_key.json")


def measure_large(case: Large, setup: Setup, sheet: Sheet) -> None:
    """Make what the command is given, where an earlier case has not, and run it."""
    place = setup.cache / "large" / case.size
    place.mkdir(parents=True, exist_ok=True)
    if not (place / "owner").exists():
        build(place / "owner", case.size)
    for made, maker in (("suspect", "attack"), ("owner.key", "register")):
        if made in COMMANDS[case.command] and made != _made(case.command) and not (place / made).exists():
            run(_in(place, maker), [])
    _remove(place / _made(case.command))
    given = [place / name for name in ("owner", "suspect") if name in COMMANDS[case.command]]
    found = run(_in(place, case.command), [path for path in given if path.name != _made(case.command)])
    found["said"] = found["said"].replace(f"{place}/", "")  # a record names files, not where they lay
    shards = find_shards(place / "suspect", Limits())
    sheet.note(
        bytes=sum(entry.size for _, entry in shards.entries.values()), files=len(shards.files),
        threads=torch.get_num_threads(), **found, good=found["exit_code"] == 0,
    )  # fmt: skip
    _remove(place / "recovered")


def _in(place: Path, command: str) -> list[str]:
    """The words of a command, files in their folder."""
    return [str(place / word) if word in FILES else word for word in COMMANDS[command]]


def _made(command: str) -> str:
    """What a command writes; empty: nothing."""
    words = COMMANDS[command]
    return words[words.index("-o") + 1] if "-o" in words else ""


def _remove(path: Path) -> None:
    if path.is_dir() and path.name in FILES:
        shutil.rmtree(path)
    elif path.is_file():
        path.unlink()
