"""Key files: what they keep, and what they refuse."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from canon.errors import KeyFileError
from canon.watermarks import Key, Message, get, load_key
from canon.watermarks.key import FORMAT, VERSION
from tests.watermarks.small import small_digits


def a_key() -> Key:
    return Key(
        scheme="not_installed",  # of a scheme that is not there, a key must be plain data and no more
        architecture="abc",
        shapes={"b.conv": (4, 3, 1, 1), "a.fc": (10, 4)},
        message=Message.from_text("ours"),
        settings={"norms": {"b.conv": "b.norm"}, "class": 3, "list": [1, 2]},
        tensors={"projection": torch.arange(6.0).view(2, 3), "unit": torch.tensor(0.5)},
    )


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "key"
    key = a_key()
    key.save(path)
    read = load_key(path)
    assert (read.scheme, read.architecture, read.message) == (key.scheme, key.architecture, key.message)
    assert list(read.shapes.items()) == list(key.shapes.items()), "layer order is kept"
    assert read.settings == key.settings
    assert {name: value.tolist() for name, value in read.tensors.items()} == {
        name: value.tolist() for name, value in key.tensors.items()
    }


def test_a_key_without_tensors(tmp_path: Path) -> None:
    path = tmp_path / "key"
    place: dict[str, str | int] = {"layer": "fc", "row": 0, "column": 3}
    Key("lottery", "abc", {"fc": (29, 32)}, Message.from_text("ours"), place).save(path)
    assert load_key(path).tensors == {}


@pytest.mark.parametrize("keep", [0, 7, 40, 300])
def test_truncated(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "key"
    a_key().save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(KeyFileError, match="damaged"):
        load_key(path)


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="no such key file"):
        load_key(tmp_path / "none")


def test_pickle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    torch.save({"scheme": "uchida17"}, path)
    with pytest.raises(KeyFileError, match="damaged"):
        load_key(path)


def write(path: Path, header: object) -> None:
    save_file({"x": torch.zeros(1)}, path, metadata={"canon": json.dumps(header)})


def test_a_model_is_not_a_key(tmp_path: Path) -> None:
    path = tmp_path / "model"
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(KeyFileError, match="not a watermark key"):
        load_key(path)


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ({"format": FORMAT, "version": VERSION + 1}, "Upgrade Canon"),
        ({"format": "canon-layout-key", "version": 1}, "is a 'canon-layout-key'"),
        ({"format": FORMAT, "version": VERSION}, "incomplete"),
        ({"format": FORMAT}, "not a watermark key"),
        ([1], "not a watermark key"),
    ],
)
def test_headers_that_are_refused(tmp_path: Path, header: object, complaint: str) -> None:
    path = tmp_path / "key"
    write(path, header)
    with pytest.raises(KeyFileError, match=complaint):
        load_key(path)


@pytest.mark.parametrize("name", ["ipr_gan", "ipr_ic", "deepsigns", "deepipr", "passport_aware"])
def test_layers_whose_names_are_not_in_order_are_read_alike_from_a_file(tmp_path: Path, name: str) -> None:
    """Six blocks: the layers 0, 3, 6, 9, 12 and 15 sort as 0, 12, 15, 3, 6 and 9."""
    widths = [3, 8, 12, 16, 20, 24, 28]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(28, 10)).eval()
    scheme = get(name)
    marked = [str(index) for index in range(0, 18, 3)]
    key = scheme.draw_key(model, small_digits(40, 10), message=Message.random(0, 8), layers=marked)
    key.save(tmp_path / "key")
    assert scheme.extract(model, load_key(tmp_path / "key")) == scheme.extract(model, key)
