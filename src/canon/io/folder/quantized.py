"""Weights of eight bits, as bitsandbytes and GPTQ store them: read as float16, to be compared.

bitsandbytes keeps `weight`, whole numbers of one byte, with the largest magnitude of every row in `SCB`. GPTQ keeps
`qweight`, four numbers in each word down the inputs, with `scales` and `qzeros` for every group of inputs and `g_idx`,
the group of each input. What a config declares otherwise is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from canon._safetensors import Entry
from canon.errors import FileFormatError
from canon.graph.tensors import StoredTensors
from canon.io.folder.config import Config
from canon.io.weights import Shards

KEY: Final = "quantization_config"
READ_AS: Final = torch.float16
_PARTS: Final = {"bitsandbytes": ("SCB", "weight_format"), "gptq": ("qzeros", "scales", "g_idx")}


@dataclass(frozen=True, eq=False)
class Quantized:
    """How a folder's weights are quantised."""

    method: str

    @staticmethod
    def of(config: Config, where: str) -> Quantized | None:
        """What a config declares; None: nothing.

        Raises:
            FileFormatError: It declares another layout than those of eight bits that are known.
        """
        how = config.values.get(KEY)
        if not how:
            return None
        how = how if isinstance(how, dict) else {}
        method = how.get("quant_method", "bitsandbytes" if how.get("load_in_8bit") else "unknown")
        eight = how.get("load_in_8bit") is True if method == "bitsandbytes" else how.get("bits") == 8
        if method not in _PARTS or not eight:
            raise FileFormatError(
                f"the weights are quantised in a way that is not read ({method!s:.40})",
                where=where,
                hint="Save the model after dequantize(), in float16 or bfloat16",
            )
        return Quantized(str(method))

    @property
    def note(self) -> str:
        """What a user should know."""
        return f"the weights are quantised ({self.method}, 8 bits); they were read as float16, and are written so"

    def plain(self, config: Config) -> Config:
        """The config without what it says of this."""
        return replace(config, values={name: value for name, value in config.values.items() if name != KEY})

    def shown(self, shards: Shards, where: str) -> Shards:
        """The shards as they would be without quantisation, shapes and types alone."""
        entries: dict[str, tuple[Any, Entry]] = {}
        for name, (path, entry) in shards.entries.items():
            layer, _, kind = name.rpartition(".")
            if kind == "qweight":
                self._check(layer, shards, where)
                shape = (entry.shape[1], 4 * entry.shape[0])
                entries[f"{layer}.weight"] = (path, replace(entry, dtype=READ_AS, shape=shape))
            elif kind == "weight" and entry.dtype == torch.int8:
                self._check(layer, shards, where)
                entries[name] = (path, replace(entry, dtype=READ_AS))
            elif not (kind in _PARTS[self.method] and self._is_quantized(layer, shards)):
                entries[name] = (path, entry)
        if all(entries.get(name) == given for name, given in shards.entries.items()):
            raise FileFormatError(
                f"the config declares weights of 8 bits ({self.method}), and the files hold none",
                where=where,
                hint=f"Take {KEY} out of config.json if the weights were dequantised",
            )
        return replace(shards, entries=entries)

    def _is_quantized(self, layer: str, shards: Shards) -> bool:
        weight = shards.entries.get(f"{layer}.weight")
        return f"{layer}.qweight" in shards.entries or (weight is not None and weight[1].dtype == torch.int8)

    def _check(self, layer: str, shards: Shards, where: str) -> None:
        """All that belongs to a weight must be there, in sizes that fit."""
        needed = ("SCB",) if self.method == "bitsandbytes" else ("qzeros", "scales")
        shapes = {
            part: shards.entries[f"{layer}.{part}"][1].shape for part in needed if f"{layer}.{part}" in shards.entries
        }
        if self.method == "bitsandbytes":
            fits = shapes.get("SCB") == shards.entries[f"{layer}.weight"][1].shape[:1]
        else:
            outputs = shards.entries[f"{layer}.qweight"][1].shape[-1]
            scales, zeros = shapes.get("scales", ()), shapes.get("qzeros", ())
            fits = len(scales) == 2 and scales[1] == outputs and zeros == (scales[0], outputs // 4)
        if not fits:
            raise FileFormatError(
                f"the scales of the quantised layer '{layer:.120}' are missing or do not fit", where=where
            )


class Dequantized(StoredTensors):
    """Quantised tensors as float16, each computed when it is asked for."""

    def __init__(self, stored: StoredTensors, names: Mapping[str, tuple[Any, Entry]]) -> None:
        self._stored, self._names = stored, names

    def __getitem__(self, name: str) -> Tensor:
        layer = name.rpartition(".")[0]
        if f"{layer}.qweight" in self._stored and name.endswith(".weight"):
            return from_gptq({part: self._stored[f"{layer}.{part}"] for part in self._parts(layer)})
        if f"{layer}.SCB" in self._stored and name.endswith(".weight"):
            return from_bitsandbytes(self._stored[name], self._stored[f"{layer}.SCB"])
        return self._stored[name]

    def _parts(self, layer: str) -> list[str]:
        return [p for p in ("qweight", "qzeros", "scales", "g_idx") if f"{layer}.{p}" in self._stored]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def shape(self, name: str) -> torch.Size:
        """A tensor's shape, without reading it."""
        return torch.Size(self._names[name][1].shape)


def from_bitsandbytes(weight: Tensor, largest: Tensor) -> Tensor:
    """Whole numbers of one byte times the largest magnitude of their row, over 127.

    >>> from_bitsandbytes(torch.tensor([[127, -64]], dtype=torch.int8), torch.tensor([2.0]))
    tensor([[ 2.0000, -1.0078]], dtype=torch.float16)
    """
    return (weight.float() * (largest.float()[:, None] / 127)).to(READ_AS)


def from_gptq(parts: Mapping[str, Tensor]) -> Tensor:
    """`scale · (number − zero − 1)`, by the group of each input; outputs first."""
    numbers = _bytes(parts["qweight"].T.contiguous()).float()
    zeros = _bytes(parts["qzeros"]).float() + 1
    scales = parts["scales"].float()
    inputs, groups = numbers.shape[1], scales.shape[0]
    group = parts["g_idx"].long() if "g_idx" in parts else torch.arange(inputs) // -(-inputs // groups)
    if group.numel() != inputs or int(group.min()) < 0 or int(group.max()) >= groups:
        raise FileFormatError("the groups of a quantised layer do not fit its inputs")
    return (scales.T[:, group] * (numbers - zeros.T[:, group])).to(READ_AS)


def _bytes(words: Tensor) -> Tensor:
    """Four numbers from 0 to 255 in each word, the lowest first, along the last axis."""
    shifts = torch.arange(0, 32, 8, dtype=torch.int32)
    return ((words.to(torch.int32)[..., None] >> shifts) & 255).flatten(-2)
