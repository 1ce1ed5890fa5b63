"""Bad input is a typed error that says what is wrong, and nothing has changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import canon
from canon.errors import ExampleError, RecoveryError, TraceError, TrainingModeError, UnsupportedModelError, ZooError
from canon.recovery import recover
from canon.recovery.partition import Classes, Refinement
from canon.recovery.reduce import Plan
from tests.preservation import outputs, randomize, relative_error
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


def broken_reduction(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Recovery with a fault: whatever is written into `b.weight` is multiplied."""
    write = Plan.write

    def broken(self: Plan, *arguments: Any) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in write(self, *arguments):
            yield name, tensor * factor if name == "b.weight" else tensor

    monkeypatch.setattr(Plan, "write", broken)


@pytest.mark.parametrize("factor", [1.5, float("nan")])
def test_a_wrong_merge_is_taken_back(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Two spaces hold copies; the merge in one of them goes wrong, and costs that space alone."""
    draft = Draft(chain())
    draft.copy("a", 0, 0.5, 0.5)
    draft.copy("b", 0, 0.5, 0.5)
    model = draft.build()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert {s.name: s.after - s.before for s in recover(model, example()).report.spaces}["b"] == -1
    broken_reduction(monkeypatch, factor)
    result = recover(model, example())
    assert relative_error(outputs(result.model, example()), outputs(model, example())) < 1e-10
    assert result.report.agreement is None or result.report.agreement < 1e-10
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_wrong_merge_costs_one_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in how one space's classes are found leaves the others as compact as they can be."""
    draft = Draft(chain())
    draft.copy("a", 0, 0.5, 0.5)
    draft.copy("b", 0, 0.5, 0.5)
    model = draft.build()
    run = Refinement.run

    def wrong(self: Refinement) -> dict[int, Classes]:
        found = run(self)
        space = next(s for s in self.graph.spaces if s.name == "a")
        if not space.pins:
            everyone = torch.arange(space.width)
            found[space.id] = replace(found[space.id], leader=torch.where(everyone == 1, 0, found[space.id].leader))
        return found

    monkeypatch.setattr(Refinement, "run", wrong)
    report = recover(model, example()).report
    widths = {s.name: (s.before, s.after) for s in report.spaces}
    assert widths["a"][0] == widths["a"][1]
    assert widths["b"][0] == widths["b"][1] + 1
    assert report.agreement is not None
    assert report.agreement < 1e-10
