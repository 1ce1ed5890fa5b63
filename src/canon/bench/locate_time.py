"""What it costs to locate a network, beside what recovery costs in the same run."""

from __future__ import annotations

from typing import Final

from canon.bench.clock import Step, peak_extra_bytes, times_of
from canon.bench.micro import Measurement
from canon.bench.performance import Case, attacked
from canon.bench.subjects import subject
from canon.containment import locate
from canon.recovery import recover
from canon.zoo import example_input

TIME: Final = 2.0
"""Locating may take so many times what recovery takes."""

MEMORY: Final = 0.5
"""Its peak, beyond what was in use, relative to the suspect."""


def measure_locate(name: str, variant: str = "mix-opseq", ratio: float = 0.2, repeats: int = 5) -> Measurement:
    """Time of locating the owner's model over that of recovering the same suspect."""
    owner, example = subject(name), example_input(name)
    _, suspect = attacked(Case(name, variant, ratio), owner, example)
    steps = {
        "recover": Step(lambda: recover(suspect, example), large=True),
        "locate": Step(lambda: locate(suspect, owner, example), large=True),
    }
    times = times_of(steps, repeats=repeats, device="cpu")
    ours, theirs = times["locate"].median, times["recover"].median
    note = f"locate {ours * 1e3:.0f} ms, recover {theirs * 1e3:.0f} ms"
    return Measurement(f"locate {name} {variant} {ratio}", ours / theirs, "x", limit=TIME, note=note)


def measure_memory(name: str, variant: str = "mix-opseq", ratio: float = 0.2) -> Measurement:
    """Peak memory of locating the owner's model, relative to the suspect."""
    owner, example = subject(name), example_input(name)
    _, suspect = attacked(Case(name, variant, ratio), owner, example)
    size = sum(tensor.numel() * tensor.element_size() for tensor in suspect.state_dict().values())
    locate(suspect, owner, example)  # libraries wake up
    extra = peak_extra_bytes(lambda: locate(suspect, owner, example), "cpu")
    note = "" if extra is None else f"{extra / 1e6:.0f} MB beside a suspect of {size / 1e6:.0f} MB"
    share = 0.0 if extra is None else extra / size
    return Measurement(f"locate {name} {variant} {ratio}, memory", share, "x", limit=MEMORY, note=note)
