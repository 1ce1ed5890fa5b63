"""Folders of transformers: read before a weight is touched, written so that they can be read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import canon
from canon.errors import CanonError, FileFormatError
from canon.io.loading import read_model
from canon.zoo.compatibility import import_transformers

pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 32,
}  # fmt: skip


def llama(**changes: Any) -> nn.Module:
    package = import_transformers()
    torch.manual_seed(0)
    model: nn.Module = package.LlamaForCausalLM(package.LlamaConfig(**{**SIZES, **changes})).eval()
    return model


def saved(folder: Path, shard: str = "8KB", **changes: Any) -> Path:
    model: Any = llama(**changes)
    model.save_pretrained(folder, max_shard_size=shard)
    return folder


def test_a_folder_in_shards_is_read_and_written(tmp_path: Path) -> None:
    source = saved(tmp_path / "owner")
    loaded = read_model(source)
    assert len(list(source.glob("*.safetensors"))) > 1
    expected: Any = llama()
    with torch.no_grad():
        assert torch.equal(loaded.model(*loaded.example).logits, expected(*loaded.example).logits)
    canon.save(loaded.model, tmp_path / "copy")
    again: Any = canon.load(tmp_path / "copy")
    for name, tensor in expected.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    sizes = [
        sorted(path.stat().st_size for path in folder.glob("*.safetensors")) for folder in (source, tmp_path / "copy")
    ]
    assert max(sizes[1]) <= 1.1 * max(sizes[0])
    with pytest.raises(CanonError, match="folder"):
        canon.save(loaded.model, tmp_path / "copy")


def test_widths_in_the_config_follow_and_transformers_reads_it(tmp_path: Path) -> None:
    loaded = read_model(saved(tmp_path / "owner", shard="1GB"))
    attacked = canon.attack(loaded.model, loaded.example, ["nso_clique"], ratio=0.25)
    canon.save(attacked.model, tmp_path / "attacked")
    config = json.loads((tmp_path / "attacked" / "config.json").read_text())
    assert config["intermediate_size"] == 30
    assert config["use_cache"] is True
    package = import_transformers()
    theirs = package.LlamaForCausalLM.from_pretrained(tmp_path / "attacked").eval()
    ours: Any = canon.load(tmp_path / "attacked")
    with torch.no_grad():
        assert torch.equal(theirs(*loaded.example).logits, ours(*loaded.example).logits)
    recovered = canon.recover(ours, loaded.example)
    assert canon.certify(recovered.model, loaded.model, loaded.example).passed


def test_widths_that_the_config_cannot_say_are_read_from_the_weights(tmp_path: Path) -> None:
    loaded = read_model(saved(tmp_path / "owner", shard="1GB"))
    options = canon.attacks.AttackOptions(ops=("nso_clique",), ratio=0.25, select=("*layers.0*",))
    attacked = canon.attacks.attack_with(loaded.model, loaded.example, options)
    canon.save(attacked.model, tmp_path / "attacked")
    config = json.loads((tmp_path / "attacked" / "config.json").read_text())
    assert any("layers.0.mlp" in name for name in config["canon_widths"])
    again = read_model(tmp_path / "attacked")
    assert any("other widths" in note for note in again.notes)
    with torch.no_grad():
        assert torch.equal(again.model(*loaded.example).logits, attacked.model(*loaded.example).logits)


def change(folder: Path, name: str, **values: Any) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def missing_shard(folder: Path) -> None:
    sorted(folder.glob("*.safetensors"))[0].unlink()


def index_names_another(folder: Path) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.layers.9.extra"] = next(iter(index["weight_map"].values()))
    path.write_text(json.dumps(index))


def index_lies_about_size(folder: Path) -> None:
    change(folder, "model.safetensors.index.json", metadata={"total_size": 7})


def index_escapes(folder: Path) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    name = next(iter(index["weight_map"]))
    index["weight_map"][name] = "../outside.safetensors"
    path.write_text(json.dumps(index))


def tokenizer(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    (folder / "tokenizer.json").write_text("{}")


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


DAMAGE = {
    "a missing shard": (missing_shard, "is missing"),
    "an index that names another tensor": (index_names_another, "disagree about the tensor"),
    "an index that lies about sizes": (index_lies_about_size, "bytes of numbers"),
    "an index that leaves the folder": (index_escapes, "no safetensors file beside it"),
    "another model's kind": (lambda folder: change(folder, "config.json", model_type="bert"), "another model"),
    "another model's class": (
        lambda folder: change(folder, "config.json", architectures=["BertForMaskedLM"], model_type="bert"),
        "another model",
    ),
    "another model's sizes": (lambda folder: change(folder, "config.json", hidden_size=32), "do not fit the config"),
    "more layers": (lambda folder: change(folder, "config.json", num_hidden_layers=3), "lack"),
    "remote code": (
        lambda folder: change(folder, "config.json", auto_map={"AutoModel": "modeling.Evil"}),
        "code that comes with the model",
    ),
    "a class of nobody": (lambda folder: change(folder, "config.json", architectures=["Evil"]), "does not have"),
    "a class that is no model": (
        lambda folder: change(folder, "config.json", architectures=["AutoTokenizer"]),
        "does not have",
    ),
    "no class": (lambda folder: change(folder, "config.json", architectures=[]), "which class"),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{"), "JSON"),
    "another JSON": (lambda folder: (folder / "config.json").write_text("[]"), "no JSON object"),
    "a tokenizer": (tokenizer, "tokenizer, and no model"),
    "an empty folder": (empty, "empty"),
    "no weights": (lambda folder: [path.unlink() for path in folder.glob("*safetensors*")], "no weights"),
    "quantised weights": (
        lambda folder: change(folder, "config.json", quantization_config={"quant_method": "awq"}),
        "quantised",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE, ids=str)
def test_damage_is_said_before_a_weight_is_read(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from canon.io.folder import shards

    def refuse(self: Any, name: str) -> None:
        raise AssertionError("a weight was read")

    folder = saved(tmp_path / "model")
    harm, words = DAMAGE[damage]
    harm(folder)
    monkeypatch.setattr(shards.MappedTensors, "__getitem__", refuse)
    with pytest.raises(FileFormatError, match=words):
        canon.load(folder)
