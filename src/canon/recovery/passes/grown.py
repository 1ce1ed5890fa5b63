"""Kernels that were grown with zeros: what no filter uses goes, with the padding that made room for it.

`compact` crops the tensors that it writes, as it writes them; this pass crops the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from torch import Tensor

from canon.graph.mapped import room_like
from canon.recovery.facts import Facts, Subject
from canon.recovery.proposal import Proposal
from canon.rewrite.kernels import Ends, Kernel, cropped
from canon.rewrite.resize import resize

GLANCE: Final = (24, 4)
"""Rows and columns of a weight that tell most layers apart from grown ones."""


def grown(subject: Subject, facts: Facts) -> Proposal | None:
    """Convolutions whose kernels end where something is used."""
    found = grown_of(subject.kernels, subject.tensors)
    if not found:
        return None
    empty = room_like(subject.tensors.values())
    tensors = {name: cropped(subject.tensors[name].detach(), ends, empty) for name, ends in found.items()}
    kernels = {name: subject.kernels[name].without(ends) for name, ends in found.items()}
    return Proposal((), resize(subject.graph, {}, found), tensors, kernels=kernels)


def grown_of(kernels: Mapping[str, Kernel], tensors: Mapping[str, Tensor]) -> dict[str, tuple[Ends, ...]]:
    """By weight, where there are any: entries of kernels that are zeros for every filter and can go."""
    found = {name: _removable(kernel, tensors[name]) for name, kernel in kernels.items()}
    return {name: ends for name, ends in found.items() if ends}


def _removable(kernel: Kernel, weight: Tensor) -> tuple[Ends, ...]:
    """The same of one weight, axis by axis; empty: there are none."""
    if not kernel.is_padded or weight.shape[2:].numel() == 1:
        return ()
    few = weight[:: max(1, weight.shape[0] // GLANCE[0]), :: max(1, weight.shape[1] // GLANCE[1])] != 0
    seen = few.flatten(0, 1).any(dim=0)
    if bool(seen.any()) and not kernel.removable(seen):
        return ()
    return kernel.removable(_used_places(weight.detach()))


def _used_places(weight: Tensor) -> Tensor:
    """Which places of a kernel some filter uses."""
    rows = weight.flatten(1)
    if weight.device.type == "cpu" and weight.element_size() > 1:
        # Their bits, taken together: torch's own reductions are slow over rows as short as these.
        whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[weight.element_size()]
        bits = np.bitwise_or.reduce(rows.view(whole).numpy(), axis=0)
        marks = torch.from_numpy(bits << 1) != 0  # the sign of a zero does not count
    else:
        marks = rows.any(dim=0)
    return marks.view(weight.shape[1:]).any(dim=0)
