"""How long it takes to train a marked model on the digits, at the benchmark's settings."""

from __future__ import annotations

from canon import watermarks, zoo
from canon.zoo.training import train_options
from canon_benchmarks.micro import Measurement

SCHEME = "uchida17"
LIMIT = 60.0
"""For resnet18, on two cores."""


def measure_training(name: str, device: str = "cpu") -> Measurement:
    """Seconds to train a model of the zoo with a mark, once."""
    data = zoo.dataset("digits")
    start = zoo.model(name, classes=data.classes)
    options = train_options("digits", name, device)
    made = watermarks.get(SCHEME).embed(start, data, seed=0, options=options)
    note = f"{len(made.history)} epochs, accuracy {watermarks.accuracy(made.model, data):.3f}, {SCHEME} on digits"
    limit = LIMIT if name == "resnet18" and device == "cpu" else None
    return Measurement(f"train {name}", made.seconds, "s", limit=limit, note=note)
