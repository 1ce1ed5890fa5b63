"""Weights of a folder, written tensor by tensor and read again."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from canon._untrusted import Limits
from canon.io.folder.shards import MappedTensors, find_shards
from canon.io.folder.writing import ShardWriter, shapes_of

TENSORS = {f"layer.{n}": torch.full((n + 1, 10), float(n), dtype=torch.bfloat16) for n in range(12)}


@pytest.mark.parametrize("most", [1, 200, 700, 1 << 20])
def test_what_is_written_is_read(tmp_path: Path, most: int) -> None:
    with ShardWriter(tmp_path, "model", shapes_of(TENSORS), most) as writer:
        for name, tensor in TENSORS.items():
            writer.add(name, tensor)
    shards = find_shards(tmp_path, Limits())
    read = MappedTensors(shards)
    assert list(read) == list(TENSORS)
    assert all(torch.equal(read[name], tensor) for name, tensor in TENSORS.items())
    sizes = [sum(t.numel() * 2 for t in load_file(path).values()) for path in shards.files]
    largest = max(t.numel() * 2 for t in TENSORS.values())
    assert max(sizes) <= max(most, largest)
    assert all(a + b > most for a, b in pairwise(sizes))  # no file could have taken the next


def test_one_file_needs_no_index(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, "model", shapes_of(TENSORS), 1 << 20, indexed=False) as writer:
        for name, tensor in TENSORS.items():
            writer.add(name, tensor)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_an_interrupted_writer_leaves_no_index(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, "model", shapes_of(TENSORS), 200)
    writer.add("layer.0", TENSORS["layer.0"])
    writer.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert not [*tmp_path.glob("*.json")]


def test_the_index_says_how_much_there_is(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, "model", shapes_of(TENSORS), 300) as writer:
        for name, tensor in TENSORS.items():
            writer.add(name, tensor)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(t.numel() * 2 for t in TENSORS.values())
