"""Folders with weights of eight bits are read as float16, and what does not fit together is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from canon.errors import FileFormatError
from canon.io import read_model
from canon.io.folder.quantized import from_gptq
from canon.zoo.compatibility import import_transformers

State = dict[str, Tensor]


def as_bitsandbytes(state: State, layer: str) -> None:
    """Replace a layer's weight by whole numbers and the largest magnitude of each row."""
    weight = state.pop(f"{layer}.weight").float()
    largest = weight.abs().amax(1)
    state[f"{layer}.weight"] = (weight * 127 / largest[:, None]).round().to(torch.int8)
    state[f"{layer}.SCB"] = largest
    state[f"{layer}.weight_format"] = torch.tensor(0, dtype=torch.uint8)


def as_gptq(state: State, layer: str, size: int = 8) -> None:
    """Replace a layer's weight by words of four numbers, with scales and zeros for groups of inputs."""
    weight = state.pop(f"{layer}.weight").float()
    outputs, inputs = weight.shape
    grouped = weight.view(outputs, inputs // size, size)
    low, high = grouped.amin(2).clamp(max=0), grouped.amax(2).clamp(min=0)
    scales = (high - low).clamp(min=1e-6) / 255
    zeros = (-low / scales).round().clamp(1, 255)
    numbers = (grouped / scales[..., None] + zeros[..., None]).round().clamp(0, 255).view(outputs, inputs)
    state[f"{layer}.qweight"] = pack(numbers.T.contiguous(), 0)
    state[f"{layer}.qzeros"] = pack((zeros - 1).T.contiguous(), 1)
    state[f"{layer}.scales"] = scales.T.contiguous().half()
    state[f"{layer}.g_idx"] = (torch.arange(inputs) // size).int()


def pack(numbers: Tensor, axis: int) -> Tensor:
    """Four numbers in a word, one after the other along an axis."""
    whole = numbers.long().movedim(axis, -1).unflatten(-1, (-1, 4))
    words = (whole << torch.tensor([0, 8, 16, 24])).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int().movedim(-1, axis).contiguous()


LAYOUTS: dict[str, tuple[Callable[[State, str], None], dict[str, object]]] = {
    "bitsandbytes": (as_bitsandbytes, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "gptq": (as_gptq, {"quant_method": "gptq", "bits": 8, "group_size": 8}),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers = import_transformers()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("models") / "plain"
    transformers.LlamaForCausalLM(config).half().save_pretrained(folder)
    return folder


def quantised(plain: Path, target: Path, method: str) -> Path:
    """The same folder with its MLPs quantised."""
    change, declared = LAYOUTS[method]
    state = load_file(plain / "model.safetensors")
    for number in range(2):
        for layer in ("gate_proj", "up_proj", "down_proj"):
            change(state, f"model.layers.{number}.mlp.{layer}")
    target.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, str(target / "model.safetensors"))
    values = json.loads((plain / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**values, "quantization_config": declared}))
    return target


@pytest.mark.parametrize("method", LAYOUTS)
def test_eight_bits_are_read_as_float16(plain: Path, tmp_path: Path, method: str) -> None:
    read, given = read_model(quantised(plain, tmp_path / "model", method)), read_model(plain)
    assert any("quantised" in note for note in read.notes)
    theirs = given.model.state_dict()
    for name, tensor in read.model.state_dict().items():
        gap = float((tensor.float() - theirs[name].float()).abs().max() / theirs[name].float().abs().max())
        assert gap < 0.01, name
        assert tensor.dtype == torch.float16
        if "mlp" not in name:
            assert gap == 0


def test_numbers_of_gptq() -> None:
    words = torch.tensor([[1 | 2 << 8 | 3 << 16 | 4 << 24] * 4]).int()
    parts = {"qweight": words, "qzeros": torch.tensor([[0]]).int(), "scales": torch.full((1, 4), 0.5)}
    assert from_gptq(parts).tolist() == [[0.0, 0.5, 1.0, 1.5]] * 4


@pytest.mark.parametrize(("method", "lost"), [("bitsandbytes", "SCB"), ("gptq", "scales"), ("gptq", "qzeros")])
def test_missing_scales_are_an_error(plain: Path, tmp_path: Path, method: str, lost: str) -> None:
    folder = quantised(plain, tmp_path / "model", method)
    state = load_file(folder / "model.safetensors")
    del state[f"model.layers.1.mlp.up_proj.{lost}"]
    save_file(state, str(folder / "model.safetensors"))
    with pytest.raises(FileFormatError, match="missing or do not fit"):
        read_model(folder)


@pytest.mark.parametrize("declared", [{"quant_method": "gptq", "bits": 4}, {"load_in_4bit": True}, "anything"])
def test_other_layouts_are_refused(plain: Path, tmp_path: Path, declared: object) -> None:
    folder = quantised(plain, tmp_path / "model", "gptq")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "quantization_config": declared}))
    with pytest.raises(FileFormatError, match="quantised in a way"):
        read_model(folder)
