"""`recover`: the algorithm, one stage after the other.

1. trace the suspect into channel spaces;
2. refine every space into classes of proportional channels (exact, from the weights; or probe, from activations);
3. merge the columns of each class, and see which sums cancel;
4. keep what something alive reads, fold constants into biases;
5. crop kernels that were padded with zeros;
6. check that the result still computes the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from canon._shown import Shown
from canon.errors import RecoveryError, UnsupportedModelError
from canon.graph import ChannelGraph, Example, arguments, plain, trace
from canon.graph.experts import channel_tensors
from canon.graph.tensors import not_finite, tensor_names
from canon.recovery.engine import History, run
from canon.recovery.facts import Facts, Subject
from canon.recovery.idle import idle_layers, without
from canon.recovery.kernels import convolutions
from canon.recovery.noise import consistent, largest
from canon.recovery.partition import Classes, Refinement
from canon.recovery.passes import PASSES, Pass
from canon.recovery.passes.compact import compact
from canon.recovery.passes.grown import grown
from canon.recovery.probe import ProbeOptions, probe_classes
from canon.recovery.report import RecoveryReport, space_reports
from canon.recovery.sanity import agreement
from canon.recovery.tolerance import Tolerance
from canon.rewrite import replace_tensors
from canon.rewrite.kernels import Kernel

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, what is done and what is known to remain in all."""

METHODS = ("exact", "probe")
"""How channels can be compared."""

PROBE_PASSES = (compact, grown)
"""The paper's method knows nothing else."""

UNNOTICED = 1e-3
"""Outputs may change by this part of the largest whatever the weights are like."""

DRIFT = 30.0
"""Outputs may change by so many times the noise that merged channels show."""

MOST_TAKEN_BACK = 8
"""Spaces that are left alone one by one; then all of them are."""


@dataclass(frozen=True, repr=False)
class RecoveryResult(Shown):
    """A recovered model and the record of how it came about."""

    model: nn.Module
    """An ordinary, compact model. It shares nothing with the input."""

    report: RecoveryReport
    """What was found and why."""

    @property
    def size(self) -> int:
        """How many parameters are left."""
        return self.report.parameters[1]

    @property
    def drift(self) -> float:
        """How far outputs moved, as far as anybody looked."""
        return self.report.agreement or 0.0

    def lean(self) -> nn.Module:
        """A copy of the model without the layers that do nothing: `nn.Identity` stands where they stood.

        The recovered model itself keeps them, so that it can be saved and loaded as what it is.
        """
        return without(self.model, self.report.idle)

    def _shown(self) -> Mapping[str, object]:
        return self.report._shown()


def recover(
    model: nn.Module,
    example: Example,
    method: str = "exact",
    *,
    widths: nn.Module | Mapping[str, Tensor] | None = None,
    sanity_check: bool = True,
    options: Any = None,
    progress: Progress | None = None,
    passes: Sequence[Pass] = PASSES,
) -> RecoveryResult:
    """Undo structural obfuscation of a model, from the model alone.

    Args:
        model: The suspect, in evaluation mode. It is not changed.
        example: An input tensor, or a tuple or dict of inputs.
        method: `exact` (from the weights, no data) or `probe` (the paper's, from activations).
        widths: A model or state dict whose layer widths are the clean ones, if they are known. Channels that could be
            the owner's pruned ones are then kept until the width is reached.
        sanity_check: Run both models and compare.
        options: For `probe`, a `ProbeOptions`.
        progress: Called as the work goes on.
        passes: What to look for, with the method `exact`.

    A merge that turns out to be wrong is taken back, and nothing is raised because of it: at worst the model stays as
    it is.
    """
    if method not in METHODS:
        raise RecoveryError(f"unknown recovery method '{method}'", hint=f"Choose one of: {', '.join(METHODS)}")
    model = plain(model)
    example = arguments(model, example)
    clock = Clock()
    check_sizes(channel_tensors(model))
    graph = trace(model, example).with_rigid_pinned()
    tensors = channel_tensors(model, graph.orders)
    check_finite(tensors, compared(graph) | endless_shifts(graph, tensors) if method == "exact" else frozenset())
    known = known_widths(graph, widths)
    clock.lap("trace")
    run = _Run(model, tensors, example, graph, method, known, sanity_check, options, progress, clock, tuple(passes))
    tolerance = Tolerance.for_tensors(tensors.values())
    found: list[RecoveryResult] = []
    for allowed in (tolerance, tolerance.narrow(), tolerance.strict()):
        # Tolerances leave room for noise. Somebody may have hidden real differences in that room.
        result = run.attempt(allowed, frozenset())
        if result is not None:
            found.append(result)
            if result.drift <= UNNOTICED and result.size <= found[0].size:
                break
    if found:
        return min(found, key=lambda result: (result.size, result.drift))
    return run.take_back(tolerance.strict())


@dataclass(frozen=True)
class _Run:
    """Everything about one call but the tolerances."""

    model: nn.Module
    tensors: dict[str, Tensor]
    example: Tensor | tuple[Any, ...]
    graph: ChannelGraph
    method: str
    widths: Mapping[int, int]
    sanity_check: bool
    options: Any
    progress: Progress | None
    clock: Clock
    passes: tuple[Pass, ...]

    def attempt(self, tolerance: Tolerance, barred: frozenset[int], cropping: bool = True) -> RecoveryResult | None:
        """A compact model that computes the same; None: it does not.

        Args:
            tolerance: What counts as equal and as zero.
            barred: Spaces that must stay as they are.
            cropping: Whether kernels may become smaller. Somebody else may know how large they are.
        """
        clock, tensors = self.clock, self.tensors
        given = convolutions(self.model, self.graph) if cropping else {}
        kernels = {name: Kernel.of(layer) for name, layer in given.items()}
        subject = Subject.of(self.graph, tensors, tolerance, self.widths, kernels)
        subject = subject.barred(barred, "what was merged here had to be taken back")
        with torch.no_grad():
            history = run(subject, self.passes if self.method == "exact" else PROBE_PASSES, self._know, clock.lap)
        recovered = replace_tensors(self.model, history.changed, self.graph.orders)
        cropped = {}
        for name, kernel in history.subject.kernels.items():
            layer: Any = recovered.get_submodule(name.removesuffix(".weight"))
            if layer.weight.shape[2:] != given[name].weight.shape[2:]:
                kernel.settle(layer)
                cropped[name] = layer.kernel_size
        clock.lap("rewrite")
        agreed = None
        if self.sanity_check and (history.changed or cropped):
            agreed = self._compare(recovered, history, tolerance)
            clock.lap("check")
            if agreed is None:
                return self.attempt(tolerance, barred, cropping=False) if cropped else None
        report = RecoveryReport(
            method=self.method,
            spaces=space_reports(self.graph, history),
            cropped=cropped,
            seconds=clock.laps,
            parameters=(_parameters(tensor_names(self.model)[0]), _parameters(tensor_names(recovered)[0])),
            tolerance=tolerance,
            agreement=agreed,
            idle=idle_layers(recovered, history.subject.graph, channel_tensors(recovered, self.graph.orders)),
        )
        return RecoveryResult(recovered, report)

    def take_back(self, tolerance: Tolerance) -> RecoveryResult:
        """Leave alone as few spaces as it takes, found by halving: a wrong merge costs its space, not the result."""
        barred: frozenset[int] = frozenset()
        while True:
            suspected = [s.id for s in self.graph.spaces if not s.pins and s.id not in barred]
            result = self.attempt(tolerance, barred)
            if result is not None:
                return result
            if len(barred) == MOST_TAKEN_BACK:
                barred = barred.union(suspected)
                continue
            low, high = 0, len(suspected)
            while high - low > 1:  # with all behind `low` barred it is right, with all behind `high` it is wrong
                middle = (low + high) // 2
                if self.attempt(tolerance, barred.union(suspected[middle:])) is None:
                    high = middle
                else:
                    low = middle
            if not suspected:
                raise RecoveryError(
                    "the copy of the model differs from the input model",
                    hint="The input model is unchanged; please report the case",
                )
            barred = barred | {suspected[low]}

    def _know(self, subject: Subject) -> Facts:
        return Facts(subject, self._find_classes)

    def _find_classes(self, subject: Subject) -> dict[int, Classes]:
        self.clock.lap("passes")
        progress, report = self.progress, None
        if progress is not None:

            def report(done: int, total: int) -> None:
                progress("describe", done, total)

        graph, tensors, tolerance = subject.graph, subject.tensors, subject.tolerance
        check_finite({name: tensors[name] for name in endless_shifts(self.graph, self.tensors)}, frozenset())
        if self.method == "exact":
            found = consistent(lambda allowed: Refinement(graph, tensors, allowed, report).run(), tolerance)
        else:
            chosen = ProbeOptions() if self.options is None else self.options
            found = probe_classes(self.model, self.example, graph, tensors, tolerance, chosen, report)
        self.clock.lap("describe")
        return found

    def _compare(self, recovered: nn.Module, history: History, tolerance: Tolerance) -> float | None:
        """How far outputs differ, relative to the largest; None: more than the agreement of channels explains."""
        outcomes = [outcome for known in history.outcomes.values() for outcome, _ in known]
        noise = max(history.noise, largest(dict(enumerate(outcome.classes for outcome in outcomes))))
        # A wrong merge shows at once; what an attack's own rounding leaves behind its cancelled sums is far below this.
        allowed = UNNOTICED + 10 * tolerance.rounding + DRIFT * noise
        difference, size = agreement(self.model, recovered, self.example)
        if not difference <= allowed * size:
            return None
        return difference / size if size else difference


def known_widths(graph: ChannelGraph, known: nn.Module | Mapping[str, Tensor] | None) -> dict[int, int]:
    """Clean widths by space id, read off a reference's tensors by name."""
    if known is None:
        return {}
    reference = known.state_dict() if isinstance(known, nn.Module) else known
    found: dict[int, int] = {}
    for space in graph.spaces:
        for producer in space.producers:
            linear = graph.maps[producer.map]
            tensor = reference.get(linear.weight)
            if tensor is not None and len(linear.rows) == 1:
                found[space.id] = tensor.shape[linear.row_axis] // linear.rows[0].repeat
    if not found:
        raise RecoveryError(
            "the known widths name none of the model's layers",
            hint="Give a model or state dict of the same architecture",
        )
    return found


def check_sizes(tensors: Mapping[str, Tensor]) -> None:
    """Refuse layers without channels."""
    for name, tensor in tensors.items():
        if tensor.numel() == 0:
            raise UnsupportedModelError(
                f"tensor of shape {tuple(tensor.shape)} is empty", where=name,
                hint="A layer without channels cannot be recovered",
            )  # fmt: skip


def compared(graph: ChannelGraph) -> frozenset[str]:
    """Weights that the exact method reads whole to compare their rows, and refuses then if it must."""
    free = {space.id for space in graph.spaces if not space.pins}
    return frozenset(linear.weight for linear in graph.maps if any(s.space in free for s in linear.rows))


def endless_shifts(graph: ChannelGraph, tensors: Mapping[str, Tensor]) -> frozenset[str]:
    """Biases that hold infinity and are numbers all the same: a pass may know what they do."""
    names = {linear.bias for linear in graph.maps if linear.bias is not None}
    names |= {stage.params["bias"] for space in graph.spaces for stage in space.stages if "bias" in stage.params}
    return frozenset(name for name in not_finite((n, tensors[n]) for n in names) if not tensors[name].isnan().any())


def check_finite(tensors: Mapping[str, Tensor], later: frozenset[str]) -> None:
    """Refuse numbers that no comparison can be made with, but for tensors that are looked at later anyway."""
    named = [(name, tensor) for name, tensor in tensors.items() if name not in later]
    for name in not_finite(named):
        raise UnsupportedModelError(
            "tensor holds NaN or infinity", where=name,
            hint="The model is damaged; recovery compares weights and cannot use them",
        )  # fmt: skip


def _parameters(tensors: Mapping[str, Tensor]) -> int:
    return sum(t.numel() for t in tensors.values() if isinstance(t, nn.Parameter))


class Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """What has passed since the last lap belongs to this stage."""
        now = time.perf_counter()
        self.laps[name] = self.laps.get(name, 0.0) + now - self._last
        self._last = now
