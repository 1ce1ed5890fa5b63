"""Are p-values of wrong keys honest?

A wrong key has nothing to do with the model that it is read from. Its p-value must not be small more often than it
says: stochastically no smaller than uniform. That is tested with a one-sided Kolmogorov-Smirnov test, for many keys of
every scheme, on models that somebody else trained and marked. The keys of riga21 are networks that learn; for that
scheme wrong keys that were trained on other models are tested as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from scipy.stats import binom, kstest
from torch import nn

from canon import watermarks, zoo
from canon.bench.lab import Setup
from canon.bench.measures.sheet import Sheet
from canon.watermarks import Dataset, EmbedResult, Extraction, Message, Scheme, TrainOptions
from canon_benchmarks.cases import Wrong
from canon_benchmarks.subjects import convolutions

BITS: Final = 64
MODELS: Final = 4
"""Models that wrong keys are read from, half of them marked by their owners."""

LEVELS: Final = (1e-6, 1e-3, 0.01, 0.05)
OPTIONS: Final = TrainOptions(epochs=6, batch_size=32, cooldown=1, accuracy_goal=0.9)
NOTICED: Final = 0.1
"""A key with a smaller p-value is read from controls too, as a verification does; of the others, one in twenty."""

CONTROLS: Final = 60
"""Controls of one key here; a verification reads more."""


def network(seed: int) -> nn.Module:
    """Three convolutions with norms, with room for a QR code; different for every seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = convolutions((32, 2), (36, 2), (64, 1))
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).eval()


def small_data() -> Dataset:
    """Digits, few and small."""
    return zoo.dataset("digits").limited(256, 10).resized(12)


def trained(scheme: Scheme, data: Dataset, seed: int) -> EmbedResult:
    """A model of its own, trained and marked by its owner."""
    return scheme.embed(network(seed), data, message=Message.random(seed, BITS), seed=seed, options=OPTIONS)


def suspects(scheme: Scheme, data: Dataset) -> list[nn.Module]:
    """Models that wrong keys are read from: marked ones, and ones without any mark."""
    plain = watermarks.get("uchida17" if scheme.name != "uchida17" else "ipr_gan")
    return [trained(scheme if at % 2 else plain, data, seed=10_000 + at).model for at in range(MODELS)]


def luck(found: Extraction) -> float:
    """The plain binomial p-value."""
    return min(1.0, found.alternatives * float(binom.sf(found.matched - 1, found.total, 0.5)))


def drawn_keys(scheme: Scheme, data: Dataset, count: int) -> Iterator[tuple[float, float, bool]]:
    """P-values of keys that were drawn for other models: without controls, with controls, and whether it was void."""
    models = suspects(scheme, data)
    for at in range(count):
        seed = 0 if scheme.name == "greedy" else at  # one key pair signs all messages: a new one takes a second
        key = scheme.draw_key(network(at % 7), data, message=Message.random(50_000 + at, BITS), seed=seed)
        model = models[at % len(models)]
        found = scheme.extract(model, key)
        if scheme.carries_alone and at % 20 and luck(found) > NOTICED:  # controls only make a p-value larger
            yield luck(found), luck(found), False
            continue
        controls = scheme.controls(model, key, CONTROLS, seed=at)
        yield luck(found), controls.p_value(found.matched, found.alternatives), controls.void


def trained_keys(scheme: Scheme, data: Dataset, count: int) -> Iterator[tuple[float, float, bool]]:
    """The same for keys that were trained, each read from the model that was trained and marked after it."""
    previous = trained(scheme, data, seed=count)
    for at in range(count):
        own = trained(scheme, data, seed=at)
        found = scheme.extract(own.model, previous.key)
        controls = scheme.controls(own.model, previous.key, CONTROLS, seed=at)
        yield luck(found), controls.p_value(found.matched, found.alternatives), controls.void
        previous = own


def figures(rows: Sequence[tuple[float, float, bool]]) -> dict[str, Any]:
    """What is published of many p-values."""
    plain, values = [row[0] for row in rows], [row[1] for row in rows]
    # Sides: "greater" asks whether the distribution lies above the uniform one, which is to say at smaller values.
    test = kstest(values, "uniform", alternative="greater")
    return {
        "keys": len(rows),
        "void": sum(row[2] for row in rows),
        "smallest": float(f"{min(values):.3g}"),
        "share_at_most": {f"{level:g}": sum(value <= level for value in values) / len(values) for level in LEVELS},
        "share_at_most_without_controls": {
            f"{level:g}": sum(value <= level for value in plain) / len(plain) for level in LEVELS
        },
        "distance": round(float(test.statistic), 5),
        "test_p_value": float(f"{test.pvalue:.3g}"),
    }


def measure_wrong(case: Wrong, setup: Setup, sheet: Sheet) -> None:
    """Figures of many keys of one scheme."""
    scheme = watermarks.get(case.scheme)
    read = drawn_keys if case.keys == "drawn" else trained_keys
    sheet.note(bits=BITS, controls=CONTROLS, **figures(list(read(scheme, small_data(), case.count))))
