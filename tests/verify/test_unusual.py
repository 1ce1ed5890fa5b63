"""Networks, types and questions that are rare: an answer, or an error that says what is wrong."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.fx
from torch import Tensor, nn

from canon.api import JudgeOptions, check_evidence, judge
from canon.errors import CanonError, ExampleError, UnsupportedModelError, VerificationError
from canon.verify import register
from canon.verify.function import outputs_of
from tests.verify.small import tiny

EXAMPLE = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
WORDS = torch.arange(6)[None]


class Products(nn.Module):
    """Nothing but tensors of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(6, 5)), nn.Parameter(torch.randn(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.first @ self.second


def perceptron(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)).eval()


def norm() -> nn.Module:
    found = nn.BatchNorm1d(6).eval()
    found.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
    return found


WITHOUT_LAYERS = {"norm": (norm, EXAMPLE), "embedding": (lambda: nn.Embedding(6, 4).eval(), WORDS),
                  "products": (lambda: Products().eval(), EXAMPLE)}  # fmt: skip


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("kind", WITHOUT_LAYERS)
def test_a_network_without_layers_is_compared_all_the_same(kind: str, by_key: bool) -> None:
    torch.manual_seed(0)
    make, example = WITHOUT_LAYERS[kind]
    owner = make()
    anchor: dict[str, Any] = {"layout_key": register(owner, example)} if by_key else {"reference": owner}
    found = judge(owner, example, **anchor)
    check_evidence(found.evidence)
    assert found.answers.network.answer == "equal", found.answers.network
    other = copy.deepcopy(owner)
    with torch.no_grad():
        next(other.parameters()).add_(torch.randn(next(other.parameters()).shape))
    found = judge(other, example, **anchor)
    check_evidence(found.evidence)
    assert found.verdict.kind == "inconclusive", "changed, and too little to tell a stranger"


def test_a_network_of_nothing_gives_evidence_that_holds() -> None:
    found = judge(nn.Identity().eval(), EXAMPLE, reference=nn.Identity().eval())
    check_evidence(found.evidence)
    assert found.answers.network.answer == "not decided"


def test_a_buffer_in_eight_bits_makes_nothing_agree() -> None:
    stranger = perceptron(1)
    stranger.register_buffer("junk", torch.zeros(1, dtype=torch.float8_e5m2))
    found = judge(stranger, EXAMPLE, reference=perceptron())
    assert found.verdict.kind == "refuted", found.verdict
    assert found.evidence["precision"]["compared"] == "float32"
    with pytest.raises(UnsupportedModelError, match="float8"):
        judge(perceptron().to(torch.float8_e5m2), EXAMPLE, reference=perceptron())


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_an_owner_in_a_coarser_type_is_compared_at_that_precision(name: str) -> None:
    found = judge(perceptron(), EXAMPLE, reference=perceptron().to(getattr(torch, name)))
    assert found.answers.network.answer == "equal", found.answers.network
    assert found.evidence["precision"]["owner"] == found.evidence["precision"]["compared"] == name


def test_nobody_takes_the_place_of_random_probes() -> None:
    with pytest.raises(VerificationError, match="random"):
        judge(perceptron(), EXAMPLE, reference=perceptron(), probes={"random": [torch.zeros(3, 6)]})


WRONG: tuple[Any, ...] = (float("nan"), float("inf"), -1.0, "1e-3", None)


@pytest.mark.parametrize(
    "wrong",
    [{"suspect": "model.pt"}, {"reference": "model.pt"}, {"reference": None, "layout_key": perceptron()},
     {"ancestors": ["model.pt"]}, {"suspect": perceptron().to("meta")}, {"reference": perceptron().to("meta")},
     *({"options": JudgeOptions(tolerance=number)} for number in WRONG),
     *({"options": JudgeOptions(alpha=number)} for number in (float("nan"), float("inf"), True))],
)  # fmt: skip
def test_what_is_no_model_is_an_error_of_its_own(wrong: dict[str, Any]) -> None:
    given = {"suspect": perceptron(), "reference": perceptron(), **wrong}
    with pytest.raises(CanonError):
        judge(given.pop("suspect"), EXAMPLE, **given)


class Raising(nn.Module):
    """Can be traced, and not be run."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = perceptron()

    def forward(self, x: Tensor) -> Tensor:
        return _refuse(self.inner(x))


def _refuse(x: Tensor) -> Tensor:
    if x.device.type == "meta":
        return x
    raise KeyError("no")


torch.fx.wrap("_refuse")


def test_outputs_of_a_model_that_cannot_be_run_were_not_compared() -> None:
    with pytest.raises(VerificationError, match="cannot be run"):
        outputs_of(Raising().eval(), [(EXAMPLE,)])


@pytest.mark.parametrize("colours", [1, 4])
@pytest.mark.parametrize("owners", [False, True])
def test_images_of_other_colours_have_a_way_out(colours: int, owners: bool) -> None:
    owner, suspect = tiny(0), tiny(0)
    columns = suspect.get_parameter("conv1.weight").sum(1, keepdim=True).expand(-1, colours, -1, -1) / colours
    suspect.conv1 = nn.Conv2d(colours, len(columns), 3, padding=1, bias=False)
    suspect.conv1.weight = nn.Parameter(columns.clone())
    with pytest.raises(ExampleError, match="takes other inputs") as caught:
        judge(suspect.eval(), torch.randn(2, 3 if owners else colours, 8, 8), reference=owner)
    assert "nn.Sequential" in str(caught.value.hint)
    key = register(owner, torch.randn(2, 3, 8, 8), seed=0)
    if owners:
        with pytest.raises(ExampleError, match="takes other inputs") as caught:
            judge(suspect, torch.randn(2, 3, 8, 8), layout_key=key)
        assert "nn.Sequential" in str(caught.value.hint)
    else:
        judge(suspect, torch.randn(2, colours, 8, 8), layout_key=key)  # an answer: all but the first layer is there


class Spectral(nn.Module):
    """Complex numbers between layers, and outputs that are their sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(6, 20, dtype=torch.complex64), nn.Linear(20, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(self.into(x.to(torch.complex64)).abs())
        return result


class Noise(nn.Module):
    """A layer that draws numbers while it runs."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.3, training=True) + torch.randn_like(x)


@pytest.mark.parametrize("by_key", [False, True])
def test_both_parts_of_complex_numbers_are_compared(by_key: bool) -> None:
    torch.manual_seed(0)
    owner = Spectral().eval()
    anchor: dict[str, Any] = {"layout_key": register(owner, EXAMPLE)} if by_key else {"reference": owner}
    assert judge(owner, EXAMPLE, **anchor).answers.network.answer == "equal"
    other = copy.deepcopy(owner)
    with torch.no_grad():
        other.into.weight.imag.mul_(-1)
    assert judge(other, EXAMPLE, **anchor).answers.network.answer == "not decided"


@pytest.mark.parametrize("by_key", [False, True])
def test_a_model_that_draws_numbers_computes_what_its_copy_computes(by_key: bool) -> None:
    torch.manual_seed(0)
    owner = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), Noise(), nn.Linear(32, 4)).eval()
    anchor: dict[str, Any] = {"layout_key": register(owner, EXAMPLE)} if by_key else {"reference": owner}
    before = torch.random.get_rng_state()
    found = judge(copy.deepcopy(owner), EXAMPLE, **anchor)
    assert torch.equal(torch.random.get_rng_state(), before), "nobody else's numbers change"
    assert (found.answers.network.answer, found.answers.function.answer) == ("equal", "agree")


def test_a_norm_over_the_batch_sees_the_same_batches_in_any_type() -> None:
    torch.manual_seed(0)
    owner = nn.Sequential(
        nn.Linear(6, 32), nn.BatchNorm1d(32, track_running_stats=False), nn.ReLU(), nn.Linear(32, 4)
    ).eval()
    assert judge(copy.deepcopy(owner).half(), EXAMPLE, reference=owner).answers.function.answer == "agree"


def test_a_key_tells_outputs_that_move_alike() -> None:
    owner = perceptron()
    louder = copy.deepcopy(owner)
    with torch.no_grad():
        louder.get_parameter("4.weight").mul_(3)
        louder.get_parameter("4.bias").mul_(3)
    function = judge(louder, EXAMPLE, layout_key=register(owner, EXAMPLE)).answers.function
    assert function.answer == "disagree"
    assert function.correlation is not None
    assert function.correlation > 0.99
