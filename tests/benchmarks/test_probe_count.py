"""How much of the duplicates activations alone show."""

from __future__ import annotations

import torch
from torch import nn

from canon_benchmarks.measures.probing import study


def test_more_probes_show_more_and_link_nothing_wrong() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.Flatten(), nn.Linear(12 * 36, 5)).eval()
    few, many = study(net, torch.zeros(1, 3, 8, 8), (2, 64))
    # ⌈0.3 · 12⌉ = 4 of a clique, then ⌈0.3 · 16⌉ = 5 of a split: three and five of them follow another.
    assert few["duplicates"] == many["duplicates"] == 8
    assert few["found"] < many["found"] == 1.0
    assert few["wrong_links"] == many["wrong_links"] == 0
