"""Bad input is a typed error that says what is wrong, and nothing has changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import canon
from canon.errors import ExampleError, RecoveryError, TraceError, TrainingModeError, UnsupportedModelError, ZooError
from canon.recovery import pipeline as pipeline_module
from canon.recovery import recover
from canon.recovery import reduce as reduce_module
from canon.recovery.outcome import Reduction
from tests.preservation import randomize
from tests.recovery.small import Chain, Draft, Small, example


def chain() -> Small:
    model = randomize(Chain(), seed=3)
    assert isinstance(model, Small)
    return model


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["a.weight", "b.weight", "nb.running_var", "fc.weight", "fc.bias"])
def test_numbers_that_are_not_finite(name: str, value: float) -> None:
    model = chain()
    model.state_dict()[name].view(-1)[0] = value
    with pytest.raises(UnsupportedModelError, match=f"NaN or infinity.*{name}"):
        recover(model, example())


def test_a_layer_without_channels() -> None:
    with pytest.warns(UserWarning, match="zero-element"):
        model = nn.Sequential(nn.Linear(4, 0), nn.ReLU(), nn.Linear(0, 2)).eval()
    with pytest.raises(UnsupportedModelError, match=r"shape \(0, 4\) is empty"):
        recover(model, torch.zeros(1, 4))


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        return self.fc(x) if float(x.sum()) > 0 else self.fc(-x)


def test_a_forward_pass_that_cannot_be_traced() -> None:
    with pytest.raises(TraceError):
        recover(Untraceable().eval(), torch.zeros(1, 4))


def test_a_wrong_example() -> None:
    with pytest.raises(ExampleError):
        recover(chain(), torch.zeros(1, 5, 7, 7, dtype=torch.float64))


def test_training_mode() -> None:
    with pytest.raises(TrainingModeError):
        recover(chain().train(), example())


def test_an_unknown_method() -> None:
    with pytest.raises(RecoveryError, match=r"unknown recovery method 'magic'.*exact, probe"):
        recover(chain(), example(), method="magic")


def test_widths_of_another_model() -> None:
    with pytest.raises(RecoveryError, match="name none of the model's layers"):
        recover(chain(), example(), widths={"other.weight": torch.zeros(3, 3)})
    with pytest.raises(ZooError, match="resnet1"):
        canon.recover(chain(), example(), widths="resnet1")


def test_a_broken_reduction_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a fault in recovery itself, the check says so with both figures, and the input is as it was."""
    draft = Draft(chain())
    draft.copy("a", 0, 0.5, 0.5)
    model = draft.build()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    reduce = reduce_module.reduce

    def broken(*arguments: Any) -> Reduction:
        found = reduce(*arguments)
        found.tensors["b.weight"] = found.tensors["b.weight"] * 1.5
        return found

    monkeypatch.setattr(pipeline_module, "reduce", broken)
    number = r"\d[\d.e+-]*"
    words = f"differs from the input model: largest output {number}, largest difference {number}, allowed {number}"
    with pytest.raises(RecoveryError, match=words):
        recover(model, example())
    assert recover(model, example(), sanity_check=False).report.agreement is None
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_outputs_that_are_not_finite_do_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = Draft(chain())
    draft.copy("a", 0, 0.5, 0.5)
    reduce = reduce_module.reduce

    def broken(*arguments: Any) -> Reduction:
        found = reduce(*arguments)
        found.tensors["b.weight"] = found.tensors["b.weight"] * float("nan")
        return found

    monkeypatch.setattr(pipeline_module, "reduce", broken)
    with pytest.raises(RecoveryError, match="largest difference nan"):
        recover(draft.build(), example())
