"""`attack`: from a model to one that computes the same and hides what it is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Unpack

import torch
from torch import Tensor, nn

from canon._shown import Shown
from canon.attacks import registry
from canon.attacks.after import Step, as_steps
from canon.attacks.axes import Axes
from canon.attacks.channels import Kind
from canon.attacks.log import AttackLog, StepLog, write_log
from canon.attacks.noise import FilterSource
from canon.attacks.options import MIX, AttackOptions, MoreOptions
from canon.attacks.parameters import write_parameters
from canon.attacks.place import Surroundings
from canon.attacks.plan import AttackPlan, count_parameters, make_plan
from canon.attacks.probes import Inputs, difference, probes_like
from canon.attacks.thresholds import ordinary_shifts, set_thresholds
from canon.attacks.weights import write_bias, write_weight
from canon.errors import AttackError, UnsupportedModelError
from canon.graph import Example, arguments, plain, trace
from canon.graph.bundles import free_orders
from canon.graph.experts import channel_tensors
from canon.graph.mapped import results
from canon.graph.tensors import tensor_names
from canon.graph.tracer import check_model
from canon.rewrite import replace_tensors, resize_kernels
from canon.rewrite.bundles import move_bundles

MOST_PARAMETERS: Final = 10**9
"""An attacked model may have so many."""

MOST_GROWTH: Final = 2
"""A model that is large itself may become so many times as large."""

Progress = Callable[[int, int], None]
"""Told how many layers are written, and of how many."""


@dataclass(frozen=True, eq=False, repr=False)
class AttackResult(Shown):
    """An attacked model and what was done to it."""

    model: nn.Module
    """Computes what the original does, but for what the log says; carries no trace of the attack."""

    log: AttackLog
    """What was done, enough to do it again and to score a recovery."""

    def _shown(self) -> Mapping[str, object]:
        return {
            "ops": self.log.options.ops,
            "spaces": len(self.log.spaces),
            "parameters": self.log.parameters,
            "preserves": self.log.preserves,
        }


def attack(
    model: nn.Module,
    example: Example,
    ops: str | Iterable[str],
    *,
    ratio: float = 0.2,
    seed: int = 0,
    permute: bool = True,
    scale: bool = True,
    after: Iterable[str | Step] = (),
    probes: Tensor | Inputs | None = None,
    **more: Unpack[MoreOptions],
) -> AttackResult:
    """Hide a model: inject channels into every free space, shuffle and scale them, and keep the function.

    Args:
        model: A model in evaluation mode. It is not changed.
        example: An input tensor, or a tuple of the forward pass's arguments, or a dict of them by name.
        ops: Primitives in the order of their application, or `"mix-opseq"` or `"mix-opseq-per-merge-group"`.
        ratio: ρ; each primitive adds `⌈ρ·C⌉` channels.
        seed: The same seed gives the same tensors.
        permute: Whether to shuffle channels.
        scale: Whether to scale channels.
        after: What to do to the weights afterwards: `"noise:relative=0.2"`, `"prune=0.3"`, `"round=8"`, `"float16"`, …
            These change the function; the log says by how much.
        probes: Inputs on which channels are to be dead on data; None: random ones and the example.
        **more: Further fields of `AttackOptions`.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    >>> attack(net, torch.zeros(1, 4), ["nso_clique"], ratio=0.5).model[0]
    Linear(in_features=4, out_features=12, bias=True)
    """
    names = (ops,) if isinstance(ops, str) else tuple(ops)
    options = AttackOptions(ops=names, ratio=ratio, seed=seed, permute=permute, scale=scale, **more)
    return attack_with(model, example, options, after=after, probes=probes)


def attack_with(
    model: nn.Module,
    example: Example,
    options: AttackOptions,
    progress: Progress | None = None,
    *,
    after: Iterable[str | Step] = (),
    probes: Tensor | Inputs | None = None,
) -> AttackResult:
    """`attack` with all options in one value, and with news of its progress."""
    model = plain(model)
    example = arguments(model, example)
    steps = as_steps(after)
    return _carry_out(model, _prepare(model, example, options), steps, _Trials.of(example, probes), progress)


def replay(
    model: nn.Module,
    example: Example,
    log: AttackLog,
    *,
    after: Iterable[str | Step] | None = None,
    probes: Tensor | Inputs | None = None,
) -> AttackResult:
    """Do a logged attack again.

    Args:
        model: The model that was attacked, not changed since.
        example: An input like the one given then.
        log: What was done.
        after: The steps afterwards, where they need data that a log does not hold; None: as the log names them.
        probes: Those that were given then.

    Raises:
        AttackError: The model is not the one that the log speaks of.
    """
    model = plain(model)
    example = arguments(model, example)
    steps = as_steps(step.step for step in log.after) if after is None else as_steps(after)
    prepared = _prepare(model, example, log.options)
    if prepared.log.spaces != log.spaces or prepared.log.kernels != log.kernels:
        mine, theirs = {s.name: s for s in prepared.log.spaces}, {s.name: s for s in log.spaces}
        differs = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
        raise AttackError(
            "the model is not the one that this log speaks of",
            where=", ".join(differs[:3]) or None,
            hint="Give the model as it was before the attack",
        )
    return _carry_out(model, prepared, steps, _Trials.of(example, probes), None)


@dataclass(frozen=True, eq=False)
class _Prepared:
    """An attack that is decided and checked, with no channel written yet."""

    model: nn.Module
    """What channels are injected into."""

    plan: AttackPlan
    tensors: Mapping[str, Tensor]
    generator: torch.Generator
    log: AttackLog


def check_ops(ops: Iterable[str]) -> None:
    """Raise AttackError if there is no such operation."""
    for name in ops:
        if name not in MIX:
            registry.get(name)


def _prepare(model: nn.Module, example: Tensor | tuple[Any, ...], options: AttackOptions) -> _Prepared:
    check_ops(options.ops)
    check_model(model)
    _check_finite({name: tensor.detach() for name, tensor in tensor_names(model)[0].items()})
    own = torch.Generator().manual_seed(options.seed)
    for name in options.ops:
        model = model if name in MIX else registry.get(name).prepare(model, example, options.ratio, own)
    free = free_orders(model) if options.permute and not options.select else ()
    if free:
        model = move_bundles(model, {one: torch.randperm(one.count, generator=own) for one in free})
    graph = trace(model, example)
    named = channel_tensors(model, graph.orders)
    tensors = {name: tensor.detach() for name, tensor in named.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    generator = torch.Generator().manual_seed(options.seed)
    ordinary = ordinary_shifts(model)
    if graph.free or not free:
        plan = make_plan(graph, options, shapes, generator, ordinary)
    else:
        plan = AttackPlan(graph, {}, frozenset(), options.chain, Surroundings(graph, ordinary))
    size = count_parameters(plan, shapes, {name for name, one in named.items() if isinstance(one, nn.Parameter)})
    size_before = sum(one.numel() for one in named.values() if isinstance(one, nn.Parameter))
    most = max(MOST_PARAMETERS, MOST_GROWTH * size_before) if options.max_parameters is None else options.max_parameters
    if size > most:
        raise AttackError(
            f"the attacked model would have {size:,} parameters, more than {most:,}",
            hint="Lower the ratio, shorten the sequence, select fewer spaces, or raise max_parameters",
        )
    return _Prepared(model, plan, tensors, generator, write_log(plan, options, size))


@dataclass(frozen=True, eq=False)
class _Trials:
    """Inputs to try the model on."""

    set: Sequence[Inputs] | None
    """On which thresholds are set; None: random ones, by the attack's seed."""

    example: Tensor | Inputs

    @staticmethod
    def of(example: Tensor | Inputs, probes: Tensor | Inputs | None) -> _Trials:
        given = None if probes is None else [probes if isinstance(probes, tuple) else (probes,)]
        return _Trials(given, example)

    def measure(self, seed: int) -> list[Inputs]:
        """On which the change is measured: not those on which thresholds were set, unless these were given."""
        return list(self.set) if self.set is not None else probes_like(self.example, seed + 1)


def _carry_out(
    model: nn.Module, prepared: _Prepared, steps: Sequence[Step], trials: _Trials, progress: Progress | None
) -> AttackResult:
    seed, log = prepared.log.options.seed, prepared.log
    with torch.no_grad():
        changed = write_tensors(prepared.tensors, prepared.plan, prepared.generator, progress)
        attacked = replace_tensors(prepared.model, changed, prepared.plan.graph.orders)
        resize_kernels(attacked, dict.fromkeys(prepared.plan.kernels, 1))
    if any(planned.counts[Kind.DEAD_DATA] for planned in prepared.plan.spaces.values()):
        set_thresholds(attacked, prepared.plan, list(trials.set or probes_like(trials.example, seed)))
    if log.preserves != "function":
        log = replace(log, change=difference(model, attacked, trials.measure(seed)))
    done = []
    for step in steps:
        later = step.apply(attacked, prepared.generator)
        done.append(StepLog(step.spec, difference(attacked, later, trials.measure(seed))))
        attacked = later
    return AttackResult(attacked, replace(log, after=tuple(done)))


def write_tensors(
    tensors: Mapping[str, Tensor], plan: AttackPlan, generator: torch.Generator, progress: Progress | None = None
) -> dict[str, Tensor]:
    """Every tensor that the plan changes, by first name."""
    changed = results(tensors)
    changed.update(write_parameters(tensors, plan))
    touched = [
        linear
        for linear in plan.graph.maps
        if any(s.space in plan.spaces for s in (*linear.rows, *(linear.columns or ())))
    ]
    axes, noise = Axes(plan), _noise_for(plan, tensors, generator)
    for done, linear in enumerate(touched, 1):
        if linear.weight not in changed:  # a layer may be called twice, a tensor belong to two layers
            changed[linear.weight] = write_weight(tensors[linear.weight], linear, axes, noise)
        if linear.bias is not None and linear.bias not in changed and any(s.space in plan.spaces for s in linear.rows):
            changed[linear.bias] = write_bias(tensors[linear.bias], linear, axes)
        if progress is not None:
            progress(done, len(touched))
    return changed


def _noise_for(plan: AttackPlan, tensors: Mapping[str, Tensor], generator: torch.Generator) -> FilterSource:
    longest = most = 1
    for linear in plan.graph.maps:
        weight, ring = tensors[linear.weight], int(linear.weight in plan.kernels)
        kernel = math.prod(side + 2 * ring for side in weight.shape[2:])
        width = weight.shape[linear.column_axis]
        if linear.columns is not None:
            width = sum(plan.width(s.space) * s.repeat for s in linear.columns) // linear.groups
        longest = max(longest, width * kernel)
        most = max(most, sum(2 * plan.width(s.space) * s.repeat for s in linear.rows))
    return FilterSource.of(longest, most, generator)


def _check_finite(tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        # The extremes show it, and are found without a copy.
        if tensor.is_floating_point() and tensor.numel() and not all(map(math.isfinite, torch.aminmax(tensor))):
            raise UnsupportedModelError(
                "the tensor holds numbers that are not finite", where=name, hint="Repair or retrain the model first"
            )
