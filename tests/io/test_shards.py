"""Weights of a folder, written tensor by tensor and read again."""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from canon._untrusted import Limits
from canon.attacks import attack
from canon.graph import mapped, widening
from canon.io.folder import shards
from canon.io.folder.shards import MappedTensors, find_shards
from canon.io.folder.writing import ShardWriter, shapes_of
from canon.io.loading import read_model
from canon.recovery import recover
from canon.verify import function
from canon.zoo.compatibility import import_transformers

TENSORS = {f"layer.{n}": torch.full((n + 1, 10), float(n), dtype=torch.bfloat16) for n in range(12)}


@pytest.mark.parametrize("most", [1, 200, 700, 1 << 20])
def test_what_is_written_is_read(tmp_path: Path, most: int) -> None:
    with ShardWriter(tmp_path, "model", shapes_of(TENSORS), most) as writer:
        for name, tensor in TENSORS.items():
            writer.add(name, tensor)
    found = find_shards(tmp_path, Limits())
    read = MappedTensors(found)
    assert list(read) == list(TENSORS)
    assert all(torch.equal(read[name], tensor) for name, tensor in TENSORS.items())
    sizes = [sum(t.numel() * 2 for t in load_file(path).values()) for path in found.files]
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


def test_outputs_of_a_model_that_lies_in_files_are_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    package = import_transformers()
    config = package.LlamaConfig(
        vocab_size=61, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32,
    )  # fmt: skip
    package.LlamaForCausalLM(config).eval().bfloat16().save_pretrained(tmp_path / "owner")
    for module in (shards, widening):
        monkeypatch.setattr(module, "LAYER_BY_LAYER", 1)
    loaded = read_model(tmp_path / "owner")
    runs: list[int] = []

    def counted(running: Any, calls: Any) -> function.Outputs:
        runs.append(len(calls))
        return plain(running, calls)

    plain = function._outputs
    monkeypatch.setattr(function, "_outputs", counted)
    first, other = (function.random_probes(loaded.example, 4, seed) for seed in (0, 1))
    assert torch.equal(function.outputs_of(loaded.model, first).values, function.outputs_of(loaded.model, first).values)
    assert len(runs) == 1
    assert not torch.equal(
        function.outputs_of(loaded.model, other).values, function.outputs_of(loaded.model, first).values
    )
    assert len(runs) == 2
    held = copy.deepcopy(loaded.model)
    assert torch.equal(function.outputs_of(held, first).values, function.outputs_of(loaded.model, first).values)
    assert len(runs) == 3


def test_a_model_of_ones_own_class_is_recovered_from_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def network(hidden: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, 3)).eval()

    monkeypatch.setattr(shards, "LAYER_BY_LAYER", 1)
    monkeypatch.setattr(mapped, "LARGE", 1)
    clean, example = network(20), torch.zeros(1, 8)
    hidden = attack(clean, example, ["nso_zero", "nso_clique", "nso_split"], ratio=0.2).model
    save_file(hidden.state_dict(), tmp_path / "model.safetensors")
    with torch.device("meta"):
        model = network(hidden[0].out_features)  # type: ignore[index]
    model.load_state_dict(MappedTensors(find_shards(tmp_path, Limits())), assign=True)
    found = recover(model, example).model.state_dict()
    assert {name: tensor.shape for name, tensor in found.items()} == {n: t.shape for n, t in clean.state_dict().items()}
    assert all(mapped.is_mapped(found[name]) for name in ("0.weight", "2.weight"))
