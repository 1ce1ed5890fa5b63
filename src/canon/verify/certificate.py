"""Tier 1: the reference-equivalence certificate.

After alignment every output channel `i` of a layer stands beside the reference's channel, and its residual is

    R_i = ‖w_i − w_i(reference)‖₂ / (‖w_i(reference)‖₂ + ε),

with `w_i` all incoming weights of the channel. Everything else that the forward pass uses is compared as well: what
goes channel by channel (biases, norms) by entry, what has fixed coordinates (embeddings, attention, tokens) as it
stands. The certificate passes if the worst residual of all is within the tolerance, nothing was left out, and the
weights decided the order in every space. One matching serves all layers that touch a space, which is stricter than
matching every layer by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from canon._shown import Shown
from canon.errors import VerificationError
from canon.graph import ChannelGraph, Example, arguments, plain
from canon.graph.experts import channel_tensors
from canon.rewrite import settled
from canon.verify.alignment import Alignment, align_traced
from canon.verify.architecture import Architecture, Difference
from canon.verify.coverage import NOTHING, Coverage, Uncompared
from canon.verify.layout import survey
from canon.verify.matching import Matching, check_matching
from canon.verify.residuals import fixed_residual, layer_weights, parameter_residuals, row_residuals
from canon.verify.traced import Traced

SWEEP: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""The tolerances of the paper."""

BINS: Final = tuple(10.0 ** (half / 2) for half in range(-18, 3))
"""Borders of the histogram of residuals, two per decade; what is smaller or larger has a bin of its own."""


class Located(Protocol):
    """What is needed of a network that was found inside another one."""

    @property
    def answer(self) -> str: ...  # noqa: D102
    @property
    def reason(self) -> str: ...  # noqa: D102
    @property
    def coverage(self) -> float: ...  # noqa: D102
    @property
    def model(self) -> nn.Module | None: ...  # noqa: D102


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


@dataclass(frozen=True, eq=False, repr=False)
class Certificate(Shown):
    """What Tier 1 found."""

    tolerance: float
    layers: tuple[LayerResult, ...]
    residuals: Mapping[str, Tensor]
    """By layer: the residual of every output channel, in the reference's order."""

    parameters: Mapping[str, float]
    """By every other tensor that the forward pass uses (biases, norms, embeddings, …): its worst relative residual."""

    alignment: Alignment | None
    """How the models were aligned; None where the widths differ."""

    coverage: Coverage = NOTHING
    """How much of what the reference's forward pass uses was compared."""

    matching: Matching = "nearest"
    canonical: bool = False
    """Whether redundancy of their own was removed from both models before they were compared."""

    folded: bool = False
    """Whether norms were folded into the layers of both models before they were compared."""

    narrowed: bool = False
    """Whether only some layers were asked for."""

    location: Located | None = None
    """Where the reference's network stands in the model, looked for where the certificate does not pass."""

    def _shown(self) -> Mapping[str, object]:
        return {
            "passed": self.passed,
            "layers": len(self.layers),
            "failed": [layer.name for layer in self.failed],
            "differing": list(self.differing),
            "tolerance": self.tolerance,
        }

    @property
    def passed(self) -> bool:
        """Whether everything that was asked for was compared and is within the tolerance."""
        return (
            bool(self.layers or self.parameters)
            and all(layer.passed for layer in self.layers)
            and not self.differing
            and self.alignment is not None
            and self.alignment.established_everywhere
            and (self.narrowed or self.coverage.complete)
        )

    @property
    def differing(self) -> tuple[str, ...]:
        """The tensors beside weights that are beyond the tolerance."""
        return tuple(name for name, residual in self.parameters.items() if not residual <= self.tolerance)

    @property
    def max_rel_err(self) -> float:
        """Worst residual over all layers and other tensors."""
        worst = [layer.max_rel_err for layer in self.layers] + [*self.parameters.values()]
        return max(worst, default=float("inf"))

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
    example: Example,
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
        example: An input tensor, or a tuple or dict of inputs.
        tolerance: Largest residual that passes.
        layers: The layers that are compared, with their biases; None: all, and everything else that is used.
        matching: `nearest`, `greedy` or `optimal`.
        rescale: Also allow channels another scale than the reference's.

    Raises:
        VerificationError: The models are of different architectures, or a layer does not exist. Different widths are no
            error: the certificate then says which layers differ.
    """
    recovered, reference = plain(recovered), plain(reference)
    example = arguments(reference, example)
    theirs = Traced.of(reference, example)
    ours = Traced.like(recovered, example, theirs)
    return certify_traced(ours, theirs, tolerance, layers, matching=matching, rescale=rescale)


def certify_traced(
    recovered: Traced,
    reference: Traced,
    tolerance: float = 1e-3,
    layers: Iterable[str] | None = None,
    *,
    matching: Matching = "nearest",
    rescale: bool = True,
) -> Certificate:
    """As `certify`, for models that are traced already."""
    check_matching(matching)
    names = check_layers(layers, reference.architecture)
    if not tolerance >= 0:
        raise VerificationError(f"the tolerance must not be negative, got {tolerance}")
    differences = reference.architecture.differences(recovered.architecture)
    if differences:
        return _incomparable(names, reference.architecture, differences, tolerance, matching)
    recovered.check_finite()
    reference.check_finite()
    alignment = align_traced(recovered, survey(reference), matching=matching, rescale=rescale)
    return _compared(alignment, reference, tolerance, names, matching)


def compare(
    alignment: Alignment,
    reference: nn.Module,
    example: Tensor | tuple[Any, ...],
    tolerance: float = 1e-3,
    layers: Iterable[str] | None = None,
    *,
    matching: Matching = "nearest",
) -> Certificate:
    """Residuals of a model that is aligned already, by way of the reference or of a layout key.

    Args:
        alignment: The aligned model.
        reference: The owner's model.
        example: An input tensor or tuple of inputs.
        tolerance: Largest residual that passes.
        layers: The layers that count; None: all.
        matching: How the model was aligned.
    """
    traced = Traced.of(reference, example)
    return _compared(alignment, traced, tolerance, check_layers(layers, traced.architecture), matching)


def _compared(
    alignment: Alignment, reference: Traced, tolerance: float, names: tuple[str, ...], matching: Matching
) -> Certificate:
    graph, theirs = reference.graph, reference.settled
    ours = settled(channel_tensors(alignment.model, graph.orders), graph)
    weights = layer_weights(graph)
    ambiguous = {space.name: space.ambiguous for space in alignment.spaces}
    touched = layer_spaces(graph)
    residuals, results = {}, []
    for name in names:
        weight, axis = weights[name]
        residual = row_residuals(ours[weight], theirs[weight], axis)
        shared = sum(ambiguous.get(space, 0) for space in touched[name])
        residuals[name] = residual
        results.append(_judge(name, residual, tolerance, shared))
    narrowed = len(names) < len(weights)
    parameters = parameter_residuals(graph, ours, theirs)
    parameters, coverage = (
        _narrow(parameters, weights, names, reference) if narrowed else _rest(parameters, ours, reference, tolerance)
    )
    return Certificate(
        tolerance, tuple(results), residuals, parameters, alignment, coverage, matching, narrowed=narrowed
    )


def _narrow(
    parameters: Mapping[str, float], weights: Mapping[str, tuple[str, int]], names: tuple[str, ...], reference: Traced
) -> tuple[dict[str, float], Coverage]:
    """Only some layers were asked for: their biases count, and all else is named as left out."""
    chosen = {f"{name}.bias" for name in names}
    kept = {name: residual for name, residual in parameters.items() if name in chosen}
    compared = kept.keys() | {weights[name][0] for name in names}
    used = {name: reference.tensors[name] for name in reference.used}
    left_out = [
        Uncompared(name, tensor.numel(), "not among the layers that were asked for")
        for name, tensor in used.items()
        if name not in compared
    ]
    return kept, Coverage.of(used, left_out)


def _rest(
    parameters: Mapping[str, float], ours: Mapping[str, Tensor], reference: Traced, tolerance: float
) -> tuple[dict[str, float], Coverage]:
    """Every tensor that the graph does not know channels of; what the forward pass does not use is no difference."""
    graph, theirs = reference.graph, reference.tensors
    known = {*parameters, *(weight for weight, _ in layer_weights(graph).values())}
    found, left_out = dict(parameters), []
    for name, tensor in theirs.items():
        if name in known:
            continue
        if name in ours:
            found[name] = fixed_residual(ours[name], tensor)
        else:
            left_out.append(Uncompared(name, tensor.numel(), "the suspect has no tensor of this name"))
    beyond = [name for name, residual in found.items() if name not in known and not residual <= tolerance]
    used: Mapping[str, Tensor] = theirs
    if beyond or left_out:
        used = {name: theirs[name] for name in reference.used}
        found = {name: residual for name, residual in found.items() if name in known or name in used}
        left_out = [item for item in left_out if item.what in used]
    return found, Coverage.of(used, left_out)


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
    return Certificate(tolerance, layers, {}, {}, None, matching=matching)


def _share(part: float, whole: int) -> float:
    return part / whole if whole else 0.0
