"""How a key file keeps a portrait: what it takes, writing it, and reading it from a stranger's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from canon.graph.mapped import put_away
from canon.verify.layout import Layout, Step
from canon.verify.portrait import Portrait, pack, unpack
from canon.verify.side import Part

FALSE: Final = 1e-4
"""Chance at which a random row may pass for one of the owner's."""

MARGIN: Final = 0.7
"""Part of the noise at which rows would just be told apart that is promised: projections of noise vary."""

LARGE: Final = 1 << 24
"""Bytes of a portrait from which on what it says is unpacked into files: in memory it takes eight times as much."""

SIZES: Final = 40.0
"""Steps in which the logarithm of a channel's scale in the portrait, over its exact scale, is kept up to 1."""

FAR_SIZES: Final = 10.0
"""The same beyond that."""

TURNED: Final = 128
"""Added to those steps, or taken from them, where the signs of both scales differ."""


@dataclass(frozen=True)
class Cost:
    """Bytes that a portrait takes."""

    fixed: int
    each: int
    """For every number of a row beyond the first."""


def portrait_bytes(portrait: Portrait, layout: Layout) -> Cost:
    """What a portrait takes in a key, reckoned from one of any number per row."""
    unscaled = replace(portrait, steps=tuple(replace(step, scales={}) for step in portrait.steps))
    stored = sum(block.numel() for block in _kept(unscaled, layout.steps)[0])
    stored += sum(len(step.label) * len(step.scales) for step in portrait.steps)
    each = sum({step.space: len(step.label) * len(step.maps) for step in portrait.steps}.values())
    return Cost(stored - (portrait.numbers - 1) * each, each)


def tolerated_noise(portrait: Portrait) -> float:
    """Relative noise up to which a row of the widest layer is nearer to itself than chance brings any other."""
    widest = max(len(step.label) for step in portrait.steps)
    cosine = (1 - (FALSE / widest) ** (2 / max(1, portrait.numbers - 1))) ** 0.5
    return float(MARGIN * (1 / cosine**2 - 1) ** 0.5)


def portrait_header(portrait: Portrait, layout: Layout) -> tuple[dict[str, Any], Tensor]:
    """What a key's header says of its portrait, and all of its numbers, one byte each."""
    parts = [[[p.blocks, p.numbers, int(p.exact)] for p in step.parts] for step in portrait.steps]
    kept, blocks = _kept(portrait, layout.steps)
    header = {"numbers": portrait.numbers, "seed": portrait.seed, "parts": parts, "blocks": blocks}
    if portrait.signed:
        header["signed"] = True
    header["shuffled"] = [round(step.shuffled, 4) for step in portrait.steps]
    return header, torch.cat([block.flatten() for block in kept])


def _kept(portrait: Portrait, exact: Sequence[Step]) -> tuple[list[Tensor], list[list[list[int]]]]:
    """The blocks, each once, and by step which of them it has, as runs of neighbours."""
    kept: list[Tensor] = []
    place: dict[tuple[int, bytes], int] = {}
    steps = []
    for step, known in zip(portrait.steps, exact, strict=True):
        runs: list[list[int]] = []
        sizes = [_pack_sizes(step.scales[tap], known.scales[tap], bool(portrait.signed)) for tap in sorted(step.scales)]
        for block in (*pack(step.features, step.parts), *sizes):
            content = (block.shape[1], block.numpy().tobytes())
            if content not in place:
                place[content] = len(kept)
                kept.append(block)
            index = place[content]
            if runs and sum(runs[-1]) == index:
                runs[-1][1] += 1
            else:
                runs.append([index, 1])
        steps.append(runs)
    return kept, steps


def _pack_sizes(scale: Tensor, exact: Tensor, signed: bool) -> Tensor:
    """Scales relative to exact ones; both come from projections of the same rows, and are of the same order.

    Behind a gate either may have the other sign, which the upper half of the byte's range says.
    """
    ratio = _relative(scale, exact)
    size = ratio.abs().log()
    if not signed:
        return (SIZES * size).clamp(-127, 127).round().to(torch.int8)[:, None]
    far = (size.abs() - 1).clamp(min=0)
    steps = (size.sign() * (SIZES * (size.abs() - far) + FAR_SIZES * far)).round()
    steps = steps.clamp(1 - TURNED // 2, TURNED // 2 - 1)
    turned = torch.where(steps >= 0, steps - TURNED, steps + TURNED)
    return torch.where(ratio < 0, turned, steps).to(torch.int8)[:, None]


def _relative(scale: Tensor, exact: Tensor) -> Tensor:
    both = (scale != 0) & (exact != 0)
    return torch.where(both, scale / torch.where(both, exact, 1.0), 1.0)


def _unpack_sizes(block: Tensor, exact: Tensor, signed: bool) -> Tensor:
    steps = block[:, 0].double()
    if not signed:
        return exact * (steps / SIZES).exp()
    turned = steps.abs() >= TURNED // 2
    steps = torch.where(turned, steps - steps.sign() * TURNED, steps)
    far = (steps.abs() - SIZES).clamp(min=0)
    size = steps.sign() * ((steps.abs() - far) / SIZES + far / FAR_SIZES)
    return torch.where(turned, -exact, exact) * size.exp()


def coarsened(portrait: Portrait, layout: Layout) -> Portrait:
    """A portrait as it comes back from a key."""
    pairs = list(zip(portrait.steps, layout.steps, strict=True))
    signed = any(
        bool((_relative(s, known.scales[t]) < 0).any()) for step, known in pairs for t, s in step.scales.items()
    )
    steps = []
    for step, known in pairs:
        scales = {
            tap: _unpack_sizes(_pack_sizes(scale, known.scales[tap], signed), known.scales[tap], signed)
            for tap, scale in step.scales.items()
        }
        steps.append(replace(step, scales=scales))
    return replace(portrait, steps=tuple(steps), signed=signed or None)


def read_portrait(header: Mapping[str, Any], stored: Tensor, steps: Sequence[Step]) -> Portrait:
    """A portrait from a key file, along the steps of its layout.

    Raises:
        ValueError: Something in it does not fit.
    """
    numbers, seed, signed = header["numbers"], header["seed"], header.get("signed", False) is True
    whole = all(isinstance(value, int) and not isinstance(value, bool) for value in (numbers, seed))
    if not whole or not 1 <= numbers <= 1024 or not 0 <= seed < 1 << 62:
        raise ValueError("the portrait's numbers or seed are out of range")
    if not len(header["parts"]) == len(header["blocks"]) == len(steps):
        raise ValueError("the portrait does not follow the steps")
    if stored.dtype != torch.int8 or stored.ndim != 1:
        raise ValueError("the portrait is of another kind")
    taken, found = 0, []
    kept: list[Tensor] = []
    shuffled = [_share(value) for value in header.get("shuffled", [0.0] * len(steps))]
    for step, entries, runs, luck in zip(steps, header["parts"], header["blocks"], shuffled, strict=True):
        width, parts = len(step.label), tuple(_part(entry) for entry in entries)
        shapes = [(width, part.numbers) for part in parts for _ in range(part.blocks)] + [(width, 1)] * len(step.scales)
        chosen = [start + more for start, count in runs for more in range(_whole(count, len(shapes)))]
        if len(chosen) != len(shapes):
            raise ValueError("a step of the portrait has other blocks than it says")
        blocks = []
        for index, shape in zip(chosen, shapes, strict=True):
            if _whole(index, len(kept)) == len(kept):
                kept.append(stored[taken : taken + width * shape[1]].view(shape))
                taken += width * shape[1]
            if kept[index].shape != shape:
                raise ValueError("a step of the portrait has a block of another shape")
            blocks.append(kept[index])
        sizes = dict(zip(sorted(step.scales), blocks[len(blocks) - len(step.scales) :], strict=True))
        scales = {tap: _unpack_sizes(block, step.scales[tap], signed) for tap, block in sizes.items()}
        features = unpack(blocks, parts)
        features = put_away(features) if stored.numel() >= LARGE else features
        found.append(replace(step, features=features, parts=parts, scales=scales, shuffled=luck))
    if taken != stored.numel():
        raise ValueError(f"{stored.numel() - taken} numbers too many in the portrait")
    return Portrait(tuple(found), numbers, seed, reduced=True, signed=signed or None)


def _whole(value: Any, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= high:
        raise ValueError(f"expected a whole number up to {high}, got {value!r:.40}")
    return value


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"expected a number from 0 to 1, got {value!r:.40}")
    return float(value)


def _part(entry: Any) -> Part:
    blocks, numbers, exact = entry
    if not _whole(blocks, 1 << 20) or not _whole(numbers, 1 << 20):
        raise ValueError("a part of a portrait is empty")
    return Part(blocks, numbers, bool(_whole(exact, 1)))
