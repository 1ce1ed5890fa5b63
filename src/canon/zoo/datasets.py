"""Public datasets by name, always as 3-channel 32×32 normalised float images; and `library`, which is texts.

`digits` comes with scikit-learn and `library` with Python; neither needs a download. MNIST and CIFAR are read from a
folder: as torchvision lays them out, or as npz files. Nothing is downloaded unless the caller asks.

npz files: `mnist.npz` with `x_train`, `y_train`, `x_test`, `y_test`; for CIFAR a folder of that
name with `train*.npz` and `test.npz`, each holding `images` (`N×32×32×3`, uint8) and `labels`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from canon.errors import DataError, choices, import_extra
from canon.watermarks.data import Dataset
from canon.zoo.compatibility import import_torchvision
from canon.zoo.text import library_texts

_SIZE: Final = 32
_LIBRARY: Final = "library"
_CLASSES: Final = {"digits": 10, "mnist": 10, "cifar10": 10, "cifar100": 100}
_MEAN: Final = {
    "digits": (0.3053,),
    "mnist": (0.1307,),
    "cifar10": (0.4914, 0.4822, 0.4465),
    "cifar100": (0.5071, 0.4865, 0.4409),
}
_DEVIATION: Final = {
    "digits": (0.3760,),
    "mnist": (0.3081,),
    "cifar10": (0.2470, 0.2435, 0.2616),
    "cifar100": (0.2673, 0.2564, 0.2762),
}
_TORCHVISION: Final = {"mnist": "MNIST", "cifar10": "CIFAR10", "cifar100": "CIFAR100"}

Raw = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]
"""Train images, train labels, test images, test labels, as the source holds them."""


def dataset_names() -> tuple[str, ...]:
    """Every dataset that `dataset` knows."""
    return (*_CLASSES, _LIBRARY)


def dataset(name: str, folder: str | Path | None = None, *, download: bool = False) -> Dataset:
    """Load a dataset by name; all but `digits` and `library` are read from `folder`.

    >>> dataset("digits").train_images.shape[1:]
    torch.Size([3, 32, 32])
    """
    if name == _LIBRARY:
        return library_texts()
    if name not in _CLASSES:
        raise DataError(f"no dataset '{name}'", hint=choices(name, dataset_names()))
    raw = _digits() if name == "digits" else _from_folder(name, folder, download)
    train_images, train_labels, test_images, test_labels = raw
    return Dataset(
        name=name,
        classes=_CLASSES[name],
        train_images=_normalise(name, train_images),
        train_labels=torch.from_numpy(train_labels.astype(np.int64)),
        test_images=_normalise(name, test_images),
        test_labels=torch.from_numpy(test_labels.astype(np.int64)),
    )


def _normalise(name: str, images: NDArray[Any]) -> Tensor:
    """uint8 `N×H×W` or `N×H×W×3` to normalised float `N×3×32×32`."""
    tensor = torch.from_numpy(np.ascontiguousarray(images)).float() / 255.0
    tensor = tensor.unsqueeze(1) if tensor.ndim == 3 else tensor.permute(0, 3, 1, 2)
    if tensor.shape[-1] != _SIZE:
        tensor = functional.interpolate(tensor, size=(_SIZE, _SIZE), mode="bilinear", align_corners=False)
    mean = torch.tensor(_MEAN[name]).view(1, -1, 1, 1)
    deviation = torch.tensor(_DEVIATION[name]).view(1, -1, 1, 1)
    return ((tensor - mean) / deviation).expand(-1, 3, -1, -1).contiguous()


def _digits() -> Raw:
    """scikit-learn's 1,797 digits; every fifth image of a fixed shuffle is for testing."""
    bunch = import_extra("sklearn.datasets", "zoo", "scikit-learn").load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    images = np.round(bunch.images[order] * (255.0 / 16.0)).astype(np.uint8)
    labels = bunch.target[order]
    test = np.arange(len(order)) % 5 == 0
    return images[~test], labels[~test], images[test], labels[test]


def _from_folder(name: str, folder: str | Path | None, download: bool) -> Raw:
    hint = (
        f"Give a folder that holds it as torchvision lays it out or as npz files, or let "
        f'torchvision fetch it: canon.zoo.dataset("{name}", FOLDER, download=True).'
    )
    if folder is None:
        raise DataError(f"the dataset '{name}' does not come with Canon", hint=hint)
    root = Path(folder)
    for source in (_from_mnist_npz, _from_npz_parts):
        raw = source(name, root)
        if raw is not None:
            return raw
    loader: Callable[..., Any] = getattr(import_torchvision().datasets, _TORCHVISION[name])
    try:
        train = loader(str(root), train=True, download=download)
        test = loader(str(root), train=False, download=download)
    except (OSError, RuntimeError, pickle.UnpicklingError, ValueError) as error:
        raise DataError(f"the dataset '{name}' could not be read: {error}", where=str(root), hint=hint) from error
    return (
        np.asarray(train.data),
        np.asarray(train.targets),
        np.asarray(test.data),
        np.asarray(test.targets),
    )


def _from_mnist_npz(name: str, root: Path) -> Raw | None:
    path = root if root.suffix == ".npz" else root / f"{name}.npz"
    if not path.is_file():
        return None
    return (
        _array(path, "x_train"),
        _array(path, "y_train"),
        _array(path, "x_test"),
        _array(path, "y_test"),
    )


def _from_npz_parts(name: str, root: Path) -> Raw | None:
    for candidate in (root / name, root):
        parts = sorted(candidate.glob("train*.npz"))
        test = candidate / "test.npz"
        if parts and test.is_file():
            return (
                np.concatenate([_array(part, "images") for part in parts]),
                np.concatenate([_array(part, "labels") for part in parts]),
                _array(test, "images"),
                _array(test, "labels"),
            )
    return None


def _array(path: Path, name: str) -> NDArray[Any]:
    """One array of an npz file; pickled objects are refused."""
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as archive:
            array: NDArray[Any] = archive[name]
    except KeyError as error:
        raise DataError(f"the file has no array '{name}'", where=str(path)) from error
    except Exception as error:  # numpy raises BadZipFile, ValueError, EOFError, OSError, ...
        raise DataError(f"the file could not be read: {error}", where=str(path)) from error
    return array
