"""Files that were made to do harm: refused, with the reason, before anything happens."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import canon
from canon.errors import CanonError, FileFormatError, LimitError, ZooError
from canon.io import Limits, read_model
from tests.io.small import SmallNet, example, small

ARCH = "tests.io.small:SmallNet"


class Evil:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("legacy", [False, True])
def test_pickles_are_never_run(tmp_path: Path, legacy: bool) -> None:
    mark, path = tmp_path / "mark", tmp_path / "evil.pt"
    torch.save(Evil(mark), path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(FileFormatError, match=r"a pickle of a '\w+\.mkdir', not a state dict") as raised:
        canon.load(path, ARCH)
    assert "runs whatever code the file holds" in str(raised.value.hint)
    torch.save({"extra": Evil(mark), **small().state_dict()}, path, _use_new_zipfile_serialization=not legacy)
    canon.load(path, ARCH)
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(Evil(mark)))
    with pytest.raises(FileFormatError):
        canon.load(tmp_path / "bare.pt", ARCH)
    assert not mark.exists()


def test_a_pickled_module_is_named_and_read_only_on_demand(tmp_path: Path) -> None:
    path = tmp_path / "whole.pt"
    torch.save(small(), path)
    with pytest.raises(FileFormatError, match=r"a pickle of a 'tests.io.small.SmallNet'"):
        canon.load(path)
    found = read_model(path, trust_pickle=True)
    assert isinstance(found.model, SmallNet)
    assert found.notes == ("the file was unpickled: code in it may have run",)


def test_a_pickle_that_refers_to_itself_takes_no_time(tmp_path: Path) -> None:
    bomb: Any = ()
    for _ in range(60):
        bomb = (bomb, bomb)
    torch.save({"bomb": bomb, **small().state_dict()}, tmp_path / "bomb.pt")
    canon.load(tmp_path / "bomb.pt", ARCH)
    key = b"\x80\x02}" + b")q\x00" + b"0h\x00h\x00\x86q\x00" * 60 + b"K\x01s."
    (tmp_path / "key.pt").write_bytes(key)
    with pytest.raises(FileFormatError, match="a tuple is a key"):
        canon.load(tmp_path / "key.pt", ARCH)


def test_whole_numbers_of_one_hash_are_no_keys(tmp_path: Path) -> None:
    modulus = (1 << 61) - 1
    keys = b"".join(b"\x8a\x0b" + (i * modulus).to_bytes(11, "little") + b"N" for i in range(1, 9))
    path = tmp_path / "keys.pt"
    path.write_bytes(b"\x80\x02}(" + keys + b"u.")
    with pytest.raises(FileFormatError, match="an int is a key that is too large"):
        canon.load(path, ARCH)


def header_file(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        ({"a": F32}, b"1234567", "the file at"),
        ({"a": F32}, b"123456789", "the file at"),
        ({"a": F32, "b": F32}, b"12345678", "overlap or leave gaps"),
        ({"a": {**F32, "data_offsets": [4, 12]}}, b"1" * 12, "overlap or leave gaps"),
        ({"a": {**F32, "shape": [3]}}, b"12345678", "contradicts itself"),
        ({"a": {**F32, "shape": [1 << 40, 1 << 40]}}, b"12345678", "contradicts itself"),
        ({"a": {**F32, "shape": [-2]}}, b"12345678", "whole number"),
        ({"a": {**F32, "shape": [1] * 1000}}, b"12345678", "not a shape"),
        ({"a": {**F32, "dtype": "F31"}}, b"12345678", "not understood"),
        ({"a": {**F32, "data_offsets": [8, 0]}}, b"12345678", "contradicts itself"),
        ({"a": {**F32, "data_offsets": [True, 8]}}, b"12345678", "whole number"),
        ({"__metadata__": {"a": 1}}, b"", "table of texts"),
        (b'{"a": {}, "a": {}}', b"", "stands twice"),
        (b'{"a": NaN}', b"", "NaN is no JSON"),
        (b"{" + b'"a":{' * 100_000, b"", "no valid JSON"),
    ],
)
def test_headers_that_lie(header: object, data: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=words):
        canon.load(header_file(tmp_path / "model.safetensors", header, data), ARCH)


def test_a_header_longer_than_the_file(tmp_path: Path) -> None:
    path = header_file(tmp_path / "model.safetensors", {}, length=1 << 60)
    with pytest.raises(FileFormatError, match="a header of 1152921504606846976 bytes"):
        canon.load(path, ARCH)


@pytest.mark.parametrize("part", ["../part.safetensors", "/etc/passwd", "sub/part.safetensors", "part.pt", 3, ""])
def test_an_index_stays_in_its_folder(part: object, tmp_path: Path) -> None:
    index = tmp_path / "sub" / "model.safetensors.index.json"
    index.parent.mkdir()
    canon.save(small(), tmp_path / "part.safetensors")
    index.write_text(json.dumps({"weight_map": {"stem.weight": part}}))
    with pytest.raises(FileFormatError, match="no safetensors file beside it"):
        canon.load(index, ARCH)


@pytest.fixture(scope="module", params=[".safetensors", ".pt", ".pt2"])
def good(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / f"model{request.param}"
    canon.save(small(), path, example=example())
    return path


@pytest.mark.parametrize(
    "limits",
    [
        Limits(file_bytes=1000),
        Limits(header_bytes=50),
        Limits(tensors=3),
        Limits(tensor_bytes=64),
        Limits(dimensions=3),
    ],
)
def test_limits(good: Path, limits: Limits) -> None:
    with pytest.raises(LimitError, match="are allowed"):
        canon.load(good, ARCH, limits=limits)


@pytest.mark.parametrize(
    ("suffix", "bad"),
    [(".safetensors", float("nan")), (".safetensors", float("inf")), (".pt", float("-inf")), (".pt2", float("nan"))],
)
def test_numbers_that_are_not_finite(suffix: str, bad: float, tmp_path: Path) -> None:
    model = small()
    with torch.no_grad():
        next(model.parameters())[0, 0, 0, 0] = bad
    canon.save(model, tmp_path / f"model{suffix}", example=example())
    with pytest.raises(FileFormatError, match=r"'stem.weight' holds numbers that are not finite"):
        canon.load(tmp_path / f"model{suffix}", ARCH)


@pytest.mark.parametrize("data", [b"", b"\0", b"PK\3\4", b"<html>", b"\x80", b"\x08\x07" * 20])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pt2", ".onnx", ".safetensors.index.json"])
def test_files_that_are_nothing(data: bytes, suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"model{suffix}").write_bytes(data)
    with pytest.raises(FileFormatError):
        canon.load(tmp_path / f"model{suffix}", ARCH)


def test_torchscript_is_named(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in ("m/data.pkl", "m/constants.pkl", "m/code/__torch__.py"):
            archive.writestr(name, b"\x80\x02N.")
    (tmp_path / "model.pt").write_bytes(buffer.getvalue())
    with pytest.raises(FileFormatError, match="TorchScript"):
        canon.load(tmp_path / "model.pt", ARCH)


@pytest.mark.parametrize(
    ("arch", "words"),
    [
        ("tests.io.small:Nothing", "the factory failed: AttributeError"),
        ("tests.io.nothing:SmallNet", "the factory failed: ModuleNotFoundError"),
        ("tests.io.small:example", "the factory made a Tensor"),
        ("squeezenet1_1", "the weights belong to another architecture"),
    ],
)
def test_architectures_that_do_not_fit(arch: str, words: str, tmp_path: Path) -> None:
    canon.save(small(), tmp_path / "model.safetensors")
    with pytest.raises((ZooError, FileFormatError), match=words):
        canon.load(tmp_path / "model.safetensors", arch)


def test_kernels_that_no_attack_makes(tmp_path: Path) -> None:
    model = small()
    model.first.weight = nn.Parameter(torch.zeros(8, 8, 4, 3))  # type: ignore[union-attr]
    canon.save(model, tmp_path / "model.safetensors")
    with pytest.raises(FileFormatError, match=r"the kernel of 'first.weight'"):
        canon.load(tmp_path / "model.safetensors", ARCH)


def test_every_refusal_is_an_error_of_canon() -> None:
    assert issubclass(LimitError, FileFormatError)
    assert issubclass(FileFormatError, CanonError)
