"""Turned residual streams compute the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import canon
from canon.errors import AttackError
from canon_benchmarks.families import FAMILIES, build
from tests.preservation import assert_same_function, outputs, randomize

WIDTH = 12
IDS = torch.arange(24).reshape(2, 12)


class Stream(nn.Module):
    """Two MLPs on a stream, behind norms of one kind."""

    def __init__(self, norm: Callable[[], nn.Module], tied: bool = False, after: bool = False) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(30, WIDTH), nn.Linear(WIDTH, 30, bias=False)
        self.norms = nn.ModuleList(norm() for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(WIDTH, 20) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(20, WIDTH) for _ in range(2))
        self.after = after
        if tied:
            self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for norm, up, down in zip(self.norms[:2], self.up, self.down, strict=True):
            inner = x if self.after else norm(x)
            x = x + down(torch.nn.functional.silu(up(inner)))
            x = norm(x) if self.after else x
        result: Tensor = self.head(self.norms[2](x))
        return result


@pytest.mark.parametrize(
    "norm",
    [
        lambda: nn.RMSNorm(WIDTH),
        lambda: nn.RMSNorm(WIDTH, elementwise_affine=False),
        lambda: nn.LayerNorm(WIDTH),
        lambda: nn.LayerNorm(WIDTH, bias=False),
    ],
    ids=["rms", "rms without factors", "layer", "layer without shifts"],
)
@pytest.mark.parametrize("seed", range(2))
def test_the_function_stays(norm: Callable[[], nn.Module], seed: int) -> None:
    model = randomize(Stream(norm))
    turned = canon.attack(model, IDS, "turned_streams", seed=seed, permute=False, scale=False).model
    assert_same_function(turned, outputs(model, IDS), IDS, f"seed {seed}")
    table = turned.get_parameter("table.weight")
    gram = model.get_parameter("table.weight") @ model.get_parameter("table.weight").T
    torch.testing.assert_close(table @ table.T, gram)
    assert not torch.allclose(table.abs().sort(1)[0], model.get_parameter("table.weight").abs().sort(1)[0], atol=0.01)


@pytest.mark.parametrize("options", [{"tied": True}, {"after": True}], ids=str)
def test_what_fixes_the_channels_is_seen(options: dict[str, bool]) -> None:
    with pytest.raises(AttackError, match="no place"):
        canon.attack(randomize(Stream(lambda: nn.RMSNorm(WIDTH), **options)), IDS, "turned_streams")


def test_a_family() -> None:
    model, example = build(FAMILIES["GPT-NeoX"])
    model = randomize(model)
    turned = canon.attack(model, example, "turned_streams", permute=False, scale=False).model
    assert_same_function(turned, outputs(model, example), example, "GPT-NeoX")
