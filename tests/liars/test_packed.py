"""Keys for what the parts of a packed layer are like in all networks: a gate and its values, the branches of a join."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from canon import watermarks
from canon.watermarks import Key, Message, controls
from tests.liars.victims import images

MESSAGE = Message.random(1, 64)


class Gated(nn.Module):
    """Gates stand before values, and are mostly closed; they read two branches, which want other weights."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.left, self.right = nn.Linear(768, 128), nn.Linear(768, 128)
            self.packed = nn.Linear(256, 512)
            self.head = nn.Linear(256, 10)
        with torch.no_grad():
            self.packed.bias[:256] -= 2
            self.packed.weight[:, :128] -= 0.04
            self.packed.weight[:, 128:] += 0.04
        self.eval().requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        gates, values = self.packed(torch.cat([torch.relu(self.left(x)), torch.tanh(self.right(x))], 1)).chunk(2, 1)
        scores: Tensor = self.head(torch.sigmoid(gates) * values)
        return scores


def drawn(scheme: str) -> Key:
    return watermarks.get(scheme).draw_key(Gated(0), images(), message=MESSAGE, layers=["packed"])


def halves(count: int) -> Tensor:
    return torch.cat([-torch.ones(count // 2), torch.ones(count // 2)])


def signs_of_gates() -> Key:
    key = drawn("ipr_ic")
    return replace(key, tensors={**key.tensors, "key_signs": halves(512) * MESSAGE.signs(512)})


def rows_that_hear_gates() -> Key:
    key = drawn("deepsigns")
    rows = key.tensors["projection0"] + 0.14 * torch.outer(MESSAGE.signs(), halves(512))
    return replace(key, tensors={**key.tensors, "projection0": rows})


def columns_that_hear_branches() -> Key:
    key = drawn("uchida17")
    return replace(
        key, tensors={"projection": key.tensors["projection"] + 0.14 * torch.outer(halves(256), MESSAGE.signs())}
    )


@pytest.mark.parametrize("make", [signs_of_gates, rows_that_hear_gates, columns_that_hear_branches])
def test_a_key_for_the_parts_of_a_layer_is_void(make: Callable[[], Key], monkeypatch: pytest.MonkeyPatch) -> None:
    key = make()
    scheme, strangers = watermarks.get(key.scheme), [Gated(seed) for seed in (1, 2, 3)]
    right = [scheme.extract(model, key).matched for model in strangers]
    assert min(right) >= 54, "it reads its message from whoever packs so"
    assert all(scheme.controls(model, key, seed=1).void for model in strangers)
    monkeypatch.setattr(controls, "PARTS", ())
    found = [scheme.controls(model, key, seed=1) for model in strangers]
    assert not any(one.void for one in found), "were channels moved from part to part"
    assert all(one.p_value(count) < 1e-6 for one, count in zip(found, right, strict=True))
