"""turned_streams: residual streams behind norms of whole vectors, in another orthogonal basis."""

from __future__ import annotations

from typing import Any, ClassVar, Final, final

import torch
from torch import Tensor, nn

from canon.attacks.prepared import Prepared
from canon.attacks.probes import difference, probes_like
from canon.graph import trace
from canon.graph.experts import channel_tensors
from canon.graph.streams import Stream, streams_of
from canon.rewrite.streams import turn_stream

STAYS: Final = 1e-4
"""Outputs may move by so much: rounding, in float32."""


@final
class TurnedStreams(Prepared):
    """Norms pass their factors on to what reads them, and the stream is turned: `W_out ← R·W_out`, `W_in ← W_in·Rᵀ`.

    The turn keeps the mean of all channels where a norm takes that off. Whether a stream may be turned is tried.
    """

    name: ClassVar[str] = "turned_streams"

    def change(self, model: nn.Module, example: Any, ratio: float, generator: torch.Generator) -> nn.Module | None:
        """Turn all streams that may be."""
        changed = None
        for stream in streams_of(trace(model, example)):
            given = model if changed is None else changed
            tried = (_turned(given, example, stream, keep, generator) for keep in (False, True))
            probes = probes_like(example, 0)
            changed = next((one for one in tried if difference(given, one, probes) <= STAYS), changed)
        return changed


def _turned(model: nn.Module, example: Any, stream: Stream, keep: bool, generator: torch.Generator) -> nn.Module:
    graph = trace(model, example)
    tensors = channel_tensors(model, graph.orders)
    ones = {name: torch.ones_like(tensors[name]) for name in stream.gains}
    return turn_stream(model, graph, stream, _orthogonal(stream.width, keep, generator), ones)


def _orthogonal(width: int, keep: bool, generator: torch.Generator) -> Tensor:
    """A random turn; with `keep`, one that leaves the mean of all entries."""
    drawn = torch.randn(width, width, generator=generator, dtype=torch.float64)
    found: Tensor = torch.linalg.qr(drawn).Q
    if not keep:
        return found
    mean = torch.ones(width, 1, dtype=torch.float64)
    basis = torch.linalg.qr(torch.cat([mean, drawn[:, 1:]], 1)).Q
    inner = torch.block_diag(torch.ones(1, 1, dtype=torch.float64), torch.linalg.qr(drawn[1:, 1:]).Q)
    kept: Tensor = basis @ inner @ basis.T
    return kept
