"""Folders that are larger than memory should be: what a verb takes does not grow with the number of blocks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

FEW, MANY = 3, 13
MOST = {"register": 0.5, "recover": 0.5, "locate by key": 0.5, "locate by reference": 1.0}
"""What docs/transformers.md promises: the part of what more blocks add to a folder that a verb takes in addition.

Whoever holds a model in memory takes 1 at least, and 2 as a copy in float32."""

KEEPS_NOTHING = {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "262144"}
"""What is given back to the heap goes back to the system, and is not counted."""

MEASURED = """
import json, sys, threading, time
from pathlib import Path

from canon.graph import mapped, widening
from canon.io.folder import shards

streamed = sys.argv[3] == "streamed"
widening.LAYER_BY_LAYER = shards.LAYER_BY_LAYER = 1 << (20 if streamed else 60)
mapped.LARGE = 1 << (15 if streamed else 60)

import canon
from canon.io.loading import read_model
from canon_benchmarks.measures import large

place, blocks = Path(sys.argv[1]), int(sys.argv[2])
numbers = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": blocks, "num_attention_heads": 8,
           "num_key_value_heads": 2, "vocab_size": 2000}
large.SIZES["test"] = (numbers, 16 << 20)
large.build(place / "owner", "test")
owner = read_model(place / "owner")
attacked = canon.attack(owner.model, owner.example, ops=["nso_split"], ratio=0.05, seed=0)
canon.save(attacked.model, place / "suspect")
suspect = read_model(place / "suspect")
key = canon.register(owner.model, owner.example)
verbs = {
    "register": lambda: canon.register(owner.model, owner.example),
    "recover": lambda: canon.recover(suspect.model, suspect.example),
    "locate by key": lambda: canon.locate(suspect.model, key, suspect.example),
    "locate by reference": lambda: canon.locate(suspect.model, owner.model, suspect.example),
}
peak, going = 0, True


def watch():
    global peak
    while going:
        peak = max(peak, large.own_bytes("self"))
        time.sleep(0.002)


threading.Thread(target=watch, daemon=True).start()
found = {}
for name, verb in verbs.items():
    peak = 0
    verb()
    found[name] = peak
size = sum(file.stat().st_size for file in (place / "suspect").glob("*.safetensors"))
print(json.dumps({"size": size, "peaks": found}))
"""


def grown(place: Path, path: str) -> dict[str, float]:
    """By verb: what it takes in addition, by what more blocks add to the folder."""
    found = []
    for blocks in (FEW, MANY):
        here = place / str(blocks)
        here.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, str(here), str(blocks), path],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **KEEPS_NOTHING},
        )
        assert done.returncode == 0, done.stderr[-2000:]
        found.append(json.loads(done.stdout.splitlines()[-1]))
    more = found[1]["size"] - found[0]["size"]
    assert more > 100 << 20
    return {verb: (found[1]["peaks"][verb] - found[0]["peaks"][verb]) / more for verb in MOST}


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_blocks(tmp_path: Path) -> None:
    taken = grown(tmp_path, "streamed")
    assert all(taken[verb] < most for verb, most in MOST.items()), taken


@pytest.mark.slow
def test_models_that_are_held_in_memory_are_beyond_these_limits(tmp_path: Path) -> None:
    taken = grown(tmp_path, "held")
    assert all(taken[verb] > most for verb, most in MOST.items()), taken
