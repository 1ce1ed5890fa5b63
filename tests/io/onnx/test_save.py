"""What is written: an ordinary ONNX file that onnxruntime runs with the same outputs, under the tensors' own names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn

import canon
from canon._files import OutputError
from canon.errors import CanonError, TrainingModeError
from canon.io import Limits
from canon.io.onnx import ExportError, load_onnx, save_onnx
from tests.io.onnx.graphs import run
from tests.io.small import example, small


def gap(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).detach().abs().max() / expected.detach().abs().max())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The small network as ONNX, its norms kept or folded."""
    folder = tmp_path_factory.mktemp("files")
    save_onnx(small(), example(), folder / "kept.onnx")
    canon.save(small(), folder / "folded.onnx", example=example(), fold_norms=True)
    return {"kept": folder / "kept.onnx", "folded": folder / "folded.onnx"}


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.parametrize(("norms", "count"), [("kept", 1), ("folded", 0)])
def test_onnxruntime_computes_the_same(norms: str, count: int, files: dict[str, Path]) -> None:
    model, path = small(), files[norms]
    onnx.checker.check_model(path, full_check=True)
    assert operators(path).count("BatchNormalization") == count
    for batch in (1, 5):  # the size of the batch is open
        x = torch.randn(batch, 3, 16, 16, generator=torch.Generator().manual_seed(batch))
        assert gap(run(path, x)[0], model(x)) < 1e-5
        assert gap(load_onnx(path, Limits())(x), model(x)) < 1e-5


def test_tensors_keep_their_names(files: dict[str, Path]) -> None:
    state, ours = small().state_dict(), load_onnx(files["kept"], Limits()).state_dict()
    assert ours.keys() == state.keys()
    assert all(torch.equal(ours[name], state[name]) for name in state if "num_batches" not in name)


def test_notes_of_the_exporter_are_gone(files: dict[str, Path]) -> None:
    data = files["kept"].read_bytes()
    assert os.getcwd().encode() not in data
    assert b"site-packages" not in data


def test_what_was_read_can_be_written_again(files: dict[str, Path], tmp_path: Path) -> None:
    second = tmp_path / "second.onnx"
    canon.save(canon.load(files["kept"]), second, example=example())
    assert operators(second) == operators(files["kept"])
    torch.testing.assert_close(run(second, example())[0], run(files["kept"], example())[0])


def test_files_are_written_whole_and_the_same_every_time(files: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_text("mine")
    with pytest.raises(OutputError):
        save_onnx(small(), example(), path)
    with pytest.raises(TrainingModeError):
        save_onnx(small().train(), example(), path, force=True)
    with pytest.raises(ExportError, match="torch cannot export"):
        save_onnx(Branching().eval(), example(), path, force=True)
    assert path.read_text() == "mine"
    assert os.listdir(tmp_path) == ["model.onnx"]
    save_onnx(small(), example(), path, force=True)
    assert path.read_bytes() == files["kept"].read_bytes()


class Branching(nn.Module):
    """Nothing that a graph could say."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Any:
        return self.conv(x) if float(x.sum()) > 0 else x


def test_a_file_that_computes_something_else_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("canon.io.onnx.save.ALLOWED", -1.0)
    with pytest.raises(ExportError, match="differs from the module"):
        save_onnx(small(), example(), tmp_path / "model.onnx")
    assert not os.listdir(tmp_path)


class Undecided(nn.Module):
    """A forward pass that values decide."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y if y.sum() > 0 else -y


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_what_cannot_be_exported_is_told_in_plain_words(
    suffix: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CanonError, match="data-dependent") as raised:
        canon.save(Undecided().eval(), tmp_path / f"model{suffix}", example=example())
    assert "\x1b" not in str(raised.value)
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


def test_a_model_that_takes_one_size_is_written_for_that_size(tmp_path: Path) -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(6, 8)

        def forward(self, x: Tensor, state: Tensor) -> Tensor:
            result: Tensor = self.layer(x.reshape(1, 1, 6), state)[0]
            return result

    model, inputs = Fixed().eval(), (torch.randn(1, 1, 6), torch.randn(1, 1, 8))
    save_onnx(model, inputs, tmp_path / "fixed.onnx")
    torch.testing.assert_close(load_onnx(tmp_path / "fixed.onnx", Limits())(*inputs), model(*inputs))
