"""A trained model held against its unmarked twin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from canon import watermarks
from canon.bench.cases import TWIN, Training
from canon.bench.lab import Setup, trained
from canon.bench.measures.sheet import Sheet

WITHIN: Final = {"mnist": 0.005, "cifar100": 0.02}
"""How far a marked model's accuracy may be below its twin's; 0.01 where nothing is said."""

LEAST: Final = {("mnist", None): 0.99, ("cifar100", "resnet18"): 0.59, ("cifar100", "small:resnet18"): 0.75}
"""Accuracy that an unmarked model must reach, by dataset and model; on MNIST a marked one as well."""

CHANCE: Final = (0.37, 0.63)
"""What a wrong key may read."""

SIMILARITY: Final = {"riga21": 0.95}
"""What a scheme must reach where that is less than 1: an extractor network errs now and then."""

HARD: Final = {"cifar100": 0.97}
"""What every scheme must reach on a dataset that leaves less room."""


def measure_training(case: Training, setup: Setup, sheet: Sheet) -> None:
    """Take over what training found, and read the key on the twin."""
    mine = trained(setup, case)
    figures = mine.figures
    sheet.note(
        model=figures["model"][:16],
        accuracy=figures["accuracy"],
        epochs=figures["epochs"],
        batch_size=figures["options"]["batch_size"],
        trained_on=figures["environment"]["device"],
    )
    sheet.seconds["training"] = round(figures["seconds"], 2)
    if case.scheme == TWIN:
        sheet.note(good=reaches_the_bar(case, sheet.metrics))
        return
    assert mine.key is not None, "a marked model has a key"
    twin = trained(setup, case.twin)
    sheet.note(
        twin_accuracy=twin.figures["accuracy"],
        similarity=figures["similarity"],
        matched=figures["matched"],
        total=figures["total"],
        margin=figures["margin"],
        layers=figures["layers"],
        wrong_key_similarity=figures["wrong_key_similarity"],
        twin_similarity=watermarks.get(case.scheme).similarity(twin.model, mine.key),
        **{name.replace(" ", "_"): value for name, value in figures["details"].items()},
    )
    sheet.note(good=reaches_the_bar(case, sheet.metrics))


def reaches_the_bar(case: Training, found: Mapping[str, Any]) -> bool:
    """Whether what training found is as good as it should be; nothing is where the twin itself is not."""
    least = LEAST.get((case.dataset, case.model), LEAST.get((case.dataset, None), 0.0))
    if case.scheme == TWIN:
        return bool(found["accuracy"] >= least)
    clean = min(SIMILARITY.get(case.scheme, 1.0), HARD.get(case.dataset, 1.0))
    low, high = CHANCE
    return bool(
        found["similarity"] >= clean
        and found["accuracy"] >= found["twin_accuracy"] - WITHIN.get(case.dataset, 0.01)
        and found["twin_accuracy"] >= least
        and (case.dataset != "mnist" or found["accuracy"] >= least)
        and low <= found["wrong_key_similarity"] <= high
    )
