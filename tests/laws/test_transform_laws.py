"""The laws of ChannelTransform, with dense matrices as the oracle."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from canon.errors import TransformError
from canon.transforms import ChannelTransform
from tests.strategies import bijections, transforms


def close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-12, atol=1e-12)


@given(st.data())
def test_composition_is_the_matrix_product(data: st.DataObject) -> None:
    a = data.draw(transforms())
    b = data.draw(transforms(a.after))
    assert close((a @ b).dense(), a.dense() @ b.dense())


@given(st.data())
def test_composition_is_associative(data: st.DataObject) -> None:
    a = data.draw(transforms())
    b = data.draw(transforms(a.after))
    c = data.draw(transforms(b.after))
    assert close(((a @ b) @ c).dense(), (a @ (b @ c)).dense())


@given(transforms())
def test_identity_is_neutral(a: ChannelTransform) -> None:
    assert close((a @ ChannelTransform.identity(a.after)).dense(), a.dense())
    assert close((ChannelTransform.identity(a.before) @ a).dense(), a.dense())


@given(st.lists(transforms(), min_size=1, max_size=4))
def test_block_sum_is_the_block_diagonal(blocks: list[ChannelTransform]) -> None:
    expected = torch.block_diag(*[block.dense() for block in blocks])
    assert close(ChannelTransform.block_sum(blocks).dense(), expected)


@given(st.data())
def test_block_sums_compose_block_by_block(data: st.DataObject) -> None:
    first = [data.draw(transforms()) for _ in range(2)]
    second = [data.draw(transforms(a.after)) for a in first]
    together = ChannelTransform.block_sum(first) @ ChannelTransform.block_sum(second)
    apart = ChannelTransform.block_sum([a @ b for a, b in zip(first, second, strict=True)])
    assert close(together.dense(), apart.dense())


@given(transforms(), st.integers(1, 4))
def test_lift_is_the_kronecker_product(a: ChannelTransform, repeat: int) -> None:
    expected = torch.kron(a.dense(), torch.eye(repeat, dtype=torch.float64))
    assert close(a.lift(repeat).dense(), expected)


@given(transforms(), st.sampled_from([[0], [1, 2], [3, 0]]), st.booleans())
def test_applied_inside_kernels(a: ChannelTransform, places: list[int], known: bool) -> None:
    weight = torch.randn(3, a.before, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(a.before))
    some = torch.tensor(places)
    expected = torch.einsum("rbk,ba->rak", weight, a.dense())[..., some]
    totals = expected.index_select(1, a.sums.targets) if known else None
    assert close(a.apply_inside(weight, some, torch.empty_like(expected), totals), expected)


@given(st.data(), st.integers(1, 3))
def test_lift_respects_composition(data: st.DataObject, repeat: int) -> None:
    a = data.draw(transforms())
    b = data.draw(transforms(a.after))
    assert close((a @ b).lift(repeat).dense(), (a.lift(repeat) @ b.lift(repeat)).dense())


@given(bijections())
def test_inverse_undoes_a_bijection_on_both_sides(a: ChannelTransform) -> None:
    one = torch.eye(a.before, dtype=torch.float64)
    assert close((a @ a.inverse()).dense(), one)
    assert close((a.inverse() @ a).dense(), one)


@given(transforms(), st.integers(0, 2), st.integers(0, 10))
def test_apply_is_the_product_along_an_axis(a: ChannelTransform, axis: int, seed: int) -> None:
    shape = [2, 3, 2]
    shape[axis] = a.before
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = torch.tensordot(weight, a.dense(), dims=([axis], [0])).movedim(-1, axis)
    before = weight.clone()
    assert close(a.apply(weight, axis), expected)
    assert torch.equal(weight, before)


@given(transforms())
def test_apply_keeps_the_dtype(a: ChannelTransform) -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        weight = torch.ones(2, a.before, dtype=dtype)
        result = a.apply(weight, 1)
        assert result.dtype == dtype
        assert torch.allclose(result.double(), weight.double() @ a.dense(), rtol=2e-2, atol=2e-2)


@given(st.data())
def test_a_merge_undoes_an_expansion_of_equal_copies(data: st.DataObject) -> None:
    width = data.draw(st.integers(1, 5))
    extra = data.draw(st.lists(st.integers(0, width - 1), max_size=5))
    source = torch.tensor([*range(width), *extra])
    raw = torch.rand(len(source), generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    share = raw / torch.zeros(width, dtype=torch.float64).index_add(0, source, raw)[source]
    planted = ChannelTransform.expansion(source, share, width)
    merged = ChannelTransform.merge(source, torch.ones(len(source)), width)
    assert close((planted @ merged).dense(), torch.eye(width, dtype=torch.float64))


def test_what_does_not_fit_is_refused() -> None:
    three, four = ChannelTransform.identity(3), ChannelTransform.identity(4)
    with pytest.raises(TransformError, match="cannot compose: 3 channels after the first rewrite, 4 before the second"):
        three @ four
    with pytest.raises(TransformError, match="the transform reads 3 channels, axis 1 of the weight has 5"):
        three.apply(torch.zeros(2, 5), 1)
    with pytest.raises(TransformError, match="names every channel once"):
        ChannelTransform.permutation([0, 0, 2])
    with pytest.raises(TransformError, match="must not be zero"):
        ChannelTransform.scaling([1.0, 0.0])
    with pytest.raises(TransformError, match="only permutations and scalings"):
        ChannelTransform.selection([0, 1], 3).inverse()
    with pytest.raises(TransformError, match="a row, a column and a value each"):
        ChannelTransform(2, 2, torch.tensor([0]), torch.tensor([0, 1]), torch.ones(2))
