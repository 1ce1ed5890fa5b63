"""Sketches that collide cost time, never the result: whole rows decide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from canon.attacks import attack
from canon.describe import RowSketch, sketch_rows
from canon.recovery import confirm, partition, recover
from tests.preservation import outputs, randomize, relative_error
from tests.recovery.small import Chain, Gated, Residual, example

NETWORKS = (Chain, Residual, Gated)


def shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def collide(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Every layer's sketches look alike in pairs, or like nothing, or one like the other turned around."""

    def forced(linear: Any, *args: Any, **more: Any) -> RowSketch:
        sketch = sketch_rows(linear, *args, **more)
        vectors = sketch.vectors.copy()
        if kind == "nothing":
            vectors[0] = 0
        else:
            vectors[1::2] = (2.5 if kind == "alike" else -1.0) * vectors[: vectors.shape[0] // 2 * 2 : 2]
        return replace(sketch, vectors=vectors)

    monkeypatch.setattr(partition, "sketch_rows", forced)


@pytest.mark.parametrize("kind", ["alike", "turned", "nothing"])
@pytest.mark.parametrize("network", NETWORKS)
def test_collisions_harm_nobody(network: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = randomize(network(), seed=3)
    collide(monkeypatch, kind)
    result = recover(model, example())
    assert shapes(result.model) == shapes(model), result.report.table()
    assert relative_error(outputs(result.model, example()), outputs(model, example())) < 1e-12


@pytest.mark.parametrize("ops", ["nso_clique", "nso_split", "nso_zero"])
def test_disguises_are_undone_all_the_same(ops: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs of sketches are one and the same, so that classes are found that are none."""
    model = randomize(Chain(), seed=5)
    hidden = attack(model, example(), [ops], ratio=0.5, seed=1).model

    def pairs(linear: Any, *args: Any, **more: Any) -> RowSketch:
        sketch = sketch_rows(linear, *args, **more)
        vectors = sketch.vectors.copy()
        vectors[0] = vectors[-1]
        return replace(sketch, vectors=vectors)

    monkeypatch.setattr(partition, "sketch_rows", pairs)
    result = recover(hidden, example())
    assert relative_error(outputs(result.model, example()), outputs(model, example())) < 1e-9


def test_without_whole_rows_the_merge_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """And even then nothing is raised: what changes the outputs is taken back."""
    model = randomize(Chain(), seed=3)
    collide(monkeypatch, "alike")

    def blind(given: Any, leader: Any, null: Any, tolerance: Any) -> Any:
        return np.zeros(leader.size, dtype=bool)

    monkeypatch.setattr(partition, "mistaken", blind)
    result = recover(model, example())
    assert relative_error(outputs(result.model, example()), outputs(model, example())) < 1e-3
    assert confirm.mistaken is not blind
