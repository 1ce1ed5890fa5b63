"""What every step costs, beside yardsticks measured in the same run.

All camouflage is on. The yardsticks: a trace and a copy of the attacked state dict, one forward pass of 32 images,
Torch-Pruning, where it is installed, removing the same channels when told which, and the probe method. On CUDA also one
reading of the attacked weights at the memory's measured bandwidth.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Final

import torch
from torch import Tensor, nn

from canon import zoo
from canon.attacks import AttackOptions, attack_with
from canon.bench.lab import Setup
from canon.bench.measures.attacked import count
from canon.bench.measures.sheet import Sheet
from canon.errors import AttackError, MissingExtraError
from canon.graph import trace
from canon.recovery import RecoveryReport, recover
from canon.verify import align, certify
from canon_benchmarks.cases import FOUR, Disguised, Speed
from canon_benchmarks.measures.clock import Timed, Times, peak_extra_bytes, read_bandwidth, times_of
from canon_benchmarks.measures.pruning import import_pruning, prune, removed_channels
from canon_benchmarks.subjects import subject

IMAGES: Final = 32
"""Images of the forward pass that times are compared with."""

REPEATS: Final = 5
"""Runs per step."""

LIMITS: Final = {
    "trace_and_clone": 5.0, "probe": 0.1, "pruning": 1.0, "verify": 1.0, "attack_to_clone": 5.0, "memory": 0.5,
}  # fmt: skip
"""What recovery may cost at most, relative to each yardstick; for `verify`, what verification may cost of recovery; for
`attack_to_clone`, what an attack may cost of a copy; for `memory`, what recovery may need beside four primitives."""


def limit_of(ratio: str, attack: str, device: str) -> float | None:
    """What a ratio may be at most under this attack; None: anything.

    On a GPU a copy takes next to no time, and only the seconds of recovery count.
    """
    if device.startswith("cuda") or (ratio == "memory" and attack != FOUR):
        return None
    return LIMITS.get(ratio)


def attacked(case: Disguised, clean: nn.Module, example: Tensor) -> tuple[AttackOptions, nn.Module]:
    """The attacked model, without expanded kernels where they would make it too large."""
    four = ("nso_zero", "nso_clique", "nso_split", "nso_zero")
    for expand in (False,) if case.attack == FOUR else (True, False):
        options = AttackOptions(
            ops=four if case.attack == FOUR else (case.attack,),
            ratio=case.ratio,
            expand_kernels=expand,
            split_shares="random",
            chain=True,
        )
        try:
            return options, attack_with(clean, example, options).model
        except AttackError:
            if not expand:
                raise
    raise AssertionError("one of the two is returned or raises")


def measure_speed(case: Speed, setup: Setup, sheet: Sheet) -> None:
    """Time all steps of one case."""
    device = setup.device
    clean = subject(case.model, device=device)
    example = zoo.example_input(case.model).to(device)
    images = zoo.example_input(case.model, batch=IMAGES).to(device)
    options, model = attacked(case, clean, example)
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    size = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    result = recover(model, example)
    steps = {
        "trace": Timed(lambda: trace(model, example)),
        "clone": Timed(lambda: {name: tensor.clone() for name, tensor in state.items()}, large=True),
        "attack": Timed(lambda: attack_with(clean, example, options), large=True),
        "forward": Timed(torch.no_grad()(lambda: model(images))),
        "recover": Timed(lambda: recover(model, example), large=True),
        "align": Timed(lambda: align(result.model, clean, example)),
        "certify": Timed(lambda: certify(result.model, clean, example)),
    }
    with suppress(MissingExtraError):
        steps["pruning"] = _pruning(model, example, result.report)
    if case.probe:
        steps["probe"] = Timed(lambda: recover(model, example, "probe"), rounds=case.probe)
    seconds = times_of(steps, repeats=REPEATS, device=device)
    if device.startswith("cuda"):
        bandwidth = read_bandwidth(device)
        seconds["reading"] = Times((size / bandwidth,))
        sheet.note(bandwidth=bandwidth)
    extra = peak_extra_bytes(lambda: recover(model, example), device)
    sheet.note(
        expanded_kernels=options.expand_kernels,
        device=device,
        threads=torch.get_num_threads(),
        parameters={"clean": count(clean), "attacked": count(model), "recovered": count(result.model)},
        attacked_bytes=size,
        seconds={name: times.record() for name, times in seconds.items()},
        peak_extra_bytes=extra,
        ratios=ratios({name: times.median for name, times in seconds.items()}, extra, size),
    )


def _pruning(model: nn.Module, example: Tensor, report: RecoveryReport) -> Timed:
    removed = removed_channels(trace(model, example), report)
    given: list[nn.Module] = []

    def prepare() -> None:
        given[:] = [copy.deepcopy(model).requires_grad_(True)]

    import_pruning()  # what that takes does not count
    return Timed(lambda: prune(given.pop(), example, removed), prepare)


def ratios(seconds: dict[str, float], extra: int | None, size: int) -> dict[str, float]:
    """Recovery relative to each yardstick, and the other steps relative to theirs."""
    mine = seconds["recover"]
    found = {
        "trace_and_clone": mine / (seconds["trace"] + seconds["clone"]),
        "forward": mine / seconds["forward"],
        "verify": seconds["certify"] / mine,
        "align_and_certify": (seconds["align"] + seconds["certify"]) / mine,
        "attack_to_clone": seconds["attack"] / seconds["clone"],
        "attack_to_trace_and_clone": seconds["attack"] / (seconds["trace"] + seconds["clone"]),
    }
    for other in ("pruning", "probe", "reading"):
        if other in seconds:
            found[other] = mine / seconds[other]
    if "pruning" in seconds:
        found["pruning_a_copy"] = mine / (seconds["clone"] + seconds["pruning"])
    if extra is not None:
        found["memory"] = extra / size
    return {name: round(value, 3) for name, value in found.items()}
