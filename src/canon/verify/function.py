"""Do two models compute the same? Their outputs on probes, measured by how much outputs move from probe to probe.

Measured by the size of the outputs instead, a large constant would hide any difference. Each output is measured by
itself: beside a loud one, a quiet one could be anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from canon.errors import VerificationError
from canon.graph import probes
from canon.graph.inputs import map_tensors, tensors_in
from canon.graph.mapped import is_mapped
from canon.graph.tensors import tensor_names
from canon.graph.widening import cast, is_large, layer_by_layer, runner
from canon.rewrite import replace_tensors

PROBES: Final = 16
FEW_PROBES: Final = 4
"""Random inputs that outputs are compared on; of a large model, where each costs as much as reading it."""

FLAT: Final = 1e-5
"""Outputs that change from probe to probe by less than this share of their size: rounding changes them as much."""

BATCH: Final = 32
"""Inputs that a user gives are run this many at a time."""

SEED: Final = 0
"""Of what models draw while they run, such as dropout that is always on."""

NUMBERS: Final = 16
"""Numbers that are kept of each output on one probe, where they are kept for later."""

Inputs = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a model computed on some probes."""

    values: Tensor
    """All its outputs side by side, `probes x numbers`."""

    sizes: tuple[int, ...]
    """How many of the numbers each output has."""

    @property
    def parts(self) -> list[Tensor]:
        """Each output by itself."""
        return [*self.values.split(self.sizes, dim=1)]


@dataclass(frozen=True)
class Comparison:
    """How far two models agree on probes of one source."""

    source: str
    probes: int
    difference: float | None
    """Largest difference of any output, relative to its own largest distance from its mean over probes."""

    same_decision: float | None
    """Share of probes on which the largest output is the same one; None where there is one output only."""

    problem: str | None = None
    """Why there is no difference to tell."""

    correlation: float | None = None
    """Of how outputs move from probe to probe: 1 where they differ by a factor and offsets alone."""

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def probe_count(model: nn.Module) -> int:
    """How many random inputs to compare a model's outputs on."""
    return FEW_PROBES if is_large(model) else PROBES


def random_probes(example: Tensor | Inputs, count: int = PROBES, seed: int = 0) -> list[Inputs]:
    """Random inputs of the example's own shapes, as many calls as give `count` of them."""
    return [*probes(example, count, seed)]


def given_probes(arrays: Sequence[Tensor], example: Tensor | Inputs) -> list[Inputs]:
    """A user's own inputs, one array for each input of the model, as calls.

    Raises:
        VerificationError: They are not as many, or not of the shapes, that the model takes.
    """
    inputs = [x for x in (example if isinstance(example, tuple) else (example,)) if isinstance(x, Tensor)]
    if len(arrays) != len(inputs):
        raise VerificationError(f"the model takes {len(inputs)} inputs, and the probes hold {len(arrays)}")
    for array, x in zip(arrays, inputs, strict=True):
        if array.ndim != x.ndim or array.shape[2:] != x.shape[2:] or (x.ndim > 1 and array.shape[1] != x.shape[1]):
            raise VerificationError(
                f"probes of shape {tuple(array.shape)} do not fit the model's input {tuple(x.shape)}",
                hint="Their first axis counts the probes; all others are those of one input",
            )
    if len({len(array) for array in arrays}) != 1 or not len(arrays[0]):
        raise VerificationError("the probes hold no inputs, or not as many for each input of the model")
    typed = [a.to(x.dtype) for a, x in zip(arrays, inputs, strict=True)]
    return list(zip(*(array.split(BATCH) for array in typed), strict=True))


def outputs_of(model: nn.Module, calls: Sequence[Inputs]) -> Outputs:
    """All outputs, in float64 on the host.

    Raises:
        VerificationError: The model cannot be run on these inputs.
    """
    running = runner(model)
    calls = _joined(calls) if layer_by_layer(running) else calls
    plain = all(isinstance(x, Tensor) for call in calls for x in call)
    if not plain or not layer_by_layer(running) or not any(map(is_mapped, tensor_names(model)[0].values())):
        return _outputs(running, calls)
    # Nobody writes to such a model, and running it costs as much as reading it.
    kept, key = _kept.setdefault(model, {}), _digest(calls)
    if key not in kept:
        kept[key] = _outputs(running, calls)
    return kept[key]


_kept: WeakKeyDictionary[nn.Module, dict[str, Outputs]] = WeakKeyDictionary()
"""Outputs of models that lie in files, by what they were run on."""


def _digest(calls: Sequence[Inputs]) -> str:
    found = hashlib.sha256()
    for part in tensors_in(calls):
        whole = part.detach().cpu().contiguous()
        found.update(f"{whole.dtype} {tuple(whole.shape)} ".encode())
        found.update(whole.flatten().view(torch.uint8).numpy().data if whole.numel() else b"")
    return found.hexdigest()


def _outputs(running: nn.Module, calls: Sequence[Inputs]) -> Outputs:
    device = next((p.device for p in running.parameters()), torch.device("cpu"))
    try:
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(SEED)  # a model that draws numbers while it runs draws the same ones every time
            found = [_side_by_side(running(*_moved(cast(call, running), device)), call) for call in calls]
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise VerificationError(f"the model cannot be run on the probes: {said:.160}") from error
    return Outputs(torch.cat([one.values for one in found]), found[0].sizes)


def _joined(calls: Sequence[Inputs]) -> Sequence[Inputs]:
    """Calls of one tensor each as one call: a model that gets its numbers layer by layer gets them once."""
    if not all(len(call) == 1 and isinstance(call[0], Tensor) and call[0].ndim > 1 for call in calls):
        return calls
    same = len({call[0].shape[1:] for call in calls}) == 1
    return [(torch.cat([call[0] for call in calls]),)] if same else calls


def compare_outputs(ours: Outputs, theirs: Outputs, source: str) -> Comparison:
    """How far outputs agree; `theirs` are the owner's."""
    count = len(theirs.values)
    if ours.sizes != theirs.sizes or len(ours.values) != count:
        return Comparison(source, count, None, None, f"outputs have {ours.sizes} and {theirs.sizes} numbers")
    if not bool(torch.isfinite(ours.values).all() and torch.isfinite(theirs.values).all()):
        return Comparison(source, count, None, None, "an output is not finite")
    pairs = [pair for pair in zip(ours.parts, theirs.parts, strict=True) if pair[0].numel()]
    gaps, moving = zip(*(_gap(*pair) for pair in pairs), strict=True) if pairs else ((), ())
    if not any(moving) or count < 2:
        return Comparison(source, count, None, None, "the outputs hardly depend on the probes")
    decided = [(a.argmax(1) == b.argmax(1)) for a, b in pairs if a.shape[1] > 1]
    same = float(torch.stack(decided).all(0).double().mean()) if decided else None
    return Comparison(source, count, max(gaps), same, correlation=_correlation(ours.values, theirs.values))


def _gap(ours: Tensor, theirs: Tensor) -> tuple[float, bool]:
    """How far one output differs, and whether it moves from probe to probe; else it is measured by its size."""
    gap = float((ours - theirs).abs().max())
    spread = max(float((x - x.mean(0)).abs().max()) for x in (ours, theirs))
    moves = spread > FLAT * float(theirs.abs().max())
    size = spread if moves else max(float(x.abs().max()) for x in (ours, theirs))
    return (gap / size if gap else 0.0), moves


def _correlation(ours: Tensor, theirs: Tensor) -> float:
    a, b = (x - x.mean(0) for x in (ours.double(), theirs.double()))
    sizes = float(a.norm() * b.norm())
    return float((a * b).sum()) / sizes if sizes else 0.0


def moved_by_rounding(model: nn.Module, calls: Sequence[Inputs], epsilon: float) -> float | None:
    """How far outputs move when every weight is moved by up to half a rounding; None where that cannot be computed.

    Where outputs hardly change from probe to probe, the rounding of a copy in a coarser type alone moves them as far as
    another network would.
    """
    generator, wide = torch.Generator().manual_seed(0), runner(model)
    if layer_by_layer(wide):  # too large for a copy
        return None
    shaken = {
        name: tensor.detach() * (1 + epsilon * (torch.rand(tensor.shape, generator=generator) - 0.5).to(tensor))
        for name, tensor in tensor_names(wide)[0].items()
        if tensor.is_floating_point()
    }
    try:
        before, after = outputs_of(wide, calls), outputs_of(replace_tensors(wide, shaken), calls)
    except VerificationError:
        return None
    return compare_outputs(after, before, "random").difference


def fingerprint(outputs: Outputs, *, joined: bool = False) -> Outputs:
    """A few random projections of each output on each probe, as float32 has them: enough to see whether others agree.

    With `joined`, all outputs are taken for one.
    """
    kept = [_projected(part).float().double() for part in ((outputs.values,) if joined else outputs.parts)]
    return Outputs(torch.cat(kept, dim=1), tuple(part.shape[1] for part in kept))


def _projected(part: Tensor) -> Tensor:
    numbers = part.shape[1]
    if numbers <= NUMBERS:
        return part
    generator = torch.Generator().manual_seed(numbers)
    return part @ torch.randn(numbers, NUMBERS, generator=generator, dtype=torch.float64)


def compare_models(ours: nn.Module, theirs: nn.Module, calls: Mapping[str, Sequence[Inputs]]) -> tuple[Comparison, ...]:
    """Compare two models on probes of several sources; what cannot be run is said, not raised."""
    found = []
    for source, given in calls.items():
        try:
            found.append(compare_outputs(outputs_of(ours, given), outputs_of(theirs, given), source))
        except VerificationError as error:
            count = sum(len(call[0]) for call in given if isinstance(call[0], Tensor) and call[0].ndim)
            found.append(Comparison(source, count, None, None, error.message))
    return tuple(found)


def _moved(call: Inputs, device: torch.device) -> Inputs:
    return tuple(map_tensors(lambda x: x.to(device), x) for x in call)


def _side_by_side(result: Any, call: Inputs) -> Outputs:
    """All float tensors of an output, or all others where there is none; one row for every probe of the call."""
    batch = next((len(x) for x in call if isinstance(x, Tensor) and x.ndim), 1)
    every = [torch.view_as_real(part) if part.is_complex() else part for part in tensors_in(result)]
    parts = [part.double().cpu() for part in every if part.is_floating_point()] or [x.double().cpu() for x in every]
    if not any(part.numel() for part in parts):
        raise ValueError("the model has no output")
    rows = batch if all(part.ndim and len(part) == batch for part in parts) else 1
    flat = [part.reshape(rows, -1) if part.numel() else part.new_zeros(rows, 0) for part in parts]
    return Outputs(torch.cat(flat, dim=1), tuple(part.shape[1] for part in flat))
