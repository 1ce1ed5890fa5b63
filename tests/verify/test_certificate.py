"""Certificates: what passes, what fails and why."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from canon.api import certify as certify_canonical
from canon.errors import VerificationError
from canon.verify import SWEEP, certify, compare
from canon.verify.alignment import align
from canon.verify.residuals import row_residuals
from tests.verify.small import disguise, example, tiny

LAYERS = ("conv1", "conv2", "conv3", "fc")


def changed(model: nn.Module, name: str, factor: float, rows: slice = slice(None)) -> nn.Module:
    """The model with noise of this relative size in some rows of a weight."""
    result = copy.deepcopy(model)
    weight = result.get_parameter(name)
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(5))
    flat = (-1,) + (1,) * (weight.ndim - 1)
    size = weight.detach().flatten(1).norm(dim=1) / noise.flatten(1).norm(dim=1)
    with torch.no_grad():
        weight[rows] += (factor * size.view(flat) * noise)[rows]
    return result


def test_a_disguised_model_passes_at_all_layers() -> None:
    found = certify(disguise(tiny(), example()), tiny(), example())
    assert found.passed
    assert found.max_rel_err < 1e-6
    assert found.match_frac == 1.0
    assert tuple(layer.name for layer in found.layers) == LAYERS
    assert found.aligned is not None
    assert max(found.parameters.values()) < 1e-6
    assert not found.failed


def test_residuals_are_those_of_the_formula() -> None:
    ours, theirs = torch.randn(5, 4, 3, 3), torch.randn(5, 4, 3, 3)
    expected = [float((ours[i] - theirs[i]).norm() / theirs[i].norm()) for i in range(5)]
    assert row_residuals(ours, theirs, 0).tolist() == pytest.approx(expected, rel=1e-5)
    assert len(row_residuals(ours, theirs, 1)) == 4


def test_only_the_layers_that_were_asked_for_count() -> None:
    suspect = changed(disguise(tiny(), example()), "fc.weight", 0.05)
    assert not certify(suspect, tiny(), example()).passed
    chosen = certify(suspect, tiny(), example(), layers=["conv2", "conv3"])
    assert chosen.passed
    assert tuple(layer.name for layer in chosen.layers) == ("conv2", "conv3")


def test_a_failure_names_the_layer_and_the_channels() -> None:
    found = certify(changed(tiny(), "fc.weight", 0.05, slice(3)), tiny(), example())
    assert [layer.name for layer in found.failed] == ["fc"]
    assert found.failed[0].match_frac == pytest.approx(0.7)
    assert found.failed[0].reason == "residual of 3 of 10 channels above 0.001, at most 0.05"


def test_the_sweep_follows_the_residuals() -> None:
    found = certify(changed(tiny(), "fc.weight", 0.015), tiny(), example())
    rows = found.sweep()
    assert tuple(row.tolerance for row in rows) == SWEEP
    assert [row.passed for row in rows] == [tolerance >= 0.015 for tolerance in SWEEP]
    assert rows[-1].match_frac == 1.0
    assert found.quantiles()[1.0] == pytest.approx(0.015, rel=1e-3)


def test_other_widths_fail_and_say_where() -> None:
    found = certify(tiny(width=20), tiny(), example())
    assert not found.passed
    assert found.aligned is None
    assert found.max_rel_err == float("inf")
    assert found.match_frac == 0.0
    assert found.layers[0].reason == "width differs: shape 20×3×3×3 instead of 16×3×3×3"
    assert not any(row.passed for row in found.sweep())


def test_an_unknown_layer_is_refused_with_a_near_one() -> None:
    with pytest.raises(VerificationError, match=r"no Conv or Linear layer.*conv4.*Did you mean 'conv"):
        certify(tiny(), tiny(), example(), layers=["conv4"])
    with pytest.raises(VerificationError, match="no layer given"):
        certify(tiny(), tiny(), example(), layers=[])
    with pytest.raises(VerificationError, match="must not be negative"):
        certify(tiny(), tiny(), example(), tolerance=-1.0)


def test_an_unrelated_model_does_not_pass() -> None:
    found = certify(tiny(1), tiny(0), example(), tolerance=0.1)
    assert not found.passed
    assert found.alignment is not None
    assert not found.alignment.established


def test_comparing_an_aligned_model_gives_the_same_certificate() -> None:
    suspect = disguise(tiny(), example())
    direct = certify(suspect, tiny(), example())
    later = compare(align(suspect, tiny(), example()), tiny(), example())
    assert later.layers == direct.layers


# -- canonical forms -------------------------------------------------------------------------------------------------


def pruned(model: nn.Module) -> nn.Module:
    """The model with a filter that does nothing, and one that stands twice, in conv3."""
    result = copy.deepcopy(model)
    with torch.no_grad():
        result.get_parameter("conv3.weight")[4] = 0
        result.get_buffer("norm3.running_mean")[4] = 0
        result.get_parameter("norm3.bias")[4] = -0.5
        for name in ("conv3.weight", "norm3.weight", "norm3.bias"):
            result.get_parameter(name)[9] = result.get_parameter(name)[7]
        for name in ("norm3.running_mean", "norm3.running_var"):
            result.get_buffer(name)[9] = result.get_buffer(name)[7]
    return result


def test_redundancy_of_the_references_own_does_not_stand_in_the_way() -> None:
    from canon.recovery import recover

    owner = pruned(tiny())
    suspect = recover(disguise(owner, example()), example()).model
    assert suspect.get_parameter("conv3.weight").shape[0] == 30
    assert not certify(suspect, owner, example()).passed
    found = certify_canonical(suspect, owner, example())
    assert found.passed
    assert found.canonical
    assert not certify_canonical(suspect, owner, example(), canonical=False).passed
    assert not certify_canonical(suspect, pruned(tiny(3)), example()).passed
