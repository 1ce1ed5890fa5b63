"""On clean models nothing changes, bit for bit; where weights alone cannot tell, the report says so."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

from canon import zoo
from canon.recovery import RecoveryResult, recover
from canon_benchmarks.subjects import subject
from tests.networks import Net, conv
from tests.preservation import outputs, relative_error

QUICK = ("mobilenet_v2", "mobilenet_v3_small", "resnet18", "shufflenet_v2_x0_5", "squeezenet1_1")


def assert_untouched(model: nn.Module, example: Tensor) -> RecoveryResult:
    """Recovery gives back the same tensors, bit for bit, and says that nothing changed."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = recover(model, example)
    assert not result.report.changed, result.report.table()
    assert result.report.removed == result.report.merged == 0
    after, given = result.model.state_dict(), model.state_dict()
    assert list(after) == list(before)
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype
        assert torch.equal(after[name], tensor), f"'{name}' changed"
        assert torch.equal(given[name], tensor), f"'{name}' of the given model changed"
        assert tensor.numel() == 0 or after[name].data_ptr() != given[name].data_ptr(), f"'{name}' is shared"
    return result


def test_the_check_can_fail() -> None:
    first = nn.Linear(8, 6)
    net = nn.Sequential(first, nn.ReLU(), nn.Linear(6, 2)).eval()
    with torch.no_grad():
        first.weight[1] = first.weight[0]
        first.bias[1] = first.bias[0]
    with pytest.raises(AssertionError):
        assert_untouched(net, torch.zeros(1, 8))


@pytest.mark.parametrize("name", QUICK)
def test_fresh_models(name: str) -> None:
    assert_untouched(zoo.model(name), zoo.example_input(name))


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "squeezenet1_1"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(name: str, dtype: torch.dtype) -> None:
    assert_untouched(subject(name).to(dtype), zoo.example_input(name).to(dtype))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in zoo.model_names() if name not in QUICK])
def test_every_fresh_model(name: str) -> None:
    model = zoo.model(name)
    if sum(p.numel() for p in model.parameters()) > 4e8:
        pytest.skip("a model of this size needs more memory than the tests may use")
    assert_untouched(model, zoo.example_input(name, batch=1))


@pytest.mark.parametrize("inputs", [1, 2, 3])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.SiLU])
def test_few_inputs(inputs: int, activation: type[nn.Module]) -> None:
    """Over one or two inputs, rows of distinct channels are close to each other by chance."""
    torch.manual_seed(inputs)
    net = nn.Sequential(nn.Linear(inputs, 512), activation(), nn.Linear(512, 64), activation(), nn.Linear(64, 1)).eval()
    assert_untouched(net, torch.randn(2, inputs))


@pytest.mark.parametrize("seed", range(8))
def test_two_inputs_without_bias(seed: int) -> None:
    """Position biases of some transformers are made so: five hundred directions on one circle."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 512, bias=False), nn.ReLU(), nn.Linear(512, 4, bias=False)).eval()
    assert_untouched(net, torch.randn(2, 2))


def test_channels_that_training_gave_up_stay() -> None:
    """Trained networks have filters a million times smaller than the others, and hardly read them."""
    model = subject("resnet18")
    with torch.no_grad():
        for index, module in enumerate(module for module in model.modules() if isinstance(module, nn.Conv2d)):
            module.weight[:3] *= 10.0 ** -(3 + index % 4)
            module.weight[:, :3] *= 1e-5
    assert_untouched(model, zoo.example_input("resnet18"))


@pytest.mark.parametrize("side", ["rows", "columns"])
def test_weak_channels_stay(side: str) -> None:
    """Filters of ordinary size that are hardly read, and the other way round."""
    model = subject("resnet18")
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d) and module.weight.shape[1] > 3:
                rows = module.weight if side == "rows" else module.weight.transpose(0, 1)
                rows[:2] *= (
                    1e-4 * rows.flatten(1).norm(dim=1).median() / rows[:2].flatten(1).norm(dim=1).view(-1, 1, 1, 1)
                )
    assert_untouched(model, zoo.example_input("resnet18"))


def test_similar_filters_stay() -> None:
    """Filters that differ by a tenth are not copies."""
    model = subject("squeezenet1_1")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                noise = torch.randn(module.weight[0].shape, generator=generator)
                module.weight[1] = module.weight[0] + 0.1 * module.weight[0].std() * noise
    assert_untouched(model, zoo.example_input("squeezenet1_1"))


class Digits(nn.Module):
    """A small network to train: residual, depthwise, gate and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.n1 = conv(3, 16, bias=False), nn.BatchNorm2d(16)
        self.p, self.n2 = conv(16, 24, bias=False), nn.BatchNorm2d(24)
        self.q, self.n3 = conv(24, 16, bias=False), nn.BatchNorm2d(16)
        self.d, self.n4 = conv(16, 16, groups=16, bias=False), nn.BatchNorm2d(16)
        self.squeeze, self.excite = nn.Conv2d(16, 8, 1), nn.Conv2d(8, 16, 1)
        self.hidden, self.fc = nn.Linear(16 * 4 * 4, 48), nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.n1(self.stem(F.avg_pool2d(x, 4))))
        x = F.relu(x + self.n3(self.q(F.relu(self.n2(self.p(x))))))
        x = F.max_pool2d(F.silu(self.n4(self.d(x))), 2)
        x = x * torch.sigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))
        result: Tensor = self.fc(F.relu(self.hidden(x.flatten(1))))
        return result


@pytest.fixture(scope="module")
def trained() -> tuple[Digits, Tensor]:
    """A network trained on digits with strong weight decay, and an example."""
    data = zoo.dataset("digits")
    torch.manual_seed(0)
    model = Digits().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-3)
    batches = list(zip(data.train_images.split(64), data.train_labels.split(64), strict=True))
    for images, labels in itertools.islice(itertools.cycle(batches), 6 * len(batches)):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = float((model(data.test_images).argmax(1) == data.test_labels).float().mean())
    assert accuracy > 0.85, f"the network learned nothing: {accuracy:.2f}"
    return model, data.test_images[:2]


def test_trained_with_weight_decay(trained: tuple[Digits, Tensor]) -> None:
    assert_untouched(*trained)


def test_trained_in_half_precision(trained: tuple[Digits, Tensor]) -> None:
    model, example = trained
    assert_untouched(copy.deepcopy(model).half(), example.half())
    assert_untouched(copy.deepcopy(model).bfloat16().float(), example)


@pytest.mark.parametrize("amount", [0.3, 0.8])
def test_magnitude_pruned(trained: tuple[Digits, Tensor], amount: float) -> None:
    """Single weights masked in every row, the smallest ones."""
    model = copy.deepcopy(trained[0])
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d | nn.Linear) and module is not model.fc:
                rows = module.weight.flatten(1)
                rows[rows.abs() < rows.abs().quantile(amount, 1, keepdim=True)] = 0
    assert_untouched(model, trained[1])


def test_lottery_mask(trained: tuple[Digits, Tensor]) -> None:
    """One mask for whole layers, drawn by importance over the network; where it takes all of a row, that may go."""
    model = copy.deepcopy(trained[0])
    layers = [(module, "weight") for module in (model.p, model.q, model.hidden)]
    prune.global_unstructured(layers, prune.L1Unstructured, amount=0.6)
    for module, name in layers:
        prune.remove(module, name)
    empty = {name: int((~getattr(model, name).weight.flatten(1).any(1)).sum()) for name in ("p", "hidden")}
    report = recover(model, trained[1]).report
    gone = {s.name: s.before - s.after for s in report.spaces if s.before != s.after}
    assert gone == {name: number for name, number in empty.items() if number}
    assert all(decision.ambiguous for space in report.spaces for decision in space.decisions)
    assert not recover(model, trained[1], widths=Digits()).report.changed


def test_dead_relus(trained: tuple[Digits, Tensor]) -> None:
    """A unit that no image switches on is not one that nothing can switch on."""
    model = copy.deepcopy(trained[0])
    with torch.no_grad():
        model.n2.bias[:3] = -50.0
        model.hidden.bias[:5] = -80.0
    assert_untouched(model, trained[1])


def test_zero_initialised_branches() -> None:
    """Networks that start as the identity have norms of weight zero at the end of every branch."""
    model = zoo.model("resnet18")
    for name, parameter in model.named_parameters():
        if name.endswith("bn2.weight"):
            nn.init.zeros_(parameter)
    assert_untouched(model, zoo.example_input("resnet18"))


def masked(model: Digits, rows: int) -> Digits:
    """A copy in which whole rows of inner layers are masked."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for tensor in (model.p.weight, model.n2.weight, model.n2.bias, model.hidden.weight, model.hidden.bias):
            tensor[:rows] = 0
    return model


def test_masked_rows_are_ambiguous(trained: tuple[Digits, Tensor]) -> None:
    model = masked(trained[0], 4)
    result = recover(model, trained[1])
    gone = {s.name: s for s in result.report.spaces if s.before != s.after}
    assert {name: (s.before, s.after) for name, s in gone.items()} == {"p": (24, 20), "hidden": (48, 44)}
    for space in gone.values():
        assert all(decision.ambiguous for decision in space.decisions)
        assert [channel for decision in space.decisions for channel in decision.channels] == [0, 1, 2, 3]
    assert relative_error(outputs(result.model, trained[1]), outputs(model, trained[1])) < 1e-6


@pytest.mark.parametrize("form", ["model", "state dict", "meta"])
def test_masked_rows_stay_with_known_widths(trained: tuple[Digits, Tensor], form: str) -> None:
    model = masked(trained[0], 4)
    reference = Digits().to("meta") if form == "meta" else Digits()
    widths = reference.state_dict() if form == "state dict" else reference
    result = recover(model, trained[1], widths=widths)
    assert not result.report.changed
    for name, tensor in model.state_dict().items():
        assert torch.equal(result.model.state_dict()[name], tensor)
    kept = {s.name: s.kept_ambiguous for s in result.report.spaces if s.kept_ambiguous}
    assert kept == {"p": 4, "hidden": 4}


def test_unread_columns_of_a_clean_layer() -> None:
    """A channel that a mask keeps from being read goes, and is called ambiguous."""
    net = Net(lambda net, x: net.c(F.relu(net.b(F.relu(net.a(x))))), a=nn.Linear(9, 8), b=nn.Linear(8, 8),
              c=nn.Linear(8, 3)).eval()  # fmt: skip
    with torch.no_grad():
        net.get_parameter("b.weight")[:, 2] = 0
    result = recover(net, torch.randn(2, 9))
    (space,) = (s for s in result.report.spaces if s.before != s.after)
    (decision,) = space.decisions
    assert (space.name, decision.kind, decision.channels, decision.ambiguous) == ("a", "zero-out", (2,), True)
