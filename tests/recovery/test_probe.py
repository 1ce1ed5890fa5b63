"""The probe method: what it recovers and what it leaves alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from canon import zoo
from canon.attacks import attack
from canon.errors import RecoveryError
from canon.graph import trace
from canon.recovery import ProbeOptions, Tolerance, recover
from canon.recovery.capture import capture, make_probes
from canon.recovery.probe import ProbeRefinement
from canon.rewrite import SpaceRewrite, rewrite
from tests.preservation import outputs, relative_error
from tests.recovery.probing import (
    EXAMPLE,
    PRIMITIVES,
    chain,
    check_recovered,
    classes_of,
    groups,
    linear,
    residual,
    with_copies,
)  # fmt: skip


@pytest.mark.parametrize("op", PRIMITIVES)
@pytest.mark.parametrize("seed", [0, 1])
def test_single_primitives_are_undone(op: str, seed: int) -> None:
    clean = residual()
    attacked = attack(clean, EXAMPLE, [op], ratio=0.5, seed=seed, chain=False).model
    result = recover(attacked, EXAMPLE, "probe")
    check_recovered(result.model, clean, EXAMPLE)
    assert result.report.method == "probe"
    assert result.report.changed


@pytest.mark.parametrize("op", PRIMITIVES)
def test_resnet18_down_to_layer2(op: str) -> None:
    whole = zoo.model("resnet18", classes=10)
    parts = ("conv1", "bn1", "relu", "layer1", "layer2")
    clean = nn.Sequential(*[whole.get_submodule(name) for name in parts], nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                          nn.Linear(128, 10)).eval()  # fmt: skip
    example = torch.zeros(1, 3, 32, 32)
    attacked = attack(clean, example, [op], ratio=0.2, chain=False).model
    check_recovered(recover(attacked, example, "probe").model, clean, example)


def test_compositions_with_chained_dummies_keep_the_function() -> None:
    clean = residual()
    attacked = attack(clean, EXAMPLE, PRIMITIVES, ratio=0.5, seed=3).model
    got = recover(attacked, EXAMPLE, "probe").model
    probe = torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(5))
    assert relative_error(outputs(got, probe), outputs(clean, probe)) < 1e-5


def test_clean_model_is_unchanged_bit_for_bit() -> None:
    clean = residual()
    result = recover(clean, EXAMPLE, "probe")
    assert not result.report.changed
    for name, tensor in result.model.state_dict().items():
        assert torch.equal(tensor, clean.state_dict()[name]), name


def test_input_model_is_untouched_and_the_result_deterministic() -> None:
    attacked = attack(residual(), EXAMPLE, ["nso_split"], ratio=0.5).model
    before = copy.deepcopy(attacked.state_dict())
    first, second = (recover(attacked, EXAMPLE, "probe").model for _ in range(2))
    for name, tensor in attacked.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name


def test_activations_show_what_rows_do_not() -> None:
    """Two rows coincide only because of what they read; as weights they point in different directions."""
    model, example = with_copies(), torch.zeros(1, 6)
    rows = linear(model, 2).weight.detach()
    assert float(torch.cosine_similarity(rows[0], rows[5], dim=0)) < 0.9
    graph = trace(model, example)
    captured = capture(model, graph, make_probes(example, 32, 8, 0))
    refinement = ProbeRefinement(graph, {}, Tolerance.for_model(model), captured, ProbeOptions())
    suggested = refinement.suggestion(graph.space_named("2"))
    assert suggested[5] == suggested[0]
    found = classes_of(model, example)
    assert groups(found["0"]) == {(1, 5)}
    assert groups(found["2"]) == {(0, 5)}
    assert found["0"].factors[next(iter(found["0"].factors))][5] == pytest.approx(2.0, rel=1e-5)


def test_weights_veto_what_activations_suggest() -> None:
    """With a coarse τ everything looks proportional to the probes; the weights keep distinct channels apart."""
    clean = residual()
    assert not recover(clean, EXAMPLE, "probe", options=ProbeOptions(tau=0.9)).report.changed


def test_channels_that_are_off_are_left_alone() -> None:
    """Always off on the probes, yet not zero by their weights: the gate keeps them out, and nothing drops them."""
    model = chain(6, 8, 4)
    first = linear(model, 0)
    with torch.no_grad():
        first.bias[2:4] = -1000.0
    graph = trace(model, torch.zeros(1, 6))
    captured = capture(model, graph, make_probes(torch.zeros(1, 6), 32, 8, 0))
    summaries = captured[graph.space_named("0").consumers[0].point].summaries
    assert not bool(summaries[2:4].any())
    assert not recover(model, torch.zeros(1, 6), "probe").report.changed


def test_exact_duplicates_join_behind_the_gate() -> None:
    model, example = chain(6, 8, 4), torch.zeros(1, 6)
    first = linear(model, 0)
    with torch.no_grad():
        first.bias[2] = -1000.0
        first.weight[3], first.bias[3] = first.weight[2], first.bias[2]
    assert groups(classes_of(model, example)["0"]) == {(2, 3)}


def test_shared_scale_and_order_are_no_obstacle() -> None:
    """Copies planted by hand, scaled and shuffled, come out again."""
    clean = residual()
    graph = trace(clean, EXAMPLE)
    space = graph.free[0]
    source = torch.cat([torch.arange(space.width), torch.tensor([0, 0, 3])])
    share = torch.ones(len(source), dtype=torch.float64)
    share[source == 0], share[source == 3] = 1 / 3, 0.5
    wide = rewrite(clean, graph, {space.id: SpaceRewrite.expansion(source, share, space.width)})
    check_recovered(recover(wide, EXAMPLE, "probe").model, clean, EXAMPLE)


class Branching(nn.Module):
    """torch.fx cannot follow this; torch.export can."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] > 100:
            return self.b(self.a(x))  # type: ignore[no-any-return]
        return self.b(torch.relu(self.a(x)))  # type: ignore[no-any-return]


def test_models_that_fx_cannot_follow_are_refused_with_the_way_out() -> None:
    model, example = Branching().eval(), torch.zeros(2, 4)
    assert trace(model, example).method == "recorded"
    with pytest.raises(RecoveryError, match="method='exact'"):
        recover(model, example, "probe")
