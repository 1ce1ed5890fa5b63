"""Matching against brute force."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from canon.errors import VerificationError
from canon.verify.matching import MATCHINGS, Matching, check_matching, match, nearest_other


def literal_greedy(distances: Tensor) -> list[int]:
    """The paper's words, one pair at a time."""
    left = distances.clone()
    found = [-1] * len(left)
    for _ in range(len(left)):
        row, column = divmod(int(left.argmin()), left.shape[1])
        found[row] = column
        left[row, :] = left[:, column] = float("inf")
    return found


def matched(features: Tensor, reference: Tensor, method: Matching, label: Tensor | None = None) -> Tensor:
    width = len(features)
    label = torch.zeros(width, dtype=torch.int64) if label is None else label
    return match(features, reference, label, label, method).channel


@pytest.mark.parametrize("method", MATCHINGS)
@pytest.mark.parametrize("width", [1, 2, 7, 700])
def test_a_permutation_with_rounding_is_found(method: Matching, width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    reference = torch.randn(width, 6, generator=generator, dtype=torch.float64)
    order = torch.randperm(width, generator=generator)
    features = reference[order] + 1e-7 * torch.randn(width, 6, generator=generator, dtype=torch.float64)
    assert torch.equal(matched(features, reference, method), order)


@given(st.integers(0, 10_000), st.integers(2, 12))
def test_greedy_is_the_papers(seed: int, width: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(width, 3, generator=generator, dtype=torch.float64)
    reference = torch.randn(width, 3, generator=generator, dtype=torch.float64)
    expected = literal_greedy(torch.cdist(features, reference))
    assert matched(features, reference, "greedy").tolist() == expected


@given(st.integers(0, 10_000))
def test_optimal_has_the_least_sum(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    reference = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    distances = torch.cdist(features, reference)
    best = min(sum(float(distances[i, j]) for i, j in enumerate(p)) for p in permutations(range(6)))
    found = matched(features, reference, "optimal")
    assert float(distances[torch.arange(6), found].sum()) == pytest.approx(best)


@given(st.integers(0, 10_000))
def test_nearest_agrees_with_greedy_where_nothing_is_unsure(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    reference = torch.randn(40, 4, generator=generator, dtype=torch.float64)
    features = reference[torch.randperm(40, generator=generator)]
    features = features + 0.01 * torch.randn(40, 4, generator=generator, dtype=torch.float64)
    assert torch.equal(matched(features, reference, "nearest"), matched(features, reference, "greedy"))


@pytest.mark.parametrize("method", MATCHINGS)
def test_labels_are_never_crossed(method: Matching) -> None:
    reference = torch.tensor([[0.0], [1.0], [0.1], [1.1]], dtype=torch.float64)
    label = torch.tensor([0, 0, 1, 1])
    found = matched(torch.tensor([[1.0], [0.0], [1.1], [0.1]], dtype=torch.float64), reference, method, label)
    assert found.tolist() == [1, 0, 3, 2]
    crossed = matched(torch.tensor([[1.1], [0.1], [1.0], [0.0]], dtype=torch.float64), reference, method, label)
    assert sorted(crossed[:2].tolist()) == [0, 1]


@pytest.mark.parametrize("method", MATCHINGS)
def test_equal_channels_are_paired_one_to_one(method: Matching) -> None:
    same = torch.zeros(300, 4, dtype=torch.float64)
    assert sorted(matched(same, same, method).tolist()) == list(range(300))


def test_nearest_other_is_the_second_smallest_distance() -> None:
    features = torch.randn(30, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    distances = (features[:, None] - features).norm(dim=2)
    label = torch.zeros(30, dtype=torch.int64)
    found = nearest_other(features, label, features, label, torch.arange(30))
    assert torch.allclose(found, distances.sort(dim=1).values[:, 1], atol=1e-6)


def test_an_unknown_matching_is_refused() -> None:
    with pytest.raises(VerificationError, match=r"unknown matching 'best'.*nearest, greedy, optimal"):
        check_matching("best")
