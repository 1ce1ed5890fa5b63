"""Folders of transformers: read before a weight is touched, written so that they can be read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
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


def test_a_version_in_a_name_is_no_ending(tmp_path: Path) -> None:
    model = llama()
    canon.save(model, tmp_path / "llama-3.1-8b")
    assert (tmp_path / "llama-3.1-8b" / "config.json").is_file()
    with pytest.raises(CanonError, match="no format"):
        canon.save(model, tmp_path / "llama.bin")


def test_a_number_of_the_config_that_is_more_than_a_width_stays(tmp_path: Path) -> None:
    package = import_transformers()
    sizes = {
        "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
        "embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16,
    }  # fmt: skip
    torch.manual_seed(0)
    model: Any = package.MobileBertForMaskedLM(package.MobileBertConfig(**sizes)).eval()
    model.save_pretrained(tmp_path / "owner")
    owner = read_model(tmp_path / "owner")
    attacked = canon.attack(owner.model, owner.example, ["nso_clique"], ratio=0.25).model
    canon.save(attacked, tmp_path / "attacked")
    written = json.loads((tmp_path / "attacked" / "config.json").read_text())
    assert written["true_hidden_size"] == 16, "heads are made of it"
    again = read_model(tmp_path / "attacked")
    with torch.no_grad():
        assert torch.equal(again.model(*owner.example).logits, attacked(*owner.example).logits)


def test_numbers_that_transformers_leaves_out_are_computed_by_it(tmp_path: Path) -> None:
    package = import_transformers()
    sizes = {
        "vocab_size": 99, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
        "pad_token_id": 0, "decoder_start_token_id": 0,
    }  # fmt: skip
    torch.manual_seed(0)
    model: Any = package.MarianMTModel(package.MarianConfig(**sizes)).eval()
    model.config.use_cache = False
    model.save_pretrained(tmp_path / "owner")
    owner = read_model(tmp_path / "owner")
    with torch.no_grad():
        assert torch.equal(owner.model(*owner.example).logits, model(*owner.example).logits)
    canon.save(owner.model, tmp_path / "copy")
    assert torch.equal(package.MarianMTModel.from_pretrained(tmp_path / "copy").model.encoder.embed_positions.weight,
                       model.model.encoder.embed_positions.weight)  # fmt: skip


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


def index_names_another_shard(folder: Path) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    names = list(index["weight_map"])
    index["weight_map"][names[0]] = index["weight_map"][names[-1]]
    path.write_text(json.dumps(index))


def shards_overlap(folder: Path) -> None:
    """The first shard holds a tensor of the last one as well."""
    files = sorted(folder.glob("*.safetensors"))
    first, last = load_file(files[0]), load_file(files[-1])
    name = next(iter(last))
    save_file({**first, name: last[name]}, files[0], metadata={"format": "pt"})


def tensors_overlap(folder: Path) -> None:
    """Two tensors of a shard share bytes."""
    path = max(folder.glob("*.safetensors"), key=lambda file: len(load_file(file)))
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    names = [name for name in header if name != "__metadata__"]
    assert len(names) > 1
    header[names[1]] = header[names[0]]
    text = json.dumps(header).encode().ljust(length)
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])


def cut_short(folder: Path) -> None:
    path = sorted(folder.glob("*.safetensors"))[0]
    path.write_bytes(path.read_bytes()[:-4])


def diffusion_without_weights(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    (folder / "config.json").write_text(json.dumps({"_class_name": "UNet2DModel", "_diffusers_version": "0.30.0"}))


def pipeline_without_weights(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "DDPMPipeline"}))


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


def adapter(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"")


def gguf(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    (folder / "model.gguf").write_bytes(b"GGUF")


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


DAMAGE = {
    "a missing shard": (missing_shard, "is missing"),
    "an index that names another tensor": (index_names_another, "disagree about the tensor"),
    "an index that names another shard": (index_names_another_shard, "disagree about the tensor"),
    "shards that overlap": (shards_overlap, "stands in two files"),
    "tensors that overlap": (tensors_overlap, "overlap"),
    "a shard that was cut short": (cut_short, "the file at"),
    "diffusers without weights": (diffusion_without_weights, "no weights|not installed"),
    "a pipeline without weights": (pipeline_without_weights, "pipeline of several models"),
    "an index that lies about sizes": (index_lies_about_size, "bytes of numbers"),
    "an index that leaves the folder": (index_escapes, "no safetensors file beside it"),
    "another model's kind": (lambda folder: change(folder, "config.json", model_type="bert"), "another model"),
    "another model's class": (
        lambda folder: change(folder, "config.json", architectures=["BertForMaskedLM"], model_type="bert"),
        "another model",
    ),
    "another model's sizes": (lambda folder: change(folder, "config.json", hidden_size=32), "do not fit the config"),
    "channels beyond all memory": (lambda folder: change(folder, "config.json", hidden_size=10**12), "do not fit"),
    "more layers": (lambda folder: change(folder, "config.json", num_hidden_layers=3), "lack"),
    "a million layers": (lambda folder: change(folder, "config.json", num_hidden_layers=10**6), "far more"),
    "more labels than memory": (lambda folder: change(folder, "config.json", num_labels=10**12), "no model"),
    "more layers in a part": (lambda folder: change(folder, "config.json", part={"n_layer": 10**12}), "no model"),
    "a class without a config": (
        lambda folder: change(folder, "config.json", architectures=["PreTrainedModel"]), "no model of its own",
    ),
    "8 bits that are none": (
        lambda folder: change(folder, "config.json", quantization_config={"quant_method": "gptq", "bits": 8}),
        "the files hold none",
    ),
    "remote code": (
        lambda folder: change(folder, "config.json", auto_map={"AutoModel": "modeling.Evil"}),
        "code that comes with the model",
    ),
    "remote code of a part": (
        lambda folder: change(folder, "config.json", text_config={"auto_map": {"AutoModel": "modeling.Evil"}}),
        "code that comes with the model",
    ),
    "attention from elsewhere": (
        lambda folder: change(folder, "config.json", attn_implementation="someone/kernel"),
        "code from elsewhere",
    ),
    "attention of a part from elsewhere": (
        lambda folder: change(folder, "config.json", _attn_implementation={"text_config": "paged|someone/kernel@v1"}),
        "code from elsewhere",
    ),
    "a backbone from elsewhere": (
        lambda folder: change(
            folder, "config.json", architectures=["DetrForObjectDetection"], model_type="detr",
            backbone_config={"model_type": "timm_backbone", "backbone": "hf-hub:someone/something"},
        ),
        "offline|timm",
    ),
    "an adapter": (adapter, "an adapter"),
    "an adapter beside a model": (
        lambda folder: (folder / "adapter_config.json").write_text("{}"), "a change to a model",
    ),
    "a GGUF file": (gguf, "GGUF"),
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


def test_what_was_interrupted_leaves_nothing_and_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from canon.io.folder.writing import ShardWriter

    loaded = read_model(saved(tmp_path / "owner"))
    plain, written = ShardWriter.add, list[str]()

    def interrupted(self: ShardWriter, name: str, tensor: torch.Tensor) -> None:
        if len(written) == 5:
            raise KeyboardInterrupt
        written.append(name)
        plain(self, name, tensor)

    monkeypatch.setattr(ShardWriter, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        canon.save(loaded.model, tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["owner"]
    monkeypatch.setattr(ShardWriter, "add", plain)
    canon.save(loaded.model, tmp_path / "copy")
    again = canon.load(tmp_path / "copy").state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in loaded.model.state_dict().items())
