"""What stands in an attacked weight, read from the tensors with the log as the only guide."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from canon.attacks import AttackResult, attack
from tests.preservation import randomize


def network() -> nn.Module:
    return randomize(
        nn.Sequential(
            nn.Conv2d(3, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(),
            nn.Conv2d(12, 10, 3, padding=1, bias=False), nn.BatchNorm2d(10), nn.ReLU(),
            nn.Conv2d(10, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 3),
        )
    )  # fmt: skip


EXAMPLE = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def attacked(ops: Any, **options: Any) -> AttackResult:
    return attack(network(), EXAMPLE, ops, ratio=0.5, **options)


def positions(result: AttackResult, space: int, *kinds: str) -> list[int]:
    return [k for k, kind in enumerate(result.log.spaces[space].kinds) if kind in kinds]


def weight(result: AttackResult, layer: int) -> Tensor:
    module: Any = result.model
    found: Tensor = module[layer].weight.detach()
    return found


def test_zero_in_channels_are_null_behind_their_norm() -> None:
    result = attacked(["nso_zero"], zero_form="in")
    module: Any = result.model
    for space, stage in ((0, 2), (1, 5)):
        with torch.no_grad():
            values = module[: stage + 1](EXAMPLE)
        dummies = positions(result, space, "zero_in")
        assert len(dummies) == result.log.spaces[space].injected
        assert float(values[:, dummies].abs().max()) < 1e-14
        norm = module[stage - 1]
        assert bool((norm.running_mean[dummies] != 0).all())
        assert bool((norm.bias[dummies] != 0).all())
    # Live rows read them with weights like any other.
    live = positions(result, 1, "original")
    assert float(weight(result, 3)[live][:, positions(result, 0, "zero_in")].std()) > 0.1 * float(
        weight(result, 3).std()
    )


def test_zero_out_channels_are_read_by_no_live_row() -> None:
    result = attacked(["nso_zero"], zero_form="out")
    live, dummies = positions(result, 1, "original"), positions(result, 0, "zero_out")
    assert len(dummies) == 6
    assert bool((weight(result, 3)[live][:, dummies] == 0).all())
    assert bool((weight(result, 0)[dummies] != 0).any())


def test_clique_members_share_a_filter_and_cancel_with_random_weights() -> None:
    result = attacked(["nso_clique"], scale=False)
    members = positions(result, 0, "clique")
    rows = weight(result, 0)[members]
    assert bool((rows == rows[0]).all())
    columns = weight(result, 3)[positions(result, 1, "original")][:, members]
    assert float(columns.sum(1).abs().max()) < 1e-14
    assert float(columns.abs().min()) > 0
    opposite = (columns[:, :, None] + columns[:, None]).abs().flatten(3).amax((0, 3))
    assert float(opposite.min()) > 1e-6, "two columns are merely opposite"


def test_dead_dummies_read_cliques_without_cancelling_them() -> None:
    result = attacked(["nso_clique", "nso_zero"], scale=False, zero_form="out")
    dead, members = positions(result, 1, "zero_out"), positions(result, 0, "clique")
    assert float(weight(result, 3)[dead][:, members].sum(1).abs().max()) > 1e-3
    unchained = attacked(["nso_clique", "nso_zero"], scale=False, zero_form="out", chain=False)
    dead, members = positions(unchained, 1, "zero_out"), positions(unchained, 0, "clique")
    assert bool((weight(unchained, 3)[dead][:, members] == 0).all())


def test_null_dummies_read_null_dummies() -> None:
    result = attacked(["nso_zero"], zero_form="in")
    rows, columns = positions(result, 1, "zero_in"), positions(result, 0, "zero_in")
    assert bool((weight(result, 3)[rows][:, columns] != 0).any())
    live = positions(result, 0, "original")
    assert bool((weight(result, 3)[rows][:, live] == 0).all())


@pytest.mark.parametrize("shares", ["equal", "random"])
def test_copies_carry_shares_that_sum_to_one(shares: Any) -> None:
    result = attacked(["nso_split"], scale=False, permute=False, split_shares=shares)
    copies = positions(result, 0, "copy")
    assert len(copies) == 7
    original: Any = network()
    live = positions(result, 1, "original")
    assert len(live) == 9
    before, after = original[3].weight.detach()[:9, 11], weight(result, 3)[live][:, copies]
    assert torch.allclose(after.sum(1), before)
    ratios = (after / before[:, None]).flatten(2).mean((0, 2))
    if shares == "equal":
        assert torch.allclose(ratios, torch.full_like(ratios, 1 / 7))
    else:
        assert float(ratios.std()) > 0.02


def test_copies_of_a_channel_differ_while_upstream_dummies_are_there() -> None:
    result = attacked(["nso_clique", "nso_split", "nso_split"], scale=False)
    copies = positions(result, 1, "copy")
    rows = weight(result, 3)[copies].flatten(1)
    same = (rows[:, None] == rows[None]).all(2)
    assert len(copies) > 2
    assert bool((same == torch.eye(len(copies), dtype=torch.bool)).all())


def test_nothing_of_the_original_is_left_at_its_index() -> None:
    original: Any = network()
    for ops in (["nso_zero"], ["nso_clique"], ["nso_split"]):
        result = attacked(ops, scale=False)
        for space, layer in ((0, 0), (1, 3), (2, 6)):
            log = result.log.spaces[space]
            assert all(origin != k for k, origin in enumerate(log.origins[: log.before]))
            before = original[layer].weight
            after = weight(result, layer)[: before.shape[0], : before.shape[1]]
            assert not bool((after == before).flatten(1).all(1).any())
        scaled = attacked(ops)
        norm: Any = scaled.model
        assert not bool(torch.isin(norm[1].weight, original[1].weight).any())


def test_dummies_stand_anywhere() -> None:
    result = attacked(["nso_zero"])
    dummies = positions(result, 0, "zero_in", "zero_out")
    assert dummies != list(range(12, 18))


@pytest.mark.parametrize("op", ["nso_zero", "nso_clique", "nso_split"])
def test_without_camouflage_originals_keep_order_and_numbers_and_not_their_places(op: str) -> None:
    for seed in range(5):
        result = attacked([op], permute=False, scale=False, seed=seed)
        for space, layer in ((0, 0), (1, 3), (2, 6)):
            log = result.log.spaces[space]
            live = [k for k, kind in enumerate(log.kinds) if kind == "original"]
            assert [log.origins[k] for k in live] == sorted(log.origins[k] for k in live)
            moved = sum(log.origins[k] != k for k in live)
            assert moved >= len(live) // 2, "most channels must stand at another index"
            if space == 0:
                original: Any = network()
                kept = [log.origins[k] for k in live]
                assert torch.equal(weight(result, layer)[live], original[layer].weight[kept])


def test_one_anchor() -> None:
    result = attacked(["nso_zero"], anchor="3")
    assert [space.scaled for space in result.log.spaces] == [False, True, False]
