"""What an attack costs, beside what a copy of its result costs in the same run."""

from __future__ import annotations

import math
from functools import partial
from statistics import linear_regression
from typing import Final

import torch
from torch import Tensor

from canon.attacks import AttackOptions, attack_with
from canon.graph import trace
from canon.zoo import example_input
from canon_benchmarks.clock import time_of
from canon_benchmarks.micro import Measurement
from canon_benchmarks.performance import LIMITS, Case, attacked
from canon_benchmarks.subjects import subject

SLOPE: Final = 1.1
"""Time that is linear in the bytes written grows with their first power."""

STEPS: Final = (1, 2, 3, 4)
"""How often channels are injected where the growth is measured; each time makes a network half as wide again."""


def measure_attack(name: str, variant: str, ratio: float = 0.2, repeats: int = 5) -> Measurement:
    """Time of an attack with all camouflage over that of cloning the attacked state dict."""
    network, example = subject(name), example_input(name)
    options, model = attacked(Case(name, variant, ratio), network, example)
    state = _state(model)
    clock = partial(time_of, repeats=repeats, device="cpu")
    clone = clock(lambda: {key: value.clone() for key, value in state.items()}).median
    traced = clock(lambda: trace(network, example)).median
    del model
    ours = clock(lambda: attack_with(network, example, options)).median
    note = (
        f"attack {ours * 1e3:.0f} ms, of which a trace {traced * 1e3:.0f} ms; "
        f"clone {clone * 1e3:.0f} ms, {_size(state) / 1e6:.0f} MB"
    )
    return Measurement(
        f"attack {name} {variant} {ratio}", ours / clone, "x", limit=LIMITS["attack_to_clone"], note=note
    )


def measure_growth(name: str = "resnet18", repeats: int = 3) -> Measurement:
    """How the time of an attack grows with what it writes: the slope of its logarithm over that of the bytes."""
    network, example = subject(name), example_input(name)
    bytes_written, seconds = [], []
    for steps in STEPS:
        options = AttackOptions(ops=("nso_zero",) * steps, ratio=0.5)
        bytes_written.append(_size(_state(attack_with(network, example, options).model)))
        run = partial(attack_with, network, example, options)
        seconds.append(time_of(run, repeats=repeats, device="cpu").median)
    slope = linear_regression([math.log(size) for size in bytes_written], [math.log(t) for t in seconds]).slope
    figures = zip(bytes_written, seconds, strict=True)
    note = "log time over log bytes: " + ", ".join(f"{size / 1e6:.0f} MB {t * 1e3:.0f} ms" for size, t in figures)
    return Measurement(f"attack {name}, growth", slope, "", limit=SLOPE, note=note)


def _state(model: torch.nn.Module) -> dict[str, Tensor]:
    return {key: value.detach() for key, value in model.state_dict().items()}


def _size(state: dict[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())
