"""Channels that training gave up: everything of them is next to nothing, what makes them and what reads them.

Weight decay leaves a filter of 1e-8 and columns as small, and some of their numbers are zero in the end. A dummy has
one of the two as loud as others have it, or zero from the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from canon.graph import Space
from canon.recovery.facts.magnitudes import sums_over_kernels
from canon.recovery.facts.subject import Subject
from canon.recovery.partition import Classes
from canon.rewrite.axes import by_row

ORDINARY: Final = 1e-2
"""A part of the median that nothing small comes near."""

SAMPLE: Final = 32
"""Channels that tell what is ordinary."""


def given_up(subject: Subject, classes: Mapping[int, Classes]) -> dict[int, Tensor]:
    """By space that has any: channels that are constant, and may be the owner's all the same."""
    found = {}
    for space in subject.narrowing:
        still = torch.nonzero(classes[space.id].null | classes[space.id].constant).flatten()
        if still.numel():
            rows = _rows(subject, space)
            columns = [subject.columns(space, consumer).transpose(0, 1) for consumer in space.consumers]
            little = torch.stack([_shares(part, still) for part in (*rows, *columns)]).amax(dim=0) <= ORDINARY
            made = torch.stack([part[still.to(part.device)].flatten(1).any(dim=1).cpu() for part in rows]).any(dim=0)
            channels = still[little & made]
            if channels.numel():
                found[space.id] = torch.zeros(space.width, dtype=torch.bool).index_fill_(0, channels, True)
    return found


def _rows(subject: Subject, space: Space) -> list[Tensor]:
    found = []
    for producer in space.producers:
        linear = subject.graph.maps[producer.map]
        rows = by_row(subject.tensors[linear.weight], linear)
        part = rows[producer.offset : producer.offset + space.width * producer.repeat]
        found.append(part.reshape(space.width, -1, rows.shape[2]))
    return found


def _shares(vectors: Tensor, channels: Tensor) -> Tensor:
    """How large some channels' kernels are, relative to ordinary ones: in the median, where dummies do not count."""

    def typical(part: Tensor) -> Tensor:
        return sums_over_kernels(part).median(dim=1).values.double().cpu()

    usual = typical(vectors[:: max(1, len(vectors) // SAMPLE)]).median()
    picked = typical(vectors[channels.to(vectors.device)])
    return picked / usual if usual > 0 else torch.full_like(picked, torch.inf)
