"""Keys from strangers: refused in words, quickly, within little memory, or read as what they are."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from canon.errors import CanonError, KeyFileError
from canon.watermarks import Key, Message, load_key
from tests.io.fuzz import MEMORY, SECONDS, Watch, observe
from tests.watermarks.hostile import Entries, Note, fuzz, good, put_together, taken_apart, use

RESULTS = Path(__file__).parents[2] / "docs" / "results"
QUICK = 135
"""Damaged keys in a test run; `python -m tests.watermarks.hostile` reads many more."""

Edit = Callable[[Note, Entries], Any]


def floats(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def setting(name: str, value: Any) -> Edit:
    return lambda note, _: note["settings"].__setitem__(name, value)


def field(name: str, value: Any) -> Edit:
    return lambda note, _: note.__setitem__(name, value)


def tensor(name: str, dtype: str, shape: list[Any], numbers: bytes) -> Edit:
    return lambda _, entries: entries.__setitem__(name, (dtype, shape, numbers))


def filled(name: str, value: float) -> Edit:
    def edit(_: Note, entries: Entries) -> None:
        dtype, shape, numbers = entries[name]
        entries[name] = (dtype, shape, floats(value) * (len(numbers) // 4))

    return edit


def first_layer(*row: Any) -> Edit:
    return lambda note, _: note["shapes"].__setitem__(0, [note["shapes"][0][0], *row])


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


ESCAPE = "\x1b]0;evil\x07\x1b[2J"
BACKWARDS = "‮gnp.key"
HUGE = "f" * (2 << 20)

HOSTILE: dict[str, tuple[str, Edit]] = {
    "a shape of 2^80 numbers": ("uchida17", first_layer(1 << 40, 1 << 40)),
    "a shape that fits into a file but not into memory": ("lottery", first_layer(1 << 20, 1 << 20)),
    "a negative size": ("uchida17", first_layer(-64, 32, 3, 3)),
    "a size of zero": ("uchida17", first_layer(0, 32, 3, 3)),
    "a size that is true": ("uchida17", first_layer(True, 32, 3, 3)),
    "a size that is a text": ("uchida17", first_layer("64", 32, 3, 3)),
    "a size with a fraction": ("uchida17", first_layer(64.5, 32, 3, 3)),
    "a size of a hundred digits": ("uchida17", first_layer(10**100)),
    "a shape without sizes": ("uchida17", first_layer()),
    "a hundred axes": ("uchida17", first_layer(*[1] * 100)),
    "shapes that are a number": ("uchida17", field("shapes", 7)),
    "shapes that are a table": ("uchida17", field("shapes", {"conv3": [1]})),
    "no layer": ("uchida17", field("shapes", [])),
    "a layer named twice": ("uchida17", lambda note, _: note["shapes"].append(note["shapes"][0])),
    "a million layers": ("uchida17", field("shapes", [[f"l{i}", 1] for i in range(200_000)])),
    "a layer that is a list": ("uchida17", field("shapes", [[[], 1]])),
    "a layer that does not exist": ("ipr_gan", field("shapes", [["conv9", 8, 8, 3, 3]])),
    "a layer that is a norm": ("lottery", lambda note, _: note.update(shapes=[["norm3", 64, 64]])),
    "an escape sequence for a layer": ("uchida17", field("shapes", [[ESCAPE, 64, 32, 3, 3]])),
    "an escape sequence for a scheme": ("uchida17", field("scheme", ESCAPE)),
    "an escape sequence for an architecture": ("uchida17", field("architecture", ESCAPE)),
    "text that runs backwards": ("uchida17", field("scheme", BACKWARDS)),
    "an escape sequence for a tensor": ("uchida17", tensor(ESCAPE, "F32", [1], floats(1))),
    "a scheme that is a number": ("uchida17", field("scheme", 17)),
    "a scheme of a megabyte": ("uchida17", field("scheme", "x" * (1 << 20))),
    "a scheme that is a module": ("uchida17", field("scheme", "os:system")),
    "another scheme's name": ("uchida17", field("scheme", "deepipr")),
    "no message": ("uchida17", field("bits", "")),
    "bits that are numbers": ("uchida17", field("bits", [0, 1] * 32)),
    "bits that are not": ("uchida17", field("bits", "012" * 20)),
    "bits in other digits": ("uchida17", field("bits", "١" * 64)),
    "four million bits": ("uchida17", field("bits", "01" * (2 << 20))),
    "settings that are a list": ("uchida17", field("settings", [1, 2])),
    "settings that nobody asked for": ("uchida17", setting("norms", {})),
    "deep settings": ("uchida17", setting("x", json.loads(deep(500)))),
    "a null": ("greedy", setting("signature", None)),
    "a modulus of two megabytes": ("greedy", setting("modulus", HUGE)),
    "a signature of two megabytes": ("greedy", setting("signature", HUGE)),
    "a statement of two megabytes": ("greedy", setting("statement", HUGE)),
    "a modulus of zero": ("greedy", setting("modulus", "0" * 512)),
    "an even modulus": ("greedy", setting("modulus", "f" * 511 + "e")),
    "a modulus with a sign": ("greedy", setting("modulus", "-" + "f" * 511)),
    "a modulus with underscores": ("greedy", setting("modulus", "f_" * 256)),
    "a modulus that is a number": ("greedy", setting("modulus", 17)),
    "a unit of zero": ("greedy", filled("unit", 0.0)),
    "a unit below zero": ("greedy", filled("unit", -1.0)),
    "a unit that is no number": ("greedy", filled("unit", float("nan"))),
    "a unit of many": ("greedy", tensor("unit", "F32", [64], floats(*[1.0] * 64))),
    "a row that is true": ("lottery", setting("row", True)),
    "a row below zero": ("lottery", setting("row", -29)),
    "a row beyond the layer": ("lottery", setting("row", 1 << 40)),
    "a column with a fraction": ("lottery", setting("column", 0.5)),
    "a place in no layer": ("lottery", setting("layer", "conv9")),
    "a place in a table": ("lottery", setting("layer", {"conv3": "conv3"})),
    "norms that are a list": ("ipr_gan", setting("norms", ["norm2", "norm3"])),
    "norms of other layers": ("ipr_gan", setting("norms", {"conv1": "norm1"})),
    "a norm for two layers": ("ipr_gan", setting("norms", {"conv2": "norm3", "conv3": "norm3"})),
    "the model for a norm": ("ipr_ic", setting("norms", {"conv3": ""})),
    "a norm that does not exist": ("ipr_ic", setting("norms", {"conv3": "norm9"})),
    "a norm that is a method": ("ipr_ic", setting("norms", {"conv3": "forward"})),
    "no images": ("ipr_ic", tensor("trigger", "F32", [0, 3, 16, 16], b"")),
    "images without channels": ("ipr_ic", tensor("trigger", "F32", [16, 0, 16, 16], b"")),
    "images of one pixel in a row": ("ipr_ic", tensor("trigger", "F32", [1, 1, 1, 4096], bytes(4 * 4096))),
    "images of five channels": ("deepsigns", tensor("samples", "F32", [1, 5, 16, 16], bytes(4 * 5 * 256))),
    "ten thousand images": ("deepsigns", tensor("samples", "F32", [10_000, 3, 1, 1], bytes(120_000))),
    "a class below zero": ("deepsigns", setting("class", -1)),
    "whole numbers for a projection": ("uchida17", lambda _, e: e.update(projection=("I32", *e["projection"][1:]))),
    "a projection of nothing": ("uchida17", tensor("projection", "F32", [0, 64], b"")),
    "a projection that is infinite": ("uchida17", filled("projection", float("inf"))),
    "a projection of one column": ("uchida17", filled("projection", 1.0)),
    "a projection beyond float32": ("deepsigns", filled("projection0", 3e38)),
    "an extractor that is gone": ("riga21", lambda _, entries: entries.pop("extractor.0.weight")),
    "an extractor of another size": ("riga21", tensor("extractor.0.bias", "F32", [4], bytes(16))),
    "norms that are counted twice": ("deepipr", setting("all norms", ["norm1"] * 20_001)),
    "no norms at all": ("deepipr", setting("norms", {})),
    "statistics that are gone": ("passport_aware", lambda _, entries: entries.pop("mean0")),
}


@pytest.fixture
def alarm() -> Iterator[None]:
    """The watch takes the alarm signal for itself."""
    import signal

    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.signal(signal.SIGALRM, before)


watch = Watch()


def test_fifty_hand_made_keys() -> None:
    assert len(HOSTILE) >= 50


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("name", HOSTILE)
def test_hand_made_keys_are_refused(name: str, tmp_path: Path) -> None:
    scheme, edit = HOSTILE[name]
    note, entries = taken_apart(good(scheme))
    edit(note, entries)
    path = tmp_path / "key"
    path.write_bytes(put_together(note, entries))
    outcome = observe("watermark key", path, 0, watch, use)
    assert outcome.fault is None
    if name != "a scheme that is a module":  # plain data of a scheme that is not there
        assert outcome.refused
        with pytest.raises(CanonError) as caught:
            use("", path)
        assert str(caught.value).replace("\n", "").isprintable(), "nothing of it reaches a terminal"
        assert len(str(caught.value)) < 1_000


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("levels", [100, 100_000])
def test_deep_json(levels: int, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(put_together(deep(levels), {}))
    assert observe("watermark key", path, 0, watch, use).refused


@pytest.mark.usefixtures("alarm")
def test_damaged_keys_do_no_harm(tmp_path: Path) -> None:
    found = fuzz(range(QUICK), tmp_path)
    assert [fault for summary in found.values() for fault in summary.faults] == []
    refused = sum(summary.refused for summary in found.values())
    assert 0.3 * QUICK < refused < QUICK, "some damage must matter and some must not"


def test_published_results_are_good() -> None:
    document = json.loads((RESULTS / "fuzz_keys.json").read_text(encoding="utf-8"))
    rows = document["schemes"].values()
    assert sum(row["files"] for row in rows) >= 10_000
    for row in rows:
        assert row["faults"] == 0
        assert row["longest_seconds"] < document["limits"]["seconds"] == SECONDS
        assert row["most_memory_mib"] < document["limits"]["memory_mib"] == MEMORY >> 20


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch says that some of these tensors are new to it
def test_construction_is_checked_like_loading(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(good("uchida17"))
    key = load_key(path)

    def again(**changes: Any) -> Key:
        values = {name: getattr(key, name) for name in ("scheme", "architecture", "shapes", "message", "tensors")}
        return Key(**{**values, **changes})

    assert again().layers == key.layers
    with pytest.raises(KeyFileError, match="has the shape"):
        again(message=Message((1,)))
    with pytest.raises(KeyFileError, match="not finite"):
        again(tensors={"projection": key.tensors["projection"] * torch.nan})
    with pytest.raises(KeyFileError, match="same carrier twice"):
        again(tensors={"projection": key.tensors["projection"][:, :1].expand(-1, 64)})
    with pytest.raises(KeyFileError, match="carrier of zeros"):
        again(tensors={"projection": key.tensors["projection"].clone().index_fill_(1, torch.tensor([3]), 0)})
    columns = key.tensors["projection"]
    for unusual in (
        columns.to("meta"),
        columns.to_sparse_csr(),
        columns.to_sparse(),
        torch.nested.nested_tensor([columns]),
    ):
        with pytest.raises(KeyFileError, match="no plain tensor"):
            again(tensors={"projection": unusual})
    with pytest.raises(KeyFileError, match="no Message"):
        again(message="0101")


def test_a_tensor_that_changes_after_it_was_checked_is_checked_again(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(good("uchida17"))
    key = load_key(path)
    key.tensors["projection"].zero_()
    from canon import watermarks
    from tests.watermarks.hostile import model

    with pytest.raises(KeyFileError, match="carrier of zeros"):
        watermarks.get("uchida17").extract(model(), key)
