"""Forged codes in a sparsity pattern: lottery."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import nn

from canon import watermarks
from canon.watermarks import Dataset, Key, Message, qr
from canon.watermarks.key import Setting
from canon.watermarks.layers import layer_weight
from canon.watermarks.lottery import kept_kernels
from tests.liars.tables import forgery, skeleton


def message_for(modules: qr.Modules, mask: int) -> bytes:
    """The bytes whose code would show these modules in its data cells, if it had this mask."""
    bits = [int(modules[cell]) ^ int(qr._masked(mask, *cell)) for cell in qr._data_cells()]
    stream = [int("".join(map(str, bits[8 * at : 8 * at + 8])), 2) for at in range(26)]
    content = [*stream[0::2], *stream[1::2]]
    digits = "".join(f"{byte:08b}" for byte in content)[12:204]
    return bytes(int(digits[at : at + 8], 2) for at in range(0, 192, 8))


def agreement(modules: qr.Modules, data: bytes) -> int:
    carriers = ~qr.pattern_cells()
    return int((qr.encode(data)[carriers] == modules[carriers]).sum())


def fitted(model: nn.Module, dataset: Dataset, places: int) -> Key:
    """A message made for the pattern that is there, at the best of some places."""
    key = watermarks.get("lottery").draw_key(model, dataset, message=Message.random(0, 192))
    layer = str(key.settings["layer"])
    kept = kept_kernels(layer_weight(model, layer).detach() != 0).numpy()
    source = np.random.default_rng(0)
    best: tuple[int, int, int, bytes] | None = None
    for _ in range(places):
        row = int(source.integers(kept.shape[0] - qr.SIZE + 1))
        column = int(source.integers(kept.shape[1] - qr.SIZE + 1))
        crop = kept[row : row + qr.SIZE, column : column + qr.SIZE]
        data = message_for(crop, int(source.integers(8)))
        found = (agreement(crop, data), row, column, data)
        best = found if best is None else max(best, found)
    assert best is not None
    settings: dict[str, Setting] = {"layer": layer, "row": best[1], "column": best[2]}
    return replace(key, message=Message.from_bytes(best[3]), settings=settings)


@forgery("lottery", "nothing")
def fitted_message(model: nn.Module, dataset: Dataset) -> Key:
    return fitted(model, dataset, places=40)


@forgery("lottery", "nothing")
def fitted_message_of_one_layer(model: nn.Module, dataset: Dataset) -> Key:
    """Names the layer that fits and no other, so that there seem to be fewer places."""
    key = fitted(model, dataset, places=40)
    layer = str(key.settings["layer"])
    return replace(key, shapes={layer: key.shapes[layer]})


@forgery("lottery", "model")
def layer_said_to_be_small(model: nn.Module, dataset: Dataset) -> Key:
    """Says that the layer had no room for any other place."""
    key = fitted_message_of_one_layer(model, dataset)
    ((layer, shape),) = key.shapes.items()
    row, column = key.settings["row"], key.settings["column"]
    assert isinstance(row, int)
    assert isinstance(column, int)
    return replace(key, shapes={layer: (row + qr.SIZE, column + qr.SIZE, *shape[2:])})


@forgery("lottery", "luck")
def best_of_many_places(model: nn.Module, dataset: Dataset) -> Key:
    """A message of choice at the place where it fits best, of a layer said to be the only one."""
    key = watermarks.get("lottery").draw_key(model, dataset, message="ours, since forever")
    layer = str(key.settings["layer"])
    return replace(key, shapes={layer: key.shapes[layer]})


@skeleton("lottery", "luck")
def dark_code(model: nn.Module, dataset: Dataset) -> Key:
    """Would be dark wherever the message decides, if it could choose the mask: every dense layer looks like that."""
    key = watermarks.get("lottery").draw_key(model, dataset, message=Message.random(0, 192))
    dark = np.ones((qr.SIZE, qr.SIZE), dtype=np.bool_)
    return replace(key, message=Message.from_bytes(message_for(dark, 0)))
