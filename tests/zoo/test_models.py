"""Models by name, and the import that must work beside a torch of another build."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from canon import zoo
from canon.errors import ZooError


@pytest.mark.parametrize("name", zoo.PAPER_MODELS)
def test_paper_models_run_at_their_input_size(name: str) -> None:
    network = zoo.model(name, classes=7)
    assert not network.training, "a built model is ready to be traced"
    with torch.no_grad():
        assert network(zoo.example_input(name)).shape == (2, 7)


def test_inception_is_fed_its_smallest_legal_size() -> None:
    network = zoo.model("inception_v3")
    assert zoo.input_size("inception_v3") == 75
    with pytest.raises(RuntimeError):
        network(torch.zeros(1, 3, 74, 74))


def test_timm_models_by_prefix_and_by_bare_name() -> None:
    assert type(zoo.model("timm:resnet18")) is not type(zoo.model("resnet18"))
    with torch.no_grad():
        name = "mobilenetv4_conv_small"
        assert zoo.model(name)(zoo.example_input(name)).shape == (2, 10)


def test_a_stem_for_small_images_keeps_the_resolution() -> None:
    usual, small = zoo.model("resnet18"), zoo.model("small:resnet18", classes=7)
    images = zoo.example_input("small:resnet18")
    assert images.shape[-1] == 32
    sizes = []
    small.layer1.register_forward_pre_hook(lambda _layer, inputs: sizes.append(inputs[0].shape[-1]))  # type: ignore[union-attr]
    with torch.no_grad():
        assert small(images).shape == (2, 7)
    assert sizes == [32], "neither a stride nor a pooling before the first stage"
    state = small.state_dict()
    assert state["conv1.weight"].shape == (64, 3, 3, 3)
    assert set(state) == set(usual.state_dict())
    again, other = (zoo.model("small:resnet18", classes=7, seed=seed).state_dict() for seed in (0, 1))
    assert torch.equal(state["conv1.weight"], again["conv1.weight"])
    assert not torch.equal(state["conv1.weight"], other["conv1.weight"])


@pytest.mark.parametrize("name", ["small:densenet121", "small:resnet1818", "small:timm:resnet18", "small:"])
def test_only_residual_networks_have_a_small_stem(name: str) -> None:
    with pytest.raises(ZooError, match="no stem that is known here"):
        zoo.model(name)


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = zoo.model("resnet18", seed=3).state_dict()
    assert torch.equal(before, torch.random.get_rng_state()), "global state was disturbed"
    torch.manual_seed(2)
    again = zoo.model("resnet18", seed=3).state_dict()
    other = zoo.model("resnet18", seed=4).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["conv1.weight"], other["conv1.weight"])


def test_unknown_model_names_its_neighbours() -> None:
    with pytest.raises(ZooError, match="Did you mean resnet18"):
        zoo.model("resnet81")


def test_no_classes() -> None:
    with pytest.raises(ZooError, match="at least one class"):
        zoo.model("resnet18", classes=0)


def test_torchvision_imports_in_a_fresh_process() -> None:
    code = "import canon.zoo as z; z.import_torchvision().models.resnet18; z.import_timm()"
    subprocess.run([sys.executable, "-c", code], check=True)
