"""The layout key: a small file from which a model is aligned, or located in another, without the reference.

It holds, for every channel, a few random projections of what the channel computes and its scale at every tap, and a
portrait of coarser ones from which the channel is known again after it was changed: nothing that could stand in for a
weight. The file is safetensors with one JSON text in its header, so nothing in it can run
code. The projections come from torch's generator; a few of its numbers are kept and compared, so that a key is never
read with another stream.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from canon._files import atomic_path
from canon._safetensors import read_key, write_safetensors
from canon._shown import Shown
from canon._version import __version__
from canon.describe import SKETCH
from canon.errors import CanonError, KeyFileError, VerificationError
from canon.graph import Example, arguments, plain
from canon.graph.tensors import tensor_names
from canon.normal import Outline, outline_of
from canon.rewrite import FoldableNorm, norms_behind_layers
from canon.verify.architecture import Architecture
from canon.verify.coverage import Coverage, Uncompared
from canon.verify.digest import model_digest
from canon.verify.function import Comparison
from canon.verify.keeping import coarsened, portrait_bytes, portrait_header, read_portrait, tolerated_noise
from canon.verify.layout import Layout, Step, check_steps, survey
from canon.verify.portrait import Portrait, portray, reduce
from canon.verify.projection import project
from canon.verify.registered import Registered
from canon.verify.skeleton import skeleton_of
from canon.verify.traced import Traced

FORMAT: Final = "canon-layout-key"
VERSION: Final = 2

SHARE: Final = 0.03
"""Part of the model's bytes that a key may take, if that leaves it the fewest numbers that it needs."""

ROBUST_SHARE: Final = 0.1
"""The same of a robust key."""

SMALL: Final = 60_000
"""Bytes that a key may always take: of a small model, a file's header alone is more than such a part."""

FEWEST: Final = 4
MOST: Final = 24
"""Exact numbers per channel."""

LEAST_PORTRAIT: Final = 4
ENOUGH_PORTRAIT: Final = 32
MOST_PORTRAIT: Final = 64
"""Coarse numbers per row. From 64 on more of them tell nothing new."""

_NAMES_BYTES: Final = 12_000
_HEADER_BYTES: Final = 24_000
_LARGEST_WIDTH: Final = 1 << 24


@dataclass(frozen=True, eq=False, repr=False)
class LayoutKey(Shown):
    """A model's layout, small enough to keep and too little to rebuild the model from."""

    layout: Layout
    model: str
    """SHA-256 of the registered model's tensors."""

    canon: str = __version__
    """Version that made it."""

    norms: tuple[FoldableNorm, ...] | None = None
    """The norms behind layers, by name alone, which a suspect may have folded away; None: the key does not say."""

    registered: Registered | None = None
    """What the key keeps beside channels; None: it was made by an older version."""

    portrait: Portrait | None = None
    """What changed channels are known again by; None: the key was made before there were portraits."""

    skeleton: str | None = None
    """SHA-256 of how the model is wired, widths aside."""

    units: tuple[int, ...] | None = None
    """By step: exact numbers are multiples of two to this power, and take two bytes; None: they take four."""

    program: Outline | None = None
    """The model's program without its numbers; None: it cannot be told without code, or the key is an older one."""

    def _shown(self) -> Mapping[str, object]:
        return {
            "model": self.model,
            "layers": len(self.layout.architecture.shapes),
            "noise": self.noise,
            "canon": self.canon,
        }

    def __post_init__(self) -> None:
        check_steps(self.layout.steps)
        if self.portrait is not None:
            check_steps(self.portrait.steps)

    @property
    def noise(self) -> float | None:
        """Relative noise on every weight up to which rows are told apart in the widest layer; None: no portrait."""
        if self.portrait is None:
            return None
        return tolerated_noise(self.portrait)

    def compare_fixed(self, traced: Traced) -> tuple[dict[str, float], Coverage]:
        """Residuals of the tensors whose entries have no freedom, and what the comparison covers."""
        if self.registered is None:
            return {}, Coverage(1, (Uncompared("all but channels", 1, "the key was made by an older version"),))
        return self.registered.compare_fixed(traced)

    def compare_function(self, suspect: nn.Module) -> tuple[Comparison, ...]:
        """How far a suspect's outputs agree with those of the registered model."""
        if self.registered is None:
            return (Comparison("random", 0, None, None, "the key was made by an older version and holds no outputs"),)
        return self.registered.compare_function(suspect)

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the key file; an existing one is replaced only with `force`."""
        steps = self.layout.steps
        header = {
            "format": FORMAT,
            "version": VERSION,
            "canon": self.canon,
            "model": self.model,
            "shapes": [[name, *shape] for name, shape in self.layout.architecture.shapes.items()],
            "wiring": self.layout.architecture.wiring,
            "numbers": self.layout.numbers,
            "seed": self.layout.seed,
            "settled": self.layout.settled,
            "stream": _stream(),
            "steps": [[s.space, len(s.label), int(s.last), list(s.maps), sorted(s.scales)] for s in steps],
        }
        if self.units is not None:
            header["units"] = self.units
        if self.skeleton is not None:
            header["skeleton"] = self.skeleton
        if self.program is not None:
            header["program"] = self.program.packed()
        if self.norms is not None:
            header["norms"] = [[n.norm, n.layer, int(n.bias), int(n.affine)] for n in self.norms]
        if self.registered is not None:
            header["registered"] = self.registered.header()
        tensors = {
            **({} if self.registered is None else self.registered.tensors()),
            "features": self._features(),
            "scales": torch.cat([s.scales[t] for s in steps for t in sorted(s.scales)] or [torch.empty(0)]).float(),
            "blocks": torch.cat([_runs(s.label) for s in steps] or [torch.empty(0)]).int(),
        }
        for index, step in enumerate(steps):
            if not torch.equal(step.leader, torch.arange(len(step.leader))):
                tensors[f"leader.{index}"] = step.leader.int()
            if not torch.equal(_expand(_runs(step.label), len(step.label)), step.label):
                tensors[f"label.{index}"] = step.label.int()
        if self.portrait is not None:
            header["portrait"], tensors["portrait"] = portrait_header(self.portrait, self.layout)
        with atomic_path(path, force=force) as target:
            write_safetensors(target, tensors, {"canon": json.dumps(header, separators=(",", ":"))})

    def _features(self) -> Tensor:
        """The exact numbers of all steps, as a file keeps them."""
        steps = self.layout.steps
        if self.units is None:
            return torch.cat([step.features.flatten() for step in steps] or [torch.empty(0)]).float()
        return torch.cat(
            [(s.features * 2.0**-unit).short().flatten() for s, unit in zip(steps, self.units, strict=True)]
        )

    @staticmethod
    def load(path: str | Path) -> LayoutKey:
        """Read a key file. It may come from anybody: whatever is wrong with it is a KeyFileError."""
        header, tensors = read_key(path, FORMAT, VERSION, "layout key", "`canon register`")
        try:
            return _Parser(header, tensors).key()
        except (KeyError, TypeError, ValueError, IndexError, RuntimeError, OverflowError) as error:
            raise KeyFileError(f"the key file does not fit together: {error}", where=str(path)) from error


def register(
    model: nn.Module,
    example: Example,
    *,
    numbers: int | None = None,
    robust: bool = False,
    seed: int | None = None,
) -> LayoutKey:
    """Make a model's layout key. The model is not changed.

    Args:
        model: The owner's model, in evaluation mode.
        example: An input tensor, or a tuple or dict of inputs.
        numbers: Exact numbers to keep per channel; None: as many as fit, from 4 to 24.
        robust: Keep more coarse numbers, up to a tenth of the model's size instead of 3%, so that channels are known
            again after stronger changes; `LayoutKey.noise` says how strong.
        seed: Of the key's secret projections; None: a fresh one, which nobody can prepare a model for.
    """
    model = plain(model)
    traced = Traced.of(model, arguments(model, example))
    seed = secrets.randbits(48) if seed is None else seed
    whole = survey(traced, seed=seed)
    if numbers is not None and not 1 <= numbers <= 1024:
        raise VerificationError(f"a key holds 1 to 1024 numbers per channel, got {numbers}")
    idle = next((step.space for step in whole.steps if not bool(step.features.any())), None)
    if idle is not None:
        raise VerificationError(
            "nothing can be registered of a channel space in which no channel does anything",
            where=traced.graph.spaces[idle].name,
            hint="Prune it, or verify with the model itself as the reference",
        )
    digest = model_digest(model)
    tensors, _ = tensor_names(model)
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    channels = sum(len(step.label) for step in whole.steps)
    scales = sum(len(step.label) * len(step.scales) for step in whole.steps)
    cost = portrait_bytes(reduce(Portrait(whole.steps, SKETCH, seed)), whole)
    program = _program(traced)
    header = max(_HEADER_BYTES, _NAMES_BYTES + (0 if program is None else len(program.packed())))
    room = max((ROBUST_SHARE if robust else SHARE) * size, SMALL) - header - 4 * scales - cost.fixed
    tight = numbers is None and room < 4 * FEWEST * channels + ENOUGH_PORTRAIT * cost.each
    if numbers is None:
        # Rows first, as many numbers as a layer of some width needs; then exact ones; what is left goes to rows.
        numbers = int((room - ENOUGH_PORTRAIT * cost.each) // (4 * max(1, channels)))
        numbers = max(FEWEST, min(MOST, numbers))
    rows = int((room - (2 if tight else 4) * numbers * channels) // max(1, cost.each)) // 2 * 2
    rows = max(LEAST_PORTRAIT, min(MOST_PORTRAIT, rows))
    steps = tuple(_shrink(step, numbers, seed + index) for index, step in enumerate(whole.steps))
    units = tuple(_unit(step.features) for step in steps) if tight else None
    if units is not None:
        steps = tuple(_rounded(step, unit) for step, unit in zip(steps, units, strict=True))
    layout = Layout(whole.architecture, steps, numbers, seed)
    return LayoutKey(
        layout,
        digest,
        norms=norms_behind_layers(model, traced.graph),
        portrait=coarsened(reduce(portray(traced, whole, rows, seed)), layout),
        skeleton=skeleton_of(traced.graph),
        registered=Registered.of(traced, seed),
        units=units,
        program=program,
    )


def _program(traced: Traced) -> Outline | None:
    """A model's program, if a model that is made of it again is wired in the same way."""
    outline = outline_of(traced.model, traced.example)
    if outline is None:
        return None
    try:
        again = Traced.of(outline.model(), traced.example)
    except (CanonError, ValueError):
        return None
    return outline if again.architecture == traced.architecture else None


def _shrink(step: Step, numbers: int, seed: int) -> Step:
    features = project(step.features, numbers, seed).float().double()
    scales = {tap: scale.float().double() for tap, scale in step.scales.items()}
    return replace(step, features=features, scales=scales, parts=())


def _unit(features: Tensor) -> int:
    """The power of two of which the largest number is a multiple that fits two bytes."""
    return math.ceil(math.log2(max(float(features.abs().max()), 1e-30) / 32_000))


def _rounded(step: Step, unit: int) -> Step:
    return replace(step, features=(step.features * 2.0**-unit).round() * 2.0**unit)


class _Parser:
    """Turns what a file holds into a key, and trusts none of it."""

    def __init__(self, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.header, self.tensors = header, tensors
        self.taken = dict.fromkeys(("features", "scales", "blocks"), 0)
        self.units = header.get("units")

    def key(self) -> LayoutKey:
        header = self.header
        stream = header["stream"]
        if [float(x) for x in stream] != _stream():
            raise ValueError("this version of torch or Canon draws other random numbers than the one that made the key")
        numbers = _integer(header["numbers"], 1, 1024)
        shapes = {str(name): tuple(_integer(n, 1, 1 << 40) for n in shape) for name, *shape in header["shapes"]}
        steps = tuple(self._step(index, entry, numbers) for index, entry in enumerate(header["steps"]))
        for name, used in self.taken.items():
            if used != self.tensors[name].numel():
                raise ValueError(f"{self.tensors[name].numel() - used} numbers too many in '{name}'")
        seed = _integer(header.get("seed", 0), 0, 1 << 62)
        settled = header.get("settled") is True or None  # older keys describe offsets where they stood
        layout = Layout(Architecture(shapes, str(header["wiring"])), steps, numbers, seed, settled)
        norms = tuple(_norm(entry, shapes) for entry in header["norms"]) if "norms" in header else None
        registered = Registered.parse(header["registered"], self.tensors) if "registered" in header else None
        portrait = read_portrait(header["portrait"], self.tensors["portrait"], steps) if "portrait" in header else None
        skeleton = str(header["skeleton"]) if "skeleton" in header else None
        units = None if self.units is None else tuple(self.units)
        program = Outline.unpacked(header["program"]) if "program" in header else None
        return LayoutKey(
            layout, str(header["model"]), str(header["canon"]), norms, registered, portrait, skeleton, units, program
        )

    def _step(self, index: int, entry: Any, numbers: int) -> Step:
        space, width, last, maps, taps = entry
        width = _integer(width, 1, _LARGEST_WIDTH)
        features = self._take("features", width * numbers).double().view(width, numbers)
        if self.units is not None:
            features = features * 2.0 ** _integer(self.units[index], -120, 120)
        scales = {_integer(tap, 0, 1 << 31): self._take("scales", width).double() for tap in taps}
        block = _integer(int(self._take("blocks", 1)), 1, width)
        label = _expand(torch.tensor([block]), width)
        if f"label.{index}" in self.tensors:
            label = _indices(self.tensors[f"label.{index}"], width)
        leader = torch.arange(width)
        if f"leader.{index}" in self.tensors:
            leader = _indices(self.tensors[f"leader.{index}"], width)
            if not torch.equal(leader[leader], leader):
                raise ValueError("a channel is named after one that has another name")
        chosen = tuple(_integer(m, 0, 1 << 31) for m in maps)
        return Step(_integer(space, 0, 1 << 31), chosen, features, scales, leader, label, bool(last))

    def _take(self, name: str, count: int) -> Tensor:
        start = self.taken[name]
        self.taken[name] = start + count
        tensor = self.tensors[name]
        kind = torch.int32 if name == "blocks" else torch.float32
        if name == "features" and self.units is not None:
            kind = torch.int16
        if tensor.dtype != kind or tensor.ndim != 1 or start + count > tensor.numel():
            raise ValueError(f"too few numbers in '{name}', or of another kind")
        part = tensor[start : start + count]
        if part.is_floating_point() and not bool(torch.isfinite(part).all()):
            raise ValueError(f"numbers in '{name}' are not finite")
        return part


def _norm(entry: Any, shapes: Mapping[str, Any]) -> FoldableNorm:
    norm, layer, bias, affine = entry
    if not isinstance(norm, str) or not norm or layer not in shapes:
        raise ValueError(f"a norm behind {layer!r:.40}, which is no layer")
    return FoldableNorm(norm, layer, bool(_integer(bias, 0, 1)), bool(_integer(affine, 0, 1)))


def _integer(value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"expected a whole number from {low} to {high}, got {value!r:.40}")
    return value


def _indices(tensor: Tensor, width: int) -> Tensor:
    if tensor.shape != (width,) or tensor.is_floating_point() or not bool(((tensor >= 0) & (tensor < width)).all()):
        raise ValueError(f"expected {width} channel numbers")
    return tensor.long()


def _runs(label: Tensor) -> Tensor:
    """Length of the first run of equal labels: blocks are equally long."""
    changes = torch.nonzero(label != label[0])
    return torch.tensor([int(changes[0]) if changes.numel() else len(label)])


def _expand(block: Tensor, width: int) -> Tensor:
    return torch.arange(width) // int(block)


def _stream() -> list[float]:
    """A few numbers of the stream that projections are drawn from, of short and long draws."""
    generator = torch.Generator().manual_seed(20_262)
    short = torch.randn(3, generator=generator, dtype=torch.float64)
    long = torch.randn(40, generator=generator, dtype=torch.float64)
    return [round(float(x), 9) for x in (*short, *long[-3:])]
