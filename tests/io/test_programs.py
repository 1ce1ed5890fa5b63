"""Exported programs that were made to do harm, or that use what most do not."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import canon
from canon.errors import FileFormatError, LimitError, UnsupportedModelError
from canon.io import read_model
from tests.io.small import example, small


def rebuilt(source: Path, target: Path, change: Callable[[dict[str, bytes]], None], method: int = 0) -> Path:
    """A copy of an archive with other records and right checksums."""
    with zipfile.ZipFile(source) as archive:
        records = {info.filename: archive.read(info) for info in archive.infolist()}
    change(records)
    with zipfile.ZipFile(target, "w", method) as archive:
        for name, content in records.items():
            archive.writestr(name, content)
    return target


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "model.pt2"
    canon.save(small(), path, example=example())
    return path


@pytest.mark.parametrize("name", ["model/../evil", "model//evil", "/model/evil", "model/..", "model/a\\b", "model/c:d"])
def test_names_that_leave_an_archive(name: str, program: Path, tmp_path: Path) -> None:
    path = rebuilt(program, tmp_path / "model.pt2", lambda records: records.update({name: b"evil"}))
    with pytest.raises(FileFormatError, match=r"unsafe name|top folder"):
        canon.load(path)


def test_compressed_archives_are_bombs(program: Path, tmp_path: Path) -> None:
    path = rebuilt(program, tmp_path / "model.pt2", lambda records: None, zipfile.ZIP_DEFLATED)
    with pytest.raises(FileFormatError, match="compressed"):
        canon.load(path)


def test_records_that_overlap(program: Path, tmp_path: Path) -> None:
    data = bytearray(program.read_bytes())
    directory = data.rindex(b"PK\1\2")
    first = data.index(b"PK\1\2")
    data[directory + 42 : directory + 46] = data[first + 42 : first + 46]
    (tmp_path / "model.pt2").write_bytes(data)
    with pytest.raises(FileFormatError, match=r"not where the directory says|overlap"):
        canon.load(tmp_path / "model.pt2")


def edited(program: Path, target: Path, name: str, edit: Callable[[Any], None]) -> Path:
    """A copy of a program with one of its JSON documents changed."""

    def change(records: dict[str, bytes]) -> None:
        (full,) = (n for n in records if n.endswith(name))
        document = json.loads(records[full])
        edit(document)
        records[full] = json.dumps(document).encode()

    return rebuilt(program, target, change)


def test_pickles_in_a_program_are_refused(program: Path, tmp_path: Path) -> None:
    def pickled(document: Any) -> None:
        document["config"]["stem.weight"]["use_pickle"] = True

    def custom(document: Any) -> None:
        document["config"]["thing"] = {**meta(program), "path_name": "custom_obj_0"}

    for name, edit in (("weights_config.json", pickled), ("constants_config.json", custom)):
        path = edited(program, tmp_path / f"{edit.__name__}.pt2", name, edit)
        with pytest.raises(FileFormatError, match="pickled object, and unpickling runs code"):
            canon.load(path)


def meta(program: Path) -> Any:
    with zipfile.ZipFile(program) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("weights_config.json"))
        return json.loads(archive.read(name))["config"]["stem.weight"]


@pytest.mark.parametrize(
    "target",
    ["torch.ops.aten.from_file.default", "torch.ops.load_library", "os.system", "torch.ops.aten.resize_.default"],
)
def test_operations_come_from_a_list(target: str, program: Path, tmp_path: Path) -> None:
    def edit(document: Any) -> None:
        document["graph_module"]["graph"]["nodes"][0]["target"] = target

    with pytest.raises(UnsupportedModelError, match="which Canon does not read"):
        canon.load(edited(program, tmp_path / "model.pt2", "models/model.json", edit))


@pytest.mark.parametrize(
    "name", ['stem.weight"); import os; ("', "forward", "stem.__class__", "a" * 5000, "stem. weight"]
)
def test_names_in_a_program_are_plain(name: str, program: Path, tmp_path: Path) -> None:
    def edit(document: Any) -> None:
        document["config"][name] = document["config"].pop("stem.weight")

    with pytest.raises(FileFormatError, match="a tensor has the name"):
        canon.load(edited(program, tmp_path / "model.pt2", "weights_config.json", edit))


def test_a_tensor_larger_than_its_record(program: Path, tmp_path: Path) -> None:
    def edit(document: Any) -> None:
        document["config"]["stem.weight"]["tensor_meta"]["sizes"][0]["as_int"] = 1 << 20

    with pytest.raises(FileFormatError, match="reaches beyond its storage"):
        canon.load(edited(program, tmp_path / "model.pt2", "weights_config.json", edit))


def test_an_input_that_would_fill_the_memory(program: Path, tmp_path: Path) -> None:
    def edit(document: Any) -> None:
        document["graph_module"]["graph"]["tensor_values"]["x"]["sizes"][2] = {"as_int": 1 << 20}

    with pytest.raises(LimitError, match="the model takes an input of"):
        canon.load(edited(program, tmp_path / "model.pt2", "models/model.json", edit))


def test_a_trusted_pickle_in_a_program_is_read(program: Path, tmp_path: Path) -> None:
    entry = meta(program)
    buffer = io.BytesIO()
    torch.save(small().get_parameter("stem.weight"), buffer)

    def change(records: dict[str, bytes]) -> None:
        (table,) = (name for name in records if name.endswith("weights_config.json"))
        (numbers,) = (name for name in records if name.endswith(f"weights/{entry['path_name']}"))
        document = json.loads(records[table])
        document["config"]["stem.weight"]["use_pickle"] = True
        records[table] = json.dumps(document).encode()
        records[numbers] = buffer.getvalue()

    path = rebuilt(program, tmp_path / "model.pt2", change)
    with pytest.raises(FileFormatError, match="unpickling runs code"):
        canon.load(path)
    found = read_model(path, trust_pickle=True)
    assert found.notes == ("the file was unpickled: code in it may have run",)
    with torch.no_grad():
        assert torch.equal(found.model(example()), small()(example()))


def test_values_that_would_fill_the_memory(tmp_path: Path) -> None:
    class Bomb(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + x.new_zeros(3).repeat(7).sum()

    canon.save(Bomb().eval(), tmp_path / "small.pt2", example=torch.randn(2, 3))

    def edit(document: Any) -> None:
        (node,) = (n for n in document["graph_module"]["graph"]["nodes"] if "repeat" in n["target"])
        node["inputs"][1]["arg"] = {"as_ints": [1 << 40]}

    path = edited(tmp_path / "small.pt2", tmp_path / "bomb.pt2", "models/model.json", edit)
    with pytest.raises(LimitError, match="13194139533312 bytes in a tensor"):
        canon.load(path)

    def make(document: Any) -> None:
        (node,) = (n for n in document["graph_module"]["graph"]["nodes"] if "zeros" in n["target"])
        node["inputs"][1]["arg"] = {"as_ints": [1 << 29]}

    path = edited(tmp_path / "small.pt2", tmp_path / "bomb.pt2", "models/model.json", make)
    with pytest.raises(LimitError, match="too many numbers from nothing"):
        canon.load(path)


def test_a_division_that_may_end_the_process_is_refused(tmp_path: Path) -> None:
    class Places(nn.Module):
        def __init__(self, computed: bool) -> None:
            super().__init__()
            self.computed = computed

        def forward(self, x: Tensor) -> Tensor:
            places = torch.arange(4)
            return x + torch.div(places, places - 1 if self.computed else 2, rounding_mode="trunc")

    canon.save(Places(computed=False).eval(), tmp_path / "two.pt2", example=torch.randn(2, 4))
    assert canon.load(tmp_path / "two.pt2")(torch.zeros(1, 4)).tolist() == [[0, 0, 1, 1]]
    canon.save(Places(computed=True).eval(), tmp_path / "made.pt2", example=torch.randn(2, 4))
    with pytest.raises(FileFormatError, match="divided by what may be -1"):
        canon.load(tmp_path / "made.pt2")


def test_a_program_whose_parts_do_not_fit(program: Path, tmp_path: Path) -> None:
    def edit(document: Any) -> None:
        document["graph_module"]["graph"]["tensor_values"]["x"]["sizes"][1] = {"as_int": 4}

    with pytest.raises(FileFormatError, match="does not run on its own input"):
        canon.load(edited(program, tmp_path / "model.pt2", "models/model.json", edit))


class Odd(nn.Module):
    """Tensors that no layer owns, a layer called with other settings, several inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm1d(4)
        self.scale = nn.Parameter(torch.randn(4, 1, 1))
        self.shift: Tensor
        self.register_buffer("shift", torch.randn(4, 1, 1), persistent=False)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        first = self.conv(x) * self.scale + self.shift
        second = functional.conv2d(y, self.conv.weight, stride=2)
        a, b = first.chunk(2, dim=1)
        return torch.cat([b, a], 1), self.norm(second.mean((2, 3)).masked_fill(second.new_zeros(4) > 0, -float("inf")))


def test_uncommon_programs_compute_the_same(tmp_path: Path) -> None:
    model = Odd().eval()
    inputs = (torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8))
    canon.save(model, tmp_path / "odd.pt2", example=inputs)
    loaded = read_model(tmp_path / "odd.pt2")
    assert len(loaded.example) == 2
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(loaded.model(*inputs), model(*inputs), strict=True))


def test_norms_that_are_no_layers(tmp_path: Path) -> None:
    """Their operands have another order in a program; mixed up, a mean would be taken for a weight."""

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 6, 3)
            self.gain, self.bias = nn.Parameter(torch.rand(6) + 1), nn.Parameter(torch.randn(6))
            self.register_buffer("mean", torch.randn(6))
            self.register_buffer("variance", torch.rand(6) + 1)
            self.last = nn.Conv2d(6, 2, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = functional.batch_norm(self.conv(x), self.mean, self.variance, self.gain, self.bias)  # type: ignore[arg-type]
            return self.last(x.relu())  # type: ignore[no-any-return]

    model, x = Bare().eval(), torch.randn(2, 3, 8, 8)
    canon.save(model, tmp_path / "bare.pt2", example=x)
    loaded = canon.load(tmp_path / "bare.pt2")
    with torch.no_grad():
        assert torch.equal(loaded(x), model(x))
    stages = [stage.params for space in canon.trace(loaded, x).spaces for stage in space.stages if stage.params]
    assert stages == [stage.params for space in canon.trace(model, x).spaces for stage in space.stages if stage.params]
    assert {"weight": "gain", "bias": "bias", "mean": "mean", "var": "variance"} in map(dict, stages)


def test_a_batch_that_was_written_in_is_free_again(tmp_path: Path) -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(48, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x.view(x.shape[0], 48))  # type: ignore[no-any-return]

    model = Flat().eval()
    program = torch.export.export(model, (torch.randn(2, 3, 4, 4),))
    torch.export.save(program, tmp_path / "flat.pt2")
    x = torch.randn(5, 3, 4, 4)
    with torch.no_grad():
        assert torch.allclose(canon.load(tmp_path / "flat.pt2")(x), model(x))


def test_a_program_in_training_mode_is_refused(tmp_path: Path) -> None:
    program = torch.export.export(small().train(), (example(),))
    torch.export.save(program, tmp_path / "train.pt2")
    with pytest.raises(FileFormatError, match="exported in training mode"):
        canon.load(tmp_path / "train.pt2")
