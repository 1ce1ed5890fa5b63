"""Watermark keys made by hand to do harm, and damaged ones by the thousand.

`python -m tests.watermarks.hostile --count 10000 --out docs/results/fuzz_keys.json` reads damaged keys of all schemes
as a verification does: load, extract, controls. Nothing but a CanonError may come of it, within ten seconds and a
gibibyte.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from canon import watermarks
from canon.watermarks import Message, load_key
from tests.io.fuzz import MEMORY, SECONDS, Outcome, Summary, Watch, observe
from tests.io.mutations import blindly, mutate
from tests.liars.victims import images, victim

Note = dict[str, Any]
Entries = dict[str, tuple[str, list[Any], bytes]]
"""Tensors of a file by name: dtype, shape, bytes."""

SCHEMES = watermarks.names()
FLOATS = (0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e30, -3e38, 1e-45, 1.0)


@cache
def model() -> torch.nn.Module:
    """What all keys are read from."""
    return victim(1)


@cache
def good(scheme: str) -> bytes:
    """A key as the scheme writes it."""
    key = watermarks.get(scheme).draw_key(model(), images(), message=Message.random(0, 64), seed=0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "key"
        key.save(path)
        return path.read_bytes()


def taken_apart(data: bytes) -> tuple[Note, Entries]:
    """The note and the tensors of a key file."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    note = json.loads(header.pop("__metadata__")["canon"])
    rest = data[8 + size :]
    entries = {
        name: (entry["dtype"], entry["shape"], rest[slice(*entry["data_offsets"])]) for name, entry in header.items()
    }
    return note, entries


def put_together(note: Note | str, entries: Entries) -> bytes:
    """A file whose offsets are right, whatever else is wrong; a note that is a text is written as it is."""
    header: dict[str, Any] = {"__metadata__": {"canon": note if isinstance(note, str) else json.dumps(note)}}
    rest = b""
    for name, (dtype, shape, numbers) in entries.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(rest), len(rest) + len(numbers)]}
        rest += numbers
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + rest


def damaged(scheme: str, index: int, seed: int = 0) -> bytes:
    """The damaged key of that number: half are damaged like any file, half in numbers, dtypes and shapes alone."""
    draw = random.Random(f"{seed}:{scheme}:{index}")
    data = good(scheme)
    if draw.random() < 0.5:
        return mutate(data, "watermark key", draw)
    note, entries = taken_apart(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        if not entries:
            return put_together(blindly(json.dumps(note).encode(), draw).decode("utf-8", "replace"), entries)
        name = draw.choice(list(entries))
        dtype, shape, numbers = entries[name]
        match draw.randrange(5):
            case 0:
                dtype, numbers = draw.choice((("F64", numbers * 2), ("I32", numbers), ("U32", numbers)))
            case 1:
                place = 4 * draw.randrange(max(1, len(numbers) // 4))
                numbers = numbers[:place] + struct.pack("<f", draw.choice(FLOATS)) + numbers[place + 4 :]
            case 2:
                numbers = struct.pack("<f", draw.choice(FLOATS)) * (len(numbers) // 4)
            case 3:
                shape = [len(numbers) // 4] if draw.random() < 0.5 else shape[::-1]
            case _:
                other = draw.choice(list(entries))
                dtype, shape, numbers = entries[other]
        entries[name] = (dtype, shape, numbers)
    return put_together(note, entries)


def use(_: str, path: Path) -> None:
    """Read a key as a verification does."""
    key = load_key(path)
    if key.scheme not in SCHEMES:
        return
    scheme = watermarks.get(key.scheme)
    scheme.extract(model(), key)
    json.dumps(scheme.controls(model(), key, 6, seed=0).to_dict(), allow_nan=False)


def fuzz(indices: range, folder: Path) -> dict[str, Summary]:
    """Use damaged keys, scheme by scheme in turn, and note what happens."""
    found = {scheme: Summary(scheme) for scheme in SCHEMES}
    path = folder / "key"
    for scheme in SCHEMES:  # imports and caches are not the key's
        path.write_bytes(good(scheme))
        use(scheme, path)
    watch = Watch()
    for index in indices:
        scheme = SCHEMES[index % len(SCHEMES)]
        path.write_bytes(damaged(scheme, index))
        outcome: Outcome = observe(scheme, path, index, watch, use)
        found[scheme].add(outcome)
    return found


def main() -> None:
    """Fuzz, print a table, and end with 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=900)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = fuzz(range(options.count), Path(folder))
    limits = {"seconds": SECONDS, "memory_mib": MEMORY >> 20}
    document = {"seed": 0, "limits": limits, "schemes": {name: summary.row() for name, summary in found.items()}}
    print(json.dumps(document, indent=2))
    faults = [fault for summary in found.values() for fault in summary.faults]
    print(*faults[:5], sep="\n")
    if options.out is not None:
        options.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
