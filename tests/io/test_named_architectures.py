"""An architecture that a file names is not built before it is known to be about as large as the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import canon
from canon import zoo
from canon.errors import FileFormatError
from canon.io import architecture, read_model
from canon.io.architecture import check_size
from tests.patience import within


def named(path: Path, name: str, tensors: dict[str, torch.Tensor]) -> Path:
    save_file(tensors, path, metadata={"canon": json.dumps({"format": "canon-model", "architecture": name})})
    return path


@pytest.mark.parametrize("name", ["vit_h_14", "regnet_y_128gf", "timm:vit_huge_patch14_224"])
def test_a_small_file_that_names_a_giant(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def built(_: str) -> None:
        raise AssertionError("it was built")

    monkeypatch.setattr("canon.io.loading.build_architecture", built)
    path = named(tmp_path / "model.safetensors", name, {f"x{index}": torch.zeros(3) for index in range(3)})
    with within(10), pytest.raises(FileFormatError, match=r"which has .* numbers, but it holds 9"):
        read_model(path)


def test_without_the_check_it_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def build(name: str) -> torch.nn.Module:
        seen.append(name)
        return zoo.model("timm:test_resnet")

    monkeypatch.setattr("canon.io.loading.check_size", lambda *_: None)
    monkeypatch.setattr("canon.io.loading.build_architecture", build)
    path = named(tmp_path / "model.safetensors", "vit_h_14", {"x": torch.zeros(3)})
    with pytest.raises(FileFormatError, match="another architecture"):
        read_model(path)
    assert seen == ["vit_h_14"]


def test_honest_files_load(tmp_path: Path) -> None:
    model = zoo.model("timm:test_resnet")
    path = named(tmp_path / "model.safetensors", "timm:test_resnet", dict(model.state_dict()))
    assert canon.load(path).state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize("name", ["resnet18", "densenet121", "inception_v3", "regnet_y_400mf", "swin_t", "vit_b_16"])
def test_sizes_are_known_without_building(name: str) -> None:
    numbers = sum(tensor.numel() for tensor in zoo.model(name).state_dict().values())
    check_size(name, {"x": torch.empty(numbers, device="meta")}, "file")
    with pytest.raises(FileFormatError, match=f"which has {numbers:,} numbers"):
        check_size(name, {"x": torch.empty((numbers - architecture.SPARE_ROOM) // 5, device="meta")}, "file")
