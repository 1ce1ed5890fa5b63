"""What an attack costs, beside what a copy of its result costs in the same run."""

from __future__ import annotations

from functools import partial

from canon.attacks import AttackOptions, attack_with
from canon.bench.attack_grid import randomize_norms
from canon.bench.micro import Measurement, median_seconds
from canon.graph import trace
from canon.zoo import example_input, model


def measure_attack(name: str = "resnet18", ratio: float = 0.5, repeats: int = 5) -> Measurement:
    """Time of an attack with two primitives and all camouflage over that of cloning the attacked state dict."""
    network, example = model(name), example_input(name)
    randomize_norms(network)
    options = AttackOptions(ops=("nso_zero", "nso_clique"), ratio=ratio)
    attacked = attack_with(network, example, options)
    state = attacked.model.state_dict()
    clone = median_seconds(lambda: {key: value.clone() for key, value in state.items()}, repeats)
    traced = median_seconds(lambda: trace(attacked.model, example), repeats)
    ours = median_seconds(partial(attack_with, network, example, options), repeats)
    note = (
        f"attack {ours * 1e3:.0f} ms, {ours / (clone + traced):.1f} x trace and clone; "
        f"clone {clone * 1e3:.0f} ms, trace {traced * 1e3:.0f} ms, {attacked.log.parameters / 1e6:.0f} M parameters"
    )
    # Many small layers cost what a trace costs, however few numbers they hold.
    limit = 5.0 if name == "resnet18" else None
    return Measurement(f"attack {name}", ours / clone, "x", limit=limit, note=note)
