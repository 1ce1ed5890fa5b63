"""Datasets by name, from files that these tests write."""

from __future__ import annotations

import gzip
import hashlib
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from canon import zoo
from canon.errors import DataError


def test_digits_come_embedded() -> None:
    digits = zoo.dataset("digits")
    assert digits.train_images.shape == (1437, 3, 32, 32)
    assert digits.test_images.shape == (360, 3, 32, 32)
    assert digits.classes == 10
    assert set(digits.test_labels.tolist()) == set(range(10))
    assert abs(float(digits.train_images.mean())) < 0.01
    assert torch.equal(digits.train_images[:, 0], digits.train_images[:, 2])


def test_digits_split_is_always_the_same() -> None:
    first, again = zoo.dataset("digits"), zoo.dataset("digits")
    assert torch.equal(first.test_images, again.test_images)


def test_mnist_from_npz(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 28, 28), dtype=np.uint8)
    labels = np.arange(6, dtype=np.uint8)
    path = tmp_path / "mnist.npz"
    np.savez(path, x_train=pixels, y_train=labels, x_test=pixels[:2], y_test=labels[:2])
    for folder in (tmp_path, path):
        data = zoo.dataset("mnist", folder)
        assert data.train_images.shape == (6, 3, 32, 32)
        assert data.test_labels.tolist() == [0, 1]


def test_cifar_from_npz_parts(tmp_path: Path) -> None:
    folder = tmp_path / "cifar100"
    folder.mkdir()
    white = np.full((3, 32, 32, 3), 255, dtype=np.uint8)
    for part in ("train-0", "train-1", "test"):
        np.savez(folder / f"{part}.npz", images=white, labels=np.array([0, 50, 99]))
    data = zoo.dataset("cifar100", tmp_path)
    assert data.train_images.shape == (6, 3, 32, 32)
    assert data.classes == 100
    expected = (1 - torch.tensor([0.5071, 0.4865, 0.4409])) / torch.tensor([0.2673, 0.2564, 0.2762])
    assert torch.allclose(data.train_images[0, :, 5, 5], expected)


def test_mnist_as_torchvision_lays_it_out(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (4, 28, 28), dtype=np.uint8)
    labels = np.array([3, 1, 4, 1], dtype=np.uint8)
    for split in ("train", "t10k"):
        images_file = struct.pack(">IIII", 0x803, 4, 28, 28) + pixels.tobytes()
        labels_file = struct.pack(">II", 0x801, 4) + labels.tobytes()
        for name, content in ((f"{split}-images-idx3-ubyte", images_file), (f"{split}-labels-idx1-ubyte", labels_file)):
            (raw / name).write_bytes(content)
            (raw / f"{name}.gz").write_bytes(gzip.compress(content))
    data = zoo.dataset("mnist", tmp_path)
    assert data.train_images.shape == (4, 3, 32, 32)
    assert data.test_labels.tolist() == [3, 1, 4, 1]


def test_cifar_as_torchvision_lays_it_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3072), dtype=np.uint8)

    def write(name: str, content: dict[str, Any]) -> tuple[str, str]:
        data = pickle.dumps(content)
        (folder / name).write_bytes(data)
        return name, hashlib.md5(data).hexdigest()

    batch = write("data_batch_1", {"data": pixels, "labels": [7, 9]})
    test = write("test_batch", {"data": pixels, "labels": [1, 2]})
    meta = write("batches.meta", {"label_names": [str(label) for label in range(10)]})
    cifar = zoo.import_torchvision().datasets.CIFAR10
    monkeypatch.setattr(cifar, "train_list", [batch])
    monkeypatch.setattr(cifar, "test_list", [test])
    monkeypatch.setattr(cifar, "meta", {"filename": meta[0], "key": "label_names", "md5": meta[1]})
    data = zoo.dataset("cifar10", tmp_path)
    assert data.train_labels.tolist() == [7, 9]
    assert data.test_images.shape == (2, 3, 32, 32)


def test_unknown_dataset() -> None:
    with pytest.raises(DataError, match="Known: digits"):
        zoo.dataset("imagenet")


def test_missing_data_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="download=True"):
        zoo.dataset("mnist")
    with pytest.raises(DataError, match="download=True"):
        zoo.dataset("cifar100", tmp_path)


def test_damaged_npz(tmp_path: Path) -> None:
    path = tmp_path / "mnist.npz"
    path.write_bytes(b"PK\x03\x04 not an archive")
    with pytest.raises(DataError, match="could not be read"):
        zoo.dataset("mnist", tmp_path)


def test_npz_without_the_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "mnist.npz", images=np.zeros(3))
    with pytest.raises(DataError, match="no array 'x_train'"):
        zoo.dataset("mnist", tmp_path)


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    objects = np.array([{"a": 1}], dtype=object)
    np.savez(tmp_path / "mnist.npz", x_train=objects, y_train=objects, x_test=objects, y_test=objects)
    with pytest.raises(DataError, match="could not be read"):
        zoo.dataset("mnist", tmp_path)
