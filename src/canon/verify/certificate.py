"""Tier 1: the reference-equivalence certificate.

After alignment every output channel `i` of a layer stands beside the reference's channel, and its residual is

    R_i = ‖w_i − w_i(reference)‖₂ / (‖w_i(reference)‖₂ + ε),

with `w_i` all incoming weights of the channel. The certificate passes if the worst residual is within the tolerance.
One matching serves all layers that touch a space, which is stricter than matching every layer by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

import torch
from torch import Tensor, nn

from canon.errors import VerificationError
from canon.graph import ChannelGraph, trace
from canon.graph.tensors import tensor_names
from canon.verify.alignment import Alignment, align_traced, check_finite
from canon.verify.architecture import Architecture, Difference
from canon.verify.layout import survey
from canon.verify.matching import Matching, check_matching

EPSILON: Final = 1e-12
"""Keeps the residual of a channel without weights finite."""

SWEEP: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""The tolerances of the paper."""

BINS: Final = tuple(10.0 ** (half / 2) for half in range(-18, 3))
"""Borders of the histogram of residuals, two per decade; what is smaller or larger has a bin of its own."""

PIECE: Final = 1 << 22
"""Weights compared at a time."""


@dataclass(frozen=True)
class LayerResult:
    """One layer of a certificate."""

    name: str
    width: int
    """Output channels of the reference."""

    max_rel_err: float
    """Worst residual; infinite where the layers cannot be compared."""

    match_frac: float
    """Share of output channels whose residual is within the tolerance."""

    passed: bool
    reason: str | None = None
    """Why it did not pass."""


@dataclass(frozen=True)
class SweepRow:
    """A certificate's outcome at another tolerance."""

    tolerance: float
    max_rel_err: float
    match_frac: float
    passed: bool


@dataclass(frozen=True, eq=False)
class Certificate:
    """What Tier 1 found."""

    tolerance: float
    layers: tuple[LayerResult, ...]
    residuals: Mapping[str, Tensor]
    """By layer: the residual of every output channel, in the reference's order."""

    parameters: Mapping[str, float]
    """By tensor that goes channel by channel (biases, norms): the relative distance from the reference's as a whole."""

    alignment: Alignment | None
    """How the models were aligned; None where the widths differ."""

    matching: Matching = "nearest"
    canonical: bool = False
    """Whether redundancy of their own was removed from both models before they were compared."""

    folded: bool = False
    """Whether norms were folded into the layers of both models before they were compared."""

    @property
    def passed(self) -> bool:
        """Whether every layer passed."""
        return bool(self.layers) and all(layer.passed for layer in self.layers)

    @property
    def max_rel_err(self) -> float:
        """Worst residual over all layers."""
        return max((layer.max_rel_err for layer in self.layers), default=float("inf"))

    @property
    def match_frac(self) -> float:
        """Share of output channels within the tolerance, over all layers."""
        return _share(sum(layer.match_frac * layer.width for layer in self.layers), sum(x.width for x in self.layers))

    @property
    def aligned(self) -> nn.Module | None:
        """The recovered model in the reference's layout; None where the widths differ."""
        return None if self.alignment is None else self.alignment.model

    @property
    def failed(self) -> tuple[LayerResult, ...]:
        """The layers that did not pass."""
        return tuple(layer for layer in self.layers if not layer.passed)

    def sweep(self, tolerances: Iterable[float] = SWEEP) -> tuple[SweepRow, ...]:
        """The outcome at other tolerances."""
        together = torch.cat([*self.residuals.values()]) if self.residuals else torch.empty(0)
        comparable = len(self.residuals) == len(self.layers) and bool(self.layers)
        return tuple(
            SweepRow(
                tolerance=tolerance,
                max_rel_err=self.max_rel_err,
                match_frac=_share(int((together <= tolerance).sum()), sum(x.width for x in self.layers)),
                passed=comparable and self.max_rel_err <= tolerance,
            )
            for tolerance in tolerances
        )

    def quantiles(self, shares: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)) -> dict[float, float]:
        """The distribution of the residuals over all output channels."""
        if not self.residuals:
            return {}
        together = torch.cat([*self.residuals.values()])
        found = torch.quantile(together, torch.tensor(shares, dtype=torch.float64))
        return dict(zip(shares, found.tolist(), strict=True))

    def histogram(self) -> tuple[int, ...]:
        """Output channels by residual: one count below `BINS`, one per interval, one above; a border counts upwards."""
        together = torch.cat([*self.residuals.values()]) if self.residuals else torch.empty(0, dtype=torch.float64)
        places = torch.bucketize(together, torch.tensor(BINS, dtype=torch.float64), right=True)
        return tuple(torch.bincount(places, minlength=len(BINS) + 1).tolist())


def certify(
    recovered: nn.Module,
    reference: nn.Module,
    example: Tensor | tuple[Any, ...],
    tolerance: float = 1e-3,
    layers: Iterable[str] | None = None,
    *,
    matching: Matching = "nearest",
    rescale: bool = True,
) -> Certificate:
    """Compare a recovered model with a reference, up to the order and scale of channels.

    Args:
        recovered: The recovered model, in evaluation mode. It is not changed.
        reference: The owner's model.
        example: An input tensor or tuple of inputs.
        tolerance: Largest residual that passes.
        layers: The layers that count, such as those that bear the watermark; None: all.
        matching: `nearest`, `greedy` or `optimal`.
        rescale: Also allow channels another scale than the reference's.

    Raises:
        VerificationError: The models are of different architectures, or a layer does not exist. Different widths are no
            error: the certificate then says which layers differ.
    """
    check_matching(matching)
    graph = trace(reference, example)
    expected = Architecture.of(graph, tensor_names(reference)[0])
    names = check_layers(layers, expected)
    if not tolerance >= 0:
        raise VerificationError(f"the tolerance must not be negative, got {tolerance}")
    traced = trace(recovered, example)
    differences = expected.differences(Architecture.of(traced, tensor_names(recovered)[0]))
    if differences:
        return _incomparable(names, expected, differences, tolerance, matching)
    check_finite(recovered)
    check_finite(reference)
    layout = survey(graph, tensor_names(reference)[0])
    alignment = align_traced(recovered, traced, layout, matching=matching, rescale=rescale)
    return compare(alignment, reference, example, tolerance, names, matching=matching, graph=graph)


def compare(
    alignment: Alignment,
    reference: nn.Module,
    example: Tensor | tuple[Any, ...],
    tolerance: float = 1e-3,
    layers: Iterable[str] | None = None,
    *,
    matching: Matching = "nearest",
    graph: ChannelGraph | None = None,
) -> Certificate:
    """Residuals of a model that is aligned already, by way of the reference or of a layout key.

    Args:
        alignment: The aligned model.
        reference: The owner's model.
        example: An input tensor or tuple of inputs.
        tolerance: Largest residual that passes.
        layers: The layers that count; None: all.
        matching: How the model was aligned.
        graph: The reference's channel graph, where it is at hand.
    """
    graph = trace(reference, example) if graph is None else graph
    theirs, _ = tensor_names(reference)
    ours, _ = tensor_names(alignment.model)
    names = check_layers(layers, Architecture.of(graph, theirs))
    weights = _weights(graph)
    ambiguous = {space.name: space.ambiguous for space in alignment.spaces}
    touched = layer_spaces(graph)
    residuals, results = {}, []
    for name in names:
        weight, axis = weights[name]
        residual = row_residuals(ours[weight], theirs[weight], axis)
        shared = sum(ambiguous.get(space, 0) for space in touched[name])
        residuals[name] = residual
        results.append(_judge(name, residual, tolerance, shared))
    return Certificate(tolerance, tuple(results), residuals, _parameters(graph, ours, theirs), alignment, matching)


def row_residuals(ours: Tensor, theirs: Tensor, axis: int) -> Tensor:
    """The relative residual of every row along an axis, in float64."""
    mine = ours.detach().movedim(axis, 0).flatten(1)
    yours = theirs.detach().to(mine.device).movedim(axis, 0).flatten(1)
    step = max(1, PIECE // max(1, mine.shape[1]))
    found = []
    for start in range(0, mine.shape[0], step):
        a, b = mine[start : start + step].double(), yours[start : start + step].double()
        found.append((a - b).norm(dim=1) / (b.norm(dim=1) + EPSILON))
    return torch.cat(found).cpu()


def check_layers(layers: Iterable[str] | None, architecture: Architecture) -> tuple[str, ...]:
    """The names of the layers to compare; VerificationError for one that does not exist."""
    if layers is None:
        return tuple(architecture.shapes)
    names = tuple(layers)
    for name in names:
        if name not in architecture.shapes:
            near = get_close_matches(name, architecture.shapes, n=1)
            raise VerificationError(
                "the model has no Conv or Linear layer of this name",
                where=name,
                hint=f"Did you mean '{near[0]}'?" if near else None,
            )
    if not names:
        raise VerificationError("no layer given to compare", hint="Leave `layers` out to compare all")
    return names


def _weights(graph: ChannelGraph) -> dict[str, tuple[str, int]]:
    """By layer: its weight, and the axis of its output channels."""
    found = {linear.name: (linear.weight, linear.row_axis) for linear in graph.maps}
    for space in graph.spaces:
        for stage in space.stages:
            if stage.kind == "depthwise":
                weight = stage.params["weight"]
                found[weight.removesuffix(".weight")] = (weight, stage.axis)
    return found


def layer_spaces(graph: ChannelGraph) -> dict[str, set[str]]:
    """By layer: the names of the spaces it reads and makes."""
    found: dict[str, set[str]] = {}
    for linear in graph.maps:
        segments = [*linear.rows, *(linear.columns or ())]
        found.setdefault(linear.name, set()).update(graph.spaces[s.space].name for s in segments)
    for space in graph.spaces:
        for stage in space.stages:
            if stage.kind == "depthwise":
                found.setdefault(stage.params["weight"].removesuffix(".weight"), set()).add(space.name)
    return found


def _judge(name: str, residual: Tensor, tolerance: float, ambiguous: int) -> LayerResult:
    worst = float(residual.max())
    beyond = int((residual > tolerance).sum())
    reason = None
    if beyond:
        reason = f"residual of {beyond} of {residual.numel()} channels above {tolerance:g}, at most {worst:.3g}"
        if ambiguous:
            reason += f"; ambiguous match: the reference does not tell {ambiguous} channels of its spaces apart"
    share = 1 - beyond / residual.numel()
    return LayerResult(name, residual.numel(), worst, share, not beyond, reason)


def _parameters(graph: ChannelGraph, ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> dict[str, float]:
    names = dict.fromkeys(linear.bias for linear in graph.maps if linear.bias is not None)
    for space in graph.spaces:
        for stage in space.stages:
            roles = [r for r in stage.params if not (stage.kind == "depthwise" and r == "weight")]
            names |= dict.fromkeys(stage.params[role] for role in roles)
    pairs = [(ours[name].detach().double(), theirs[name].detach().double()) for name in names]
    if not pairs:
        return {}
    gaps = [torch.stack([(a - b.to(a.device)).norm(), b.norm().to(a.device)]) for a, b in pairs]
    figures = torch.stack(gaps).cpu()
    return dict(zip(names, (figures[:, 0] / (figures[:, 1] + EPSILON)).tolist(), strict=True))


def _incomparable(
    names: tuple[str, ...],
    expected: Architecture,
    differences: tuple[Difference, ...],
    tolerance: float,
    matching: Matching,
) -> Certificate:
    found = {difference.layer: f"width differs: {difference}" for difference in differences}
    first = f"not compared: the widths of {len(differences)} layers differ, '{differences[0].layer}' among them"
    layers = tuple(
        LayerResult(name, expected.shapes[name][0], float("inf"), 0.0, False, found.get(name, first)) for name in names
    )
    return Certificate(tolerance, layers, {}, {}, None, matching)


def _share(part: float, whole: int) -> float:
    return part / whole if whole else 0.0
