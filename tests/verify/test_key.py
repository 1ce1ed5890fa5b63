"""Layout keys: small, exact, and safe to take from anybody."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from canon import zoo
from canon._files import OutputError
from canon.errors import CanonError, KeyFileError, VerificationError
from canon.verify import LayoutKey, align, compare, register
from canon_benchmarks.subjects import subject
from tests.verify.small import disguise, example, largest_difference, tiny


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "layout.safetensors"
    register(tiny(), example()).save(path)
    return path


def test_a_key_aligns_after_a_trip_through_its_file(key_file: Path) -> None:
    key = LayoutKey.load(key_file)
    found = align(disguise(tiny(), example()), key, example())
    assert found.established
    assert largest_difference(found.model, tiny()) < 1e-6
    assert compare(found, tiny(), example(), 1e-6).passed


def test_a_key_holds_no_row_of_the_model(key_file: Path) -> None:
    """Sketches and scales are far fewer than the weights, and none of them is a weight."""
    stored = torch.cat([tensor.flatten().double() for tensor in load_file(key_file).values()])
    weights = torch.cat([p.detach().flatten().double() for n, p in tiny().named_parameters() if "weight" in n])
    shared = torch.isin(stored.float(), weights.float()).sum()
    assert int(shared) <= 2, "float32 numbers of this size meet by chance"


def test_an_existing_key_is_kept(key_file: Path) -> None:
    with pytest.raises(OutputError, match="exists already"):
        register(tiny(), example()).save(key_file)


def test_the_same_model_and_seed_give_the_same_key(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.safetensors" for name in ("first", "again", "other")]
    for path, seed in zip(files, (5, 5, None), strict=True):
        register(tiny(), example(), seed=seed).save(path)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[0].read_bytes() != files[2].read_bytes(), "without a seed it is secret"


def test_the_number_of_numbers_is_bounded() -> None:
    assert register(tiny(), example(), numbers=3).layout.numbers == 3
    with pytest.raises(VerificationError, match="1 to 1024"):
        register(tiny(), example(), numbers=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.PAPER_MODELS)
def test_a_key_is_at_most_three_percent_of_the_model(name: str, tmp_path: Path) -> None:
    model, path = subject(name), tmp_path / "layout.safetensors"
    register(model, zoo.example_input(name)).save(path)
    assert path.stat().st_size <= 0.03 * sum(t.numel() * t.element_size() for t in model.state_dict().values())


# -- files that are not what they should be --------------------------------------------------------------------------


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="no such key file"):
        LayoutKey.load(tmp_path / "none")


@given(st.integers(0, 10_000))
def test_a_truncated_file_is_an_error(key_file: Path, cut: int) -> None:
    content = key_file.read_bytes()
    path = key_file.with_name(f"cut-{cut}")
    path.write_bytes(content[: cut % len(content)])
    with pytest.raises(KeyFileError, match="damaged"):
        LayoutKey.load(path)


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (pytest.fail, ("the pickle was opened",))

    path = tmp_path / "bomb"
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(KeyFileError, match="damaged or is no safetensors file"):
        LayoutKey.load(path)


def rewritten(source: Path, target: Path, change: Callable[[dict[str, Any], dict[str, torch.Tensor]], None]) -> Path:
    """A key file with another header or other tensors."""
    tensors = load_file(source)
    raw = source.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(json.loads(raw[8 : 8 + size])["__metadata__"]["canon"])
    change(header, tensors)
    save_file(tensors, str(target), metadata={"canon": json.dumps(header)})
    return target


def test_a_newer_format_is_an_error(key_file: Path, tmp_path: Path) -> None:
    path = rewritten(key_file, tmp_path / "new", lambda header, _: header.update(version=3))
    with pytest.raises(KeyFileError, match=r"format version 3; this Canon reads up to 2.*Upgrade"):
        LayoutKey.load(path)


def test_a_file_of_another_kind_is_an_error(key_file: Path, tmp_path: Path) -> None:
    path = rewritten(key_file, tmp_path / "kind", lambda header, _: header.update(format="canon-watermark-key"))
    with pytest.raises(KeyFileError, match="'canon-watermark-key', not a layout key"):
        LayoutKey.load(path)
    save_file({"a": torch.zeros(1)}, str(tmp_path / "weights"))
    with pytest.raises(KeyFileError, match="not a layout key"):
        LayoutKey.load(tmp_path / "weights")


def test_another_random_stream_is_an_error(key_file: Path, tmp_path: Path) -> None:
    path = rewritten(key_file, tmp_path / "stream", lambda header, _: header["stream"].__setitem__(0, 0.5))
    with pytest.raises(KeyFileError, match="other random numbers"):
        LayoutKey.load(path)


HOSTILE: dict[str, Callable[[dict[str, Any], dict[str, torch.Tensor]], Any]] = {
    "too few numbers": lambda h, t: t.update(features=t["features"][:-1]),
    "too many numbers": lambda h, t: t.update(scales=torch.cat([t["scales"], torch.ones(1)])),
    "not a number": lambda h, t: t["features"].__setitem__(0, float("nan")),
    "no tensors": lambda h, t: t.clear(),
    "integers": lambda h, t: t.update(features=t["features"].long()),
    "a matrix": lambda h, t: t.update(features=t["features"][None]),
    "huge width": lambda h, t: h["steps"][0].__setitem__(1, 10**15),
    "negative width": lambda h, t: h["steps"][0].__setitem__(1, -4),
    "text for a number": lambda h, t: h["steps"][0].__setitem__(1, "16"),
    "unknown space": lambda h, t: h["steps"][0].__setitem__(0, 77),
    "unknown map": lambda h, t: h["steps"][0].__setitem__(3, [77]),
    "map that is not ready": lambda h, t: h["steps"][0].__setitem__(3, [1]),
    "unknown tap": lambda h, t: h["steps"][0][4].__setitem__(0, 10**6),
    "no steps": lambda h, t: (h["steps"].clear(), t.update({name: value[:0] for name, value in t.items()})),
    "steps in another order": lambda h, t: h["steps"].reverse(),
    "no shapes": lambda h, t: h["shapes"].clear(),
    "other wiring": lambda h, t: h.update(wiring="0" * 64),
    "zero block": lambda h, t: t["blocks"].__setitem__(0, 0),
    "leader out of range": lambda h, t: t.update({"leader.0": torch.full((16,), 99, dtype=torch.int32)}),
    "leaders in a ring": lambda h, t: t.update({"leader.0": torch.arange(16, dtype=torch.int32).roll(1)}),
    "label of another length": lambda h, t: t.update({"label.0": torch.zeros(3, dtype=torch.int32)}),
    "numbers": lambda h, t: h.update(numbers=10**9),
    "missing field": lambda h, t: h.pop("wiring"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_key_is_an_error(name: str, key_file: Path, tmp_path: Path) -> None:
    def change(header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        HOSTILE[name](header, tensors)

    path = rewritten(key_file, tmp_path / "hostile", change)
    suspect: nn.Module = disguise(tiny(), example())
    with pytest.raises((KeyFileError, VerificationError)) as caught:
        align(suspect, LayoutKey.load(path), example())
    assert isinstance(caught.value, CanonError)


def test_a_key_of_another_model_is_not_established(tmp_path: Path) -> None:
    found = align(tiny(1), register(tiny(0), example()), example())
    assert not found.established
    assert found.worst > 0.1


def test_a_space_in_which_no_channel_does_anything_cannot_be_registered() -> None:
    net = tiny()
    with torch.no_grad():
        for name in ("norm3.weight", "norm3.bias", "conv3.weight"):
            net.get_parameter(name).zero_()
    with pytest.raises(VerificationError, match="no channel does anything"):
        register(net, example())


class Recurrent(nn.Module):
    """A program that is told as data but for its recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.memory = nn.Linear(24, 40), nn.LSTM(40, 32, batch_first=True)
        self.after, self.head = nn.Linear(32, 48), nn.Linear(48, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        states, _ = self.memory(torch.relu(self.before(images.transpose(1, 2).flatten(2))))
        logits: torch.Tensor = self.head(torch.relu(self.after(states[:, -1])))
        return logits


def test_a_network_with_a_recurrent_layer_can_be_registered() -> None:
    key = register(Recurrent().eval(), example())
    assert key.program is None
