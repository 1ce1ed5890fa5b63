"""Small measurements, most beside a yardstick of the same run, with a limit."""

from __future__ import annotations

import copy
import math
from functools import partial
from statistics import linear_regression
from typing import Final

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from canon import watermarks, zoo
from canon.attacks import AttackOptions, attack_with
from canon.bench.lab import Setup
from canon.bench.measures.sheet import Sheet
from canon.containment import locate
from canon.graph import trace
from canon.recovery import recover
from canon.zoo.training import train_options
from canon_benchmarks.cases import Cost
from canon_benchmarks.measures.clock import Timed, peak_extra_bytes, time_of, times_of
from canon_benchmarks.measures.speed import LIMITS, attacked
from canon_benchmarks.subjects import subject

REPEATS: Final = 5
STEPS: Final = (1, 2, 3, 4)
"""How often channels are injected where the growth is measured; each time makes a network half as wide again."""

AT_MOST: Final = {
    "trace": 3.0,
    "attack": LIMITS["attack_to_clone"],
    "growth": 1.1,
    "locate": 2.0,
    "memory": 0.5,
    "training": 60.0,
}
"""The limits; that of training holds for resnet18 on two cores."""

Found = tuple[float, str]
"""A value, and what it was made from."""


def measure_cost(case: Cost, setup: Setup, sheet: Sheet) -> None:
    """Measure, and hold against the limit."""
    value, note = MEASURES[case.what](case, setup.device)
    limit = AT_MOST[case.what] if case.what != "training" or case.model == "resnet18" else None
    sheet.note(value=value, limit=limit, note=note, good=limit is None or value <= limit)


def plain_trace(network: nn.Module, example: Tensor) -> None:
    """`torch.fx.symbolic_trace` and shape propagation on meta tensors: the least any tracer needs."""
    ShapeProp(fx.symbolic_trace(network)).propagate(example)


def of_trace(case: Cost, device: str) -> Found:
    """Time of `canon.trace` over that of the plain trace."""
    network, example = zoo.model(case.model), zoo.example_input(case.model)
    meta, meta_example = copy.deepcopy(network).to("meta"), example.to("meta")
    with torch.no_grad():
        plain = time_of(lambda: plain_trace(meta, meta_example), repeats=REPEATS, device="cpu").median
    ours = time_of(lambda: trace(network, example), repeats=REPEATS, device="cpu").median
    return ours / plain, f"canon.trace {ours * 1e3:.0f} ms, symbolic_trace and meta shapes {plain * 1e3:.0f} ms"


def of_attack(case: Cost, device: str) -> Found:
    """Time of an attack with all camouflage over that of cloning the attacked state dict."""
    network, example = subject(case.model), zoo.example_input(case.model)
    options, model = attacked(case, network, example)
    state = _state(model)
    clock = partial(time_of, repeats=REPEATS, device="cpu")
    clone = clock(lambda: {key: value.clone() for key, value in state.items()}).median
    traced = clock(lambda: trace(network, example)).median
    del model
    ours = clock(lambda: attack_with(network, example, options)).median
    return ours / clone, (
        f"attack {ours * 1e3:.0f} ms, of which a trace {traced * 1e3:.0f} ms; "
        f"clone {clone * 1e3:.0f} ms, {_size(state) / 1e6:.0f} MB"
    )


def of_growth(case: Cost, device: str) -> Found:
    """How the time of an attack grows with what it writes: the slope of its logarithm over that of the bytes."""
    network, example = subject(case.model), zoo.example_input(case.model)
    bytes_written, seconds = [], []
    for steps in STEPS:
        options = AttackOptions(ops=("nso_zero",) * steps, ratio=0.5)
        bytes_written.append(_size(_state(attack_with(network, example, options).model)))
        run = partial(attack_with, network, example, options)
        seconds.append(time_of(run, repeats=3, device="cpu").median)
    slope = linear_regression([math.log(size) for size in bytes_written], [math.log(t) for t in seconds]).slope
    figures = zip(bytes_written, seconds, strict=True)
    told = ", ".join(f"{size / 1e6:.0f} MB {t * 1e3:.0f} ms" for size, t in figures)
    return slope, f"log time over log bytes: {told}"


def of_locating(case: Cost, device: str) -> Found:
    """Time of locating the owner's model over that of recovering the same suspect."""
    owner, example = subject(case.model), zoo.example_input(case.model)
    _, suspect = attacked(case, owner, example)
    steps = {
        "recover": Timed(lambda: recover(suspect, example), large=True),
        "locate": Timed(lambda: locate(suspect, owner, example), large=True),
    }
    times = times_of(steps, repeats=REPEATS, device="cpu")
    ours, theirs = times["locate"].median, times["recover"].median
    return ours / theirs, f"locate {ours * 1e3:.0f} ms, recover {theirs * 1e3:.0f} ms"


def of_memory(case: Cost, device: str) -> Found:
    """Peak memory of locating the owner's model, relative to the suspect."""
    owner, example = subject(case.model), zoo.example_input(case.model)
    _, suspect = attacked(case, owner, example)
    size = _size(_state(suspect))
    locate(suspect, owner, example)  # the first call loads libraries
    extra = peak_extra_bytes(lambda: locate(suspect, owner, example), "cpu")
    if extra is None:
        return 0.0, ""
    return extra / size, f"{extra / 1e6:.0f} MB beside a suspect of {size / 1e6:.0f} MB"


def of_training(case: Cost, device: str) -> Found:
    """Seconds to train a model of the zoo on the digits with a mark, once."""
    data = zoo.dataset("digits")
    start = zoo.model(case.model, classes=data.classes)
    options = train_options("digits", case.model, device)
    made = watermarks.get("uchida17").embed(start, data, seed=0, options=options)
    accuracy = watermarks.accuracy(made.model, data)
    return made.seconds, f"{len(made.history)} epochs, accuracy {accuracy:.3f}, uchida17 on digits"


MEASURES: Final = {
    "trace": of_trace,
    "attack": of_attack,
    "growth": of_growth,
    "locate": of_locating,
    "memory": of_memory,
    "training": of_training,
}
"""By what is measured."""


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {key: value.detach() for key, value in model.state_dict().items()}


def _size(state: dict[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())
