"""Channels that were replaced by others that together give them, and the attacks that leave rows where they were."""

from __future__ import annotations

import pytest
import torch

import canon
from canon.containment import refit as refitting
from tests.containment.disguises import chain, images
from tests.verify.small import example, tiny

KEPT = ("dead_range", "odd_group", "entangled", "tiny_column", "noisy_clique")


@pytest.mark.parametrize("op", KEPT)
def test_what_is_added_beside_the_rows_is_left_out(op: str) -> None:
    net, inputs = chain(), images()
    suspect = canon.attack(net, inputs, [op], ratio=0.3, seed=1).model
    found = canon.locate(suspect, net, inputs)
    assert found.coverage == 1.0
    assert found.answer == "contained", found.reason
    assert not found.refitted


@pytest.mark.parametrize("seed", range(3))
def test_replaced_channels_come_from_their_mirror_images(seed: int) -> None:
    net, inputs = chain(seed), images()
    suspect = canon.attack(net, inputs, ["odd_replace"], ratio=0.3, seed=seed).model
    found = canon.locate(suspect, net, inputs)
    assert found.coverage >= 0.99
    assert found.answer == "derived", "what was computed is not what was found"
    assert found.refitted
    assert found.to_dict()["refitted"] == list(found.refitted)
    assert found.agreement is not None
    assert found.agreement.difference < 1e-6
    assert found.median is not None
    assert found.median < 1e-3, "rows and columns are the owner's"


def test_replaced_channels_behind_norms() -> None:
    net, inputs = tiny(0, 24), example()
    suspect = canon.attack(net, inputs, ["odd_replace"], ratio=0.3, seed=1).model
    for owner in (net, canon.register(net, inputs, robust=True)):
        found = canon.locate(suspect, owner, inputs)
        assert found.coverage >= 0.99
        assert found.answer == "derived"
        assert found.refitted == ("fc",)


def test_nothing_is_refitted_in_a_stranger() -> None:
    suspect = canon.attack(chain(5), images(), ["odd_replace"], ratio=0.3, seed=1).model
    found = canon.locate(suspect, chain(), images())
    assert found.answer == "unrelated"
    assert not found.refitted


def test_least_squares_need_more_samples_than_channels() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(40, 10, generator=generator, dtype=torch.float64)
    table = torch.randn(3, 10, generator=generator, dtype=torch.float64)
    fit = refitting._least_squares(y @ table.T + 1.0, y)
    assert fit is not None
    assert torch.allclose(fit, table, atol=1e-6)
    assert refitting._least_squares(y[:15] @ table.T, y[:15]) is None
