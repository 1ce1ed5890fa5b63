"""Inputs that a user gives: arrays and images, and what is wrong with them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from canon.cli.probes import load_probes
from canon.errors import DataError
from tests.verify.small import example, tiny


class Pair(nn.Module):
    """Takes two inputs."""

    def forward(self, words: Tensor, places: Tensor) -> Tensor:
        return words + places


def test_arrays_go_by_their_names(tmp_path: Path) -> None:
    path = tmp_path / "pair.npz"
    np.savez(path, places=np.ones((3, 2)), words=np.zeros((3, 2)), more=np.zeros(1))
    found = load_probes(path, Pair(), (torch.zeros(1, 2), torch.zeros(1, 2)))
    assert [float(array.sum()) for array in found.arrays] == [0, 6]
    assert found.origin["preparation"] == "3 probes, the arrays words, places as they are"


def test_arrays_go_by_their_order(tmp_path: Path) -> None:
    path = tmp_path / "pair.npz"
    np.savez(path, np.zeros((3, 2)), np.ones((3, 2)))
    found = load_probes(path, Pair(), (torch.zeros(1, 2), torch.zeros(1, 2)))
    assert [float(array.sum()) for array in found.arrays] == [0, 6]


def test_probes_do_not_take_the_place_of_random_ones(tmp_path: Path) -> None:
    np.savez(tmp_path / "random.npz", np.zeros((3, 3, 8, 8)))
    (tmp_path / "random.npz").rename(tmp_path / "random")
    assert load_probes(tmp_path / "random", tiny(), (example(),)).name == "file random"


@pytest.mark.parametrize("kind", ["text", "cut", "object", "nan", "empty", "names", "bomb", "missing"])
def test_what_holds_no_probes_is_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "probes.npz"
    good = np.zeros((3, 3, 8, 8), np.float32)
    if kind == "text":
        path.write_text("probes")
    elif kind == "object":
        np.savez(path, np.array([{}], dtype=object))
    elif kind == "nan":
        np.savez(path, good * np.nan)
    elif kind == "empty":
        np.savez(path, good[:0])
    elif kind == "names":
        np.savez(path, good, good)
    elif kind == "bomb":
        monkeypatch.setattr("canon.cli.inputs.MOST_BYTES", 1 << 20)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("arr_0.npy", bytes(1 << 21))
    elif kind == "cut":
        np.savez(path, good)
        path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match="at most" if kind == "bomb" else None):
        load_probes(path, tiny(), (example(),))


def test_images_are_prepared_as_the_evidence_says(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for index, shade in enumerate((0, 255)):
        image.new("RGB", (20, 10), (shade,) * 3).save(tmp_path / f"{index}.png")
    (tmp_path / "notes.txt").write_text("left alone")
    found = load_probes(tmp_path, tiny(), (example(),))
    assert found.arrays[0].shape == (2, 3, 8, 8)
    black, white = found.arrays[0][:, 0, 0, 0].tolist()
    assert black == pytest.approx(-0.485 / 0.229)
    assert white == pytest.approx((1 - 0.485) / 0.229)
    assert "2 probes, images resized to 8x8 (bilinear), scaled to 0...1" in found.origin["preparation"]
    (tmp_path / "2.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="an image cannot be read"):
        load_probes(tmp_path, tiny(), (example(),))
