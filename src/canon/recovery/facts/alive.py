"""What is read at all, where some channels are taken to be gone.

Dummies wait for each other: those of one space are read by those of the next, and these by the first again where a
stream goes round. So a pass assumes that all its candidates are gone, asks what is alive then, and looks whether they
are useless to that; those that are not come back, until nothing changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from canon.describe import Array
from canon.graph import LinearMap
from canon.recovery.facts.subject import Subject
from canon.recovery.liveness import find_live
from canon.rewrite.axes import by_row


class Alive:
    """Channels that something alive reads."""

    def __init__(self, subject: Subject, gone: Mapping[int, Array]) -> None:
        self._gone = gone
        widths = {space.id: space.width for space in subject.graph.spaces}
        reads = {
            index: partial(self._reads, linear, subject.tensors[linear.weight])
            for index, linear in enumerate(subject.graph.maps)
        }
        self._live = find_live(subject.graph, widths, reads, {})

    def rows(self, linear: LinearMap) -> Tensor:
        """Rows of a layer that count."""
        parts = []
        for segment in linear.rows:
            live = self._live[segment.space]
            if segment.space in self._gone:
                live = live & ~torch.from_numpy(self._gone[segment.space])
            parts.append(live.repeat_interleave(segment.repeat))
        return torch.cat(parts)

    def _reads(self, linear: LinearMap, weight: Tensor, rows: Tensor) -> Tensor:
        gone = [
            torch.from_numpy(self._gone[s.space]) if s.space in self._gone else torch.zeros(s.length // s.repeat).bool()
            for s in linear.rows
        ]
        marks = [part.repeat_interleave(s.repeat) for part, s in zip(gone, linear.rows, strict=True)]
        counted = rows & ~torch.cat(marks).view(rows.shape)
        source = by_row(weight, linear)
        source = source.reshape(linear.groups, -1, *source.shape[1:])
        read = [
            part[mark.to(part.device)].ne(0).any(dim=2).any(dim=0) for part, mark in zip(source, counted, strict=True)
        ]
        return torch.stack(read).cpu()


def settled(gone: Mapping[int, Array], found: Mapping[int, Array]) -> bool:
    """Whether nothing came back."""
    return gone.keys() == found.keys() and all(np.array_equal(gone[space], found[space]) for space in gone)
