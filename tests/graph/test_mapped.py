"""Tensors in mapped files: what is made from them goes into files too, and memory stays what it was."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from canon.graph import mapped, widening
from canon.graph.mapped import duplicate, is_mapped, note, on_disk, results, room_like
from canon.graph.widening import computes_in, is_large, runner


def in_file(path: Path, tensor: Tensor) -> Tensor:
    """The same numbers, mapped from a file."""
    path.write_bytes(tensor.numpy().tobytes())
    with open(path, "rb") as file:
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    note(pages)
    return torch.frombuffer(pages, dtype=tensor.dtype).view(tensor.shape)


def test_mapped_tensors_are_known_and_forgotten(tmp_path: Path) -> None:
    before = list(mapped._ranges)
    plain = torch.arange(100.0)
    stored = in_file(tmp_path / "numbers", plain)
    assert torch.equal(stored, plain)
    assert is_mapped(stored)
    assert is_mapped(stored[50:])
    assert not is_mapped(plain)
    assert duplicate(stored).data_ptr() == stored.data_ptr()
    assert duplicate(plain).data_ptr() != plain.data_ptr()
    del stored
    assert mapped._ranges == before


def test_results_of_mapped_tensors_lie_in_files(tmp_path: Path) -> None:
    stored = in_file(tmp_path / "numbers", torch.arange(100.0))
    large, small = torch.randn(1 << 19), torch.randn(10)
    kept = results({"a": stored})
    kept["large"], kept["small"] = large, small
    assert is_mapped(kept["large"])
    assert not is_mapped(kept["small"])
    assert torch.equal(kept["large"], large)
    assert is_mapped(room_like([stored])((1 << 19,), large))
    plain = results({"a": large})
    plain["large"] = large
    assert plain["large"] is large
    assert not is_mapped(room_like([large])((1 << 19,), large))


def test_temporary_files_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = on_disk((1 << 19,), torch.empty(0))
    made.fill_(3.0)
    assert float(made.sum()) == 3.0 * (1 << 19)
    assert not [*tmp_path.iterdir()]


class Tied(nn.Module):
    """An embedding, a layer, a norm, and a head that shares the embedding's numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(20, 8), nn.Linear(8, 8)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = self.head(self.norm(torch.relu(self.layer(self.embedding(ids)))))
        if len(ids) > 3:
            raise ValueError("too many")
        return result


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_layers_are_widened_while_they_run(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, ids = Tied().eval().to(dtype), torch.arange(12).view(2, 6)
    copied = runner(model)
    assert not is_large(model)
    monkeypatch.setattr(widening, "LAYER_BY_LAYER", 0)
    running = runner(model)
    assert is_large(model)
    assert computes_in(running) == torch.float32
    with torch.no_grad():
        assert torch.equal(running(ids), copied(ids))
        assert torch.equal(running(ids), copied(ids))
        with pytest.raises(ValueError, match="too many"):
            running(torch.zeros(4, 2, dtype=torch.int64))
    assert {p.dtype for p in running.parameters()} == {dtype}
    assert dict(running.named_parameters())["layer.weight"] is model.layer.weight
    assert not model._forward_hooks
    assert not model.layer._forward_hooks


def test_models_that_compute_in_full_precision_are_run_as_they_are() -> None:
    model = nn.Linear(3, 3).double()
    assert runner(model) is model
