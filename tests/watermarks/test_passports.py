"""What the passport schemes do to weights beside the loss."""

from __future__ import annotations

import torch

from canon.watermarks import Message
from canon.watermarks.interface import Target
from canon.watermarks.layers import layer_weight
from canon.watermarks.passport_aware import CLOSE, TransformedBranch
from tests.watermarks.small import small_digits, small_net


def test_scales_on_the_wrong_side_move_even_if_the_optimiser_does_not_move_them() -> None:
    model = small_net()
    generator = torch.Generator().manual_seed(0)
    target = Target(model, small_digits(), ("conv1", "conv2", "conv3"), Message.random(0, 128), generator)
    branch = TransformedBranch(target)

    def agreement() -> torch.Tensor:
        scales = [
            layer_weight(model, layer).flatten(1) @ branch.get_buffer(f"scale{position}")
            for position, layer in enumerate(branch.norms)
        ]
        return torch.cat(scales).detach() * branch.get_buffer("signs")

    before = agreement()
    kept = {name: value.detach().clone() for name, value in model.state_dict().items()}
    branch.after_step(model)
    after = agreement()
    wrong = before < CLOSE
    assert 0 < int(wrong.sum()) < wrong.numel()
    assert bool((after > before)[wrong].all())
    assert torch.equal(after[~wrong], before[~wrong])
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, kept[name])}
    assert moved == {"conv1.weight", "conv2.weight", "conv3.weight"}
    for _ in range(200):
        branch.after_step(model)
    assert bool((agreement() >= CLOSE).all())
