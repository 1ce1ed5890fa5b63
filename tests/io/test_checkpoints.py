"""Checkpoints as people save them: wrapped in dicts, with prefixes, as whole modules, as TorchScript."""

from __future__ import annotations

import gzip
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import canon
from canon.errors import FileFormatError
from canon.graph import probes
from canon.io import read_model
from tests.io.small import attacked, example, small

ARCH = "tests.io.small:SmallNet"
State = dict[str, Any]


def prefixed(prefix: str) -> Callable[[State], State]:
    return lambda state: {f"{prefix}{name}": tensor for name, tensor in state.items()}


WRAPPED: dict[str, Callable[[State], Any]] = {
    "model_state": lambda s: {"model_state": s, "optimizer_state": {"state": {0: {"step": torch.ones(1)}}}, "epoch": 3},
    "state_dict": lambda s: {"state_dict": s, "best": torch.ones(())},
    "model_state_dict": lambda s: {"model_state_dict": s, "optimizer_state_dict": {"w": torch.ones(3)}},
    "nested": lambda s: {"checkpoint": {"epoch": 1, "model": s}},
    "unknown name": lambda s: {"my_network": s, "epoch": torch.ones(())},
    "ema beside the model": lambda s: {"ema": {n: t + 1 for n, t in s.items()}, "model": s},
    "ema alone": lambda s: {"ema": s},
    "module.": prefixed("module."),
    "model.": prefixed("model."),
    "_orig_mod.": prefixed("_orig_mod."),
    "module._orig_mod.model.": prefixed("module._orig_mod.model."),
    "lightning": lambda s: {"state_dict": {**prefixed("net.backbone.")(s), "criterion.weight": torch.ones(3)}},
    "averaged": lambda s: {"n_averaged": torch.ones(()), **prefixed("module.")(s)},
    "compiled inside": lambda s: {n.replace("first.", "first._orig_mod."): t for n, t in s.items()},
}


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("name", WRAPPED)
def test_wrapped_state_dicts_are_found(name: str, legacy: bool, tmp_path: Path) -> None:
    state = attacked().state_dict()
    torch.save(WRAPPED[name](state), tmp_path / "model.pt", _use_new_zipfile_serialization=not legacy)
    found = read_model(tmp_path / "model.pt", ARCH)
    assert all(torch.equal(t, state[n]) for n, t in found.model.state_dict().items())
    assert found.notes


def test_a_note_says_what_was_not_read(tmp_path: Path) -> None:
    torch.save(WRAPPED["ema beside the model"](small().state_dict()), tmp_path / "model.pt")
    assert read_model(tmp_path / "model.pt", ARCH).notes == ("of the checkpoint, 'model' was read, and not 'ema'",)


def test_names_that_fit_are_kept(tmp_path: Path) -> None:
    """No prefix is left out of names that the architecture has."""
    torch.save(small().state_dict(), tmp_path / "model.pt")
    assert read_model(tmp_path / "model.pt", ARCH).notes == ()
    torch.save(prefixed("other.")(small().state_dict()), tmp_path / "model.pt")
    with pytest.raises(FileFormatError, match="another architecture"):
        canon.load(tmp_path / "model.pt", "squeezenet1_1")


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: {"epoch": 2, "model": m}])
def test_the_weights_of_a_pickled_module_are_read_without_its_code(wrap: Any, tmp_path: Path) -> None:
    model = attacked()
    torch.save(wrap(model), tmp_path / "whole.pt")
    found = read_model(tmp_path / "whole.pt", ARCH)
    assert all(torch.equal(t, model.state_dict()[n]) for n, t in found.model.state_dict().items())
    assert any("no code of it was run" in note for note in found.notes)


def script(model: nn.Module, path: Path, how: str) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = torch.jit.script(model) if how == "scripted" else torch.jit.trace(model, example())
        torch.jit.save(torch.jit.freeze(made) if how == "frozen" else made, path)
    return path


@pytest.mark.parametrize("how", ["scripted", "traced"])
def test_the_weights_of_torchscript_are_read_without_its_code(how: str, tmp_path: Path) -> None:
    model = attacked()
    found = read_model(script(model, tmp_path / "script.pt", how), ARCH)
    torch.testing.assert_close(found.model(example()), model(example()))
    assert any("TorchScript" in note for note in found.notes)
    with pytest.raises(FileFormatError, match="a TorchScript program: its code is not run") as raised:
        canon.load(tmp_path / "script.pt")
    assert all(way in str(raised.value) for way in ("--arch", "ONNX", "torch.jit.load"))
    assert "damaged" not in str(raised.value)


def test_a_frozen_program_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"constants without names \(it was frozen\)"):
        canon.load(script(small(), tmp_path / "script.pt", "frozen"), ARCH)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors", ".onnx", ".pt2", ".bin", ".safetensors.index.json"])
def test_an_empty_file_is_called_empty(suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"model{suffix}").write_bytes(b"")
    with pytest.raises(FileFormatError, match="the file is empty") as raised:
        canon.load(tmp_path / f"model{suffix}", ARCH)
    assert "damaged" not in str(raised.value)


class Recurrent(nn.Module):
    """Carries its state from call to call."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gru, self.head = nn.GRU(6, 8), nn.Linear(8, 3)
        self.eval()

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        result, state = self.gru(x, state)
        return self.head(result), state


@pytest.mark.filterwarnings("ignore")
def test_recurrent_state_gets_the_shape_of_its_file(tmp_path: Path) -> None:
    model, inputs = Recurrent(), (torch.randn(5, 1, 6), torch.randn(1, 1, 8))
    torch.onnx.export(
        model, inputs, tmp_path / "state.onnx", dynamo=False, input_names=["x", "state"], output_names=["y", "next"],
        dynamic_axes={"x": {0: "steps", 1: "batch"}, "state": {1: "batch"}},
    )  # fmt: skip
    found = read_model(tmp_path / "state.onnx")
    first, state = found.example
    assert first.shape[1] == state.shape[1]
    many = probes(found.example, 16)
    assert sum(len(x) for x, _ in many) >= 16
    for given in many:
        assert [tuple(x.shape) for x in given] == [tuple(x.shape) for x in found.example]
        torch.testing.assert_close(found.model(*given), model(*given))


OTHERS = {
    "pointer of Git LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n", "git lfs pull"),
    "packed file": (gzip.compress(b"model"), "Unpack"),
    "web page": (b"<!DOCTYPE html><html>", "not the page"),
    "HDF5": (b"\x89HDF\r\n\x1a\n", "ONNX"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_people_take_for_models_is_called_what_it_is(what: str, tmp_path: Path) -> None:
    data, hint = OTHERS[what]
    (tmp_path / "model.pth").write_bytes(data)
    with pytest.raises(FileFormatError, match=what) as caught:
        canon.load(tmp_path / "model.pth", ARCH)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize("name", ["MODEL.ONNX", "a model", "modèle.bin"])
def test_onnx_is_known_under_any_name(name: str, tmp_path: Path) -> None:
    canon.save(small(), tmp_path / "model.onnx", example=example())
    (tmp_path / "model.onnx").rename(tmp_path / name)
    torch.testing.assert_close(canon.load(tmp_path / name)(example()), small()(example()))


def negated(x: Tensor) -> Tensor:
    return x.to(torch.complex64).conj().imag


OTHER_TENSORS: dict[str, Callable[[Tensor], Tensor]] = {
    "kept conjugated or negated": negated,
    "'head.weight' is sparse, quantized": lambda x: x.to_sparse(),
    "'head.weight' is sparse, quantized, or without numbers": lambda x: x.to("meta"),
    "of the type torch.ComplexFloatStorage": lambda x: x.to(torch.complex64),
}


@pytest.mark.parametrize("words", OTHER_TENSORS)
def test_tensors_of_other_kinds_are_refused_by_name(words: str, tmp_path: Path) -> None:
    state = small().state_dict()
    torch.save({**state, "head.weight": OTHER_TENSORS[words](state["head.weight"])}, tmp_path / "odd.pt")
    with pytest.raises(FileFormatError, match=words):
        canon.load(tmp_path / "odd.pt", ARCH)


def test_a_file_of_several_float_types_is_read_in_the_widest(tmp_path: Path) -> None:
    state = small().state_dict()
    state["first.weight"], state["head.bias"] = state["first.weight"].half(), state["head.bias"].to(torch.float8_e4m3fn)
    torch.save(state, tmp_path / "mixed.pt")
    found = read_model(tmp_path / "mixed.pt", ARCH)
    assert found.notes == ("the file holds float16, float32, float8_e4m3fn; all is read as float32",)
    torch.testing.assert_close(found.model(*found.example), small()(*found.example), rtol=0.1, atol=0.1)
