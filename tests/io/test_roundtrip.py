"""What is written is read back, in every format, with the widths that it has."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch
from torch import nn

import canon
from canon import zoo
from canon._files import OutputError
from canon.errors import FileFormatError
from canon.io import read_model, read_weights
from tests.io.small import SmallNet, attacked, example, small

FORMATS = [".safetensors", ".pt", ".pth", ".pt2"]


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_wider_model_comes_back_as_it_was(suffix: str, tmp_path: Path) -> None:
    model = attacked()
    path = tmp_path / f"model{suffix}"
    canon.save(model, path, example=example())
    loaded = canon.load(path, "tests.io.small:SmallNet")
    assert not loaded.training
    assert {n: t.shape for n, t in loaded.state_dict().items()} == {n: t.shape for n, t in model.state_dict().items()}
    with torch.no_grad():
        assert torch.equal(loaded(example()), model(example()))
        more = torch.randn(5, 3, 16, 16)
        assert torch.allclose(loaded(more), model(more), atol=1e-6)


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_come_back(suffix: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = small().to(dtype)
    path = tmp_path / f"model{suffix}"
    canon.save(model, path, example=example().to(dtype))
    found = read_model(path, "tests.io.small:SmallNet")
    assert found.example[0].dtype == dtype
    assert all(torch.equal(t, model.state_dict()[n]) for n, t in found.model.state_dict().items())


@pytest.mark.parametrize("suffix", FORMATS)
def test_recovery_works_on_every_format(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"hidden{suffix}"
    canon.save(attacked(), path, example=example())
    found = read_model(path, "tests.io.small:SmallNet")
    result = canon.recover(found.model, found.example)
    assert canon.certify(result.model, small(), found.example, tolerance=1e-3).passed
    again = tmp_path / f"recovered{suffix}"
    canon.save(result.model, again, example=found.example)
    assert canon.certify(canon.load(again, "tests.io.small:SmallNet"), small(), example()).passed


def test_a_program_needs_no_architecture_and_knows_its_input(tmp_path: Path) -> None:
    canon.save(small(), tmp_path / "model.pt2", example=example())
    found = read_model(tmp_path / "model.pt2")
    assert found.architecture is None
    assert found.format == "torch.export program"
    assert [tuple(x.shape) for x in found.example] == [(2, 3, 16, 16)]
    layers = {name: type(layer) for name, layer in found.model.named_modules()}
    assert layers["stem"] is nn.Conv2d
    assert layers["norm"] is nn.BatchNorm2d
    assert layers["head"] is nn.Linear


def test_our_files_name_public_architectures(tmp_path: Path) -> None:
    model = zoo.model("squeezenet1_1")
    canon.save(model, tmp_path / "model.safetensors", architecture="squeezenet1_1")
    found = read_model(tmp_path / "model.safetensors")
    assert found.architecture == "squeezenet1_1"
    assert all(torch.equal(t, model.state_dict()[n]) for n, t in found.model.state_dict().items())


def test_a_file_never_names_code(tmp_path: Path) -> None:
    canon.save(small(), tmp_path / "ours.safetensors", architecture="tests.io.small:SmallNet")
    assert b"tests.io" not in (tmp_path / "ours.safetensors").read_bytes()
    from safetensors.torch import save_file

    note = {"canon": json.dumps({"format": "canon-model", "version": 1, "architecture": "os:getcwd"})}
    save_file(small().state_dict(), tmp_path / "theirs.safetensors", metadata=note)
    with pytest.raises(FileFormatError, match="says nothing about its architecture"):
        canon.load(tmp_path / "theirs.safetensors")


def test_parts_with_an_index(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    state = small().state_dict()
    names = sorted(state)
    parts = {"a-1.safetensors": names[::2], "a-2.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: state[name] for name in held}, tmp_path / file)
    index = tmp_path / "a.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: file for file, held in parts.items() for name in held}}))
    found = read_model(index, "tests.io.small:SmallNet")
    assert found.format == "safetensors in parts"
    assert all(torch.equal(t, state[n]) for n, t in found.model.state_dict().items())
    assert set(read_weights(index)) == set(state)


def test_checkpoints_and_old_files(tmp_path: Path) -> None:
    model = small()
    state = model.state_dict()
    training = {
        "epoch": 3,
        "options": argparse.Namespace(lr=0.1),
        "state_dict": {f"module.{n}": t for n, t in state.items()},
    }
    torch.save(training, tmp_path / "checkpoint.pt")
    torch.save(state, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    for name in ("checkpoint.pt", "old.pth"):
        loaded = canon.load(tmp_path / name, "tests.io.small:SmallNet")
        assert all(torch.equal(t, state[n]) for n, t in loaded.state_dict().items())
    assert read_model(tmp_path / "checkpoint.pt", "tests.io.small:SmallNet").notes == (
        "of the checkpoint, 'state_dict' was read",
        "prefixes such as 'module.' were left out of names",
    )


def test_tied_weights_stay_tied_in_a_program(tmp_path: Path) -> None:
    model = SmallNet(tied=True).eval()
    canon.save(model, tmp_path / "model.pt2", example=example())
    loaded = canon.load(tmp_path / "model.pt2")
    with torch.no_grad():
        assert torch.equal(loaded(example()), model(example()))


def test_names_are_not_files() -> None:
    assert read_model("squeezenet1_1").origin == {"name": "squeezenet1_1"}
    with pytest.raises(FileFormatError, match=r"no such file.*Check the path"):
        read_model("squeezenet1_1.safetensors")
    with pytest.raises(FileFormatError, match="no such file"):
        read_model("models/squeezenet1_1")


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="the folder is empty"):
        read_model(tmp_path)


def test_the_ending_chooses_the_format(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no format that Canon writes"):
        canon.save(small(), tmp_path / "model.h5")
    with pytest.raises(OutputError, match="needs an example"):
        canon.save(small(), tmp_path / "model.pt2")
    canon.save(small(), tmp_path / "model.pt")
    with pytest.raises(OutputError, match="exists already"):
        canon.save(small(), tmp_path / "model.pt")
    canon.save(small(), tmp_path / "model.pt", force=True)


def test_a_program_says_nothing_about_the_machine(tmp_path: Path) -> None:
    canon.save(small(), tmp_path / "model.pt2", example=example())
    assert str(Path(torch.__file__).parent).encode() not in (tmp_path / "model.pt2").read_bytes()
