"""Random networks: whatever a trace calls free keeps the function under every rewrite."""

from __future__ import annotations

import torch
from hypothesis import given
from torch import nn

from tests.preservation import check_preserved, randomize
from tests.strategies import networks

EXAMPLE = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@given(networks())
def test_free_spaces_keep_the_function(network: nn.Module) -> None:
    check_preserved(randomize(network), EXAMPLE, one_by_one=False)
