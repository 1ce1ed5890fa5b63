"""A suspect's tensors, some of them written anew during a walk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from canon.graph.tensors import StoredTensors, shape_of


class Changed(StoredTensors):
    """A model's tensors, with some in the place of its own; shapes stay."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.given, self.changed = tensors, dict[str, Tensor]()

    def __getitem__(self, name: str) -> Tensor:
        return self.changed[name] if name in self.changed else self.given[name]

    def put(self, name: str, here: slice, values: Tensor) -> None:
        """Write some rows of a tensor."""
        tensor = self[name].detach().clone()
        tensor[here] = values.to(tensor)
        self.changed[name] = tensor

    def shape(self, name: str) -> torch.Size:
        """A tensor's shape."""
        return shape_of(self.given, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.given)

    def __len__(self) -> int:
        return len(self.given)
