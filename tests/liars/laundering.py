"""A reference that is somebody's model in another order and other scales, so that an honest key reads as wished.

The key was drawn before anybody knew the model. Alignment takes over a reference's order and scales, so the key reads
from the model as well, once it stands in them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from canon import watermarks
from canon.graph import trace
from canon.rewrite import SpaceRewrite, rewrite
from canon.watermarks import Key
from canon.watermarks.reading import Reader

MOVES = 3000
CLEAR = 0.1
"""How clear a bit is to be, beside the typical one."""


def laundered(model: nn.Module, key: Key, example: Tensor) -> nn.Module:
    """The same function, in orders and scales found by trying: two channels change places, or one changes its scale.

    One forger for all schemes: he needs nothing but to read his own key.
    """
    graph, generator = trace(model, example), torch.Generator().manual_seed(0)
    unit = float(_scores(model, key, example).abs().mean())
    best, short = model, torch.inf
    for turn in range(MOVES):
        space = graph.free[int(torch.randint(len(graph.free), (1,), generator=generator))]
        first, second = torch.randint(space.width, (2,), generator=generator).tolist()
        order = torch.arange(space.width)
        order[first], order[second] = second, first
        change = SpaceRewrite.permutation(order)
        taps = [tap for tap in graph.space_taps(space) if tap not in graph.fixed_taps]
        if turn % 2 and taps:
            tap, scale = taps[turn // 2 % len(taps)], torch.ones(space.width, dtype=torch.float64)
            scale[first] = 3 ** (2 * float(torch.rand((), generator=generator)) - 1)
            scale[first] *= -1 if tap in graph.signed_taps and turn % 4 == 1 else 1
            change = SpaceRewrite.scaling(space.width, {tap: scale})
        tried = rewrite(best, graph, {space.id: change})
        missing = float((CLEAR - _scores(tried, key, example) / unit).clamp(min=0).sum())
        if missing < short:
            best, short = tried, missing
        if short == 0:
            break
    return best


def _scores(model: nn.Module, key: Key, example: Tensor) -> Tensor:
    """Above zero where a bit reads as it should."""
    reading = watermarks.get(key.scheme).read(Reader(model, example), key)
    return reading.scores * (key.message if reading.expected is None else reading.expected).signs()
