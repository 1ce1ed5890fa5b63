"""Checkpoints larger than memory: recovered tensor by tensor, under a limit that does not hold the file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from canon.attacks import attack
from canon.errors import UnsupportedModelError
from canon.io.streaming import FileTensors, recover_file
from canon.recovery import recover

WIDTH, DEPTH, CHANNELS = 900, 24, 8
ROOM = 48 << 20
"""Bytes that recovery may take beyond the interpreter and its libraries."""


def network(widths: list[int]) -> nn.Sequential:
    """Linear layers of some widths, with a norm and an activation behind each."""
    layers: list[nn.Module] = []
    for before, after in zip([CHANNELS, *widths[:-1]], widths, strict=True):
        layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 3)).eval()


def attacked_file(path: Path, widths: list[int], *, shards: int = 1) -> tuple[nn.Module, nn.Module, Path]:
    """A clean model, the attacked one, and the file that holds it: an index where there are several parts."""
    torch.manual_seed(0)
    clean = network(widths)
    model = attack(clean, torch.zeros(1, CHANNELS), ["nso_zero", "nso_clique", "nso_split"], ratio=0.1).model
    state = model.state_dict()
    names = list(state)
    parts = [names[start::shards] for start in range(shards)]
    files = [f"part{index}.safetensors" for index in range(shards)]
    for name, part in zip(files, parts, strict=True):
        save_file({key: state[key].contiguous() for key in part}, str(path / name))
    if shards == 1:
        return clean, model, path / files[0]
    index = path / "model.safetensors.index.json"
    weight_map = {key: name for name, part in zip(files, parts, strict=True) for key in part}
    index.write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    return clean, model, index


def widths_of(model: nn.Module) -> list[int]:
    return [layer.out_features for layer in model.modules() if isinstance(layer, nn.Linear)][:-1]


def skeleton_of(model: nn.Module) -> nn.Module:
    return network(widths_of(model)).to("meta")


@pytest.mark.parametrize("shards", [1, 3])
def test_a_file_comes_back_as_the_model_does(tmp_path: Path, shards: int) -> None:
    clean, model, source = attacked_file(tmp_path, [20, 30, 25], shards=shards)
    example = torch.zeros(1, CHANNELS)
    report = recover_file(source, tmp_path / "out.safetensors", skeleton_of(model), example)
    written, expected = load_file(str(tmp_path / "out.safetensors")), recover(model, example)
    assert written.keys() == expected.model.state_dict().keys()
    for name, tensor in expected.model.state_dict().items():
        assert torch.allclose(written[name], tensor, rtol=1e-5, atol=1e-7), name  # sketches are drawn anew
    assert {name: t.shape for name, t in written.items()} == {name: t.shape for name, t in clean.state_dict().items()}
    assert report.parameters == expected.report.parameters
    assert (report.removed, report.merged) == (expected.report.removed, expected.report.merged)


def test_a_skeleton_of_other_widths_is_refused(tmp_path: Path) -> None:
    _, _, source = attacked_file(tmp_path, [20, 30])
    with pytest.raises(UnsupportedModelError, match="the skeleton has"):
        recover_file(source, tmp_path / "out.safetensors", network([20, 30]).to("meta"), torch.zeros(1, CHANNELS))
    assert not (tmp_path / "out.safetensors").exists()


LIMITED = """
import json, resource, sys
import torch
from tests.io.test_streaming import CHANNELS, ROOM, network
from canon.io.streaming import recover_file

torch.set_num_threads(1)
source, target, small = sys.argv[1:4]
with torch.device("meta"):
    skeleton, first = (network(json.loads(widths)) for widths in sys.argv[4:6])
recover_file(small, target + ".small", first, torch.zeros(1, CHANNELS))  # loads all libraries that it takes
in_use = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (in_use + ROOM, in_use + ROOM))
try:
    torch.empty(int(sys.argv[6]), dtype=torch.uint8)
except RuntimeError:
    print("the file does not fit")
recover_file(source, target, skeleton, torch.zeros(1, CHANNELS))
"""


def test_a_file_larger_than_memory(tmp_path: Path) -> None:
    """The limit is on addresses, so that neither copies nor maps of the whole file can pass."""
    clean, model, source = attacked_file(tmp_path, [WIDTH] * DEPTH)
    size = source.stat().st_size
    assert size > 2 * ROOM
    (tmp_path / "small").mkdir()
    _, first, small = attacked_file(tmp_path / "small", [300, 300])
    arguments = [str(source), str(tmp_path / "out.safetensors"), str(small)]
    arguments += [json.dumps(widths_of(m)) for m in (model, first)]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *arguments, str(size)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "the file does not fit"
    written = FileTensors(tmp_path / "out.safetensors")
    assert {name: written.shape(name) for name in written} == {n: t.shape for n, t in clean.state_dict().items()}
