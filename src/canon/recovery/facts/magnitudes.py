"""Norms of rows, columns and norms' weights, read once: they tell in which spaces something is unusually small."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from canon.describe import Array, Parameters
from canon.graph import Consumer, Space
from canon.recovery.facts.subject import Subject, by_row


class Magnitudes:
    """How large the weights of layers are, row by row and column by column."""

    def __init__(self, subject: Subject, parameters: Parameters) -> None:
        self._subject, self._parameters = subject, parameters
        self._columns: dict[str, Array] = {}
        self._rows: dict[str, Array] = {}

    def after(self, tensors: Mapping[str, Tensor]) -> Magnitudes:
        """The same when some tensors have changed."""
        result = Magnitudes(self._subject.with_tensors(tensors), self._parameters)
        result._columns = {name: known for name, known in self._columns.items() if name not in tensors}
        result._rows = {name: known for name, known in self._rows.items() if name not in tensors}
        return result

    def columns(self, space: Space, consumer: Consumer) -> Array:
        """By channel: the norm of the columns with which a layer reads it."""
        linear = self._subject.graph.maps[consumer.map]
        if linear.weight not in self._columns:
            rows = by_row(self._subject.tensors[linear.weight], linear)
            rows = rows.reshape(linear.groups, -1, *rows.shape[1:])
            self._columns[linear.weight] = _norms(rows, (1, 3)).ravel()
        part = self._columns[linear.weight][consumer.offset : consumer.offset + space.width * consumer.repeat]
        return np.asarray(part.reshape(space.width, -1).max(axis=1))

    def rows(self, name: str, index: int) -> Array:
        """The norm of every row of a layer."""
        if name not in self._rows:
            self._rows[name] = _norms(by_row(self._subject.tensors[name], self._subject.graph.maps[index]), (1, 2))
        return self._rows[name]

    def suspicious(self, space: Space, part: float) -> bool:
        """Whether some row, column or norm is so much smaller than most."""
        found = [self.columns(space, consumer) for consumer in space.consumers]
        for producer in space.producers:
            rows = self.rows(self._subject.graph.maps[producer.map].weight, producer.map)
            found.append(rows[producer.offset : producer.offset + space.width * producer.repeat])
        for stage in space.stages:
            if "weight" in stage.params and stage.kind != "slope":
                weight = np.abs(self._parameters.array(stage.params["weight"]))
                if weight.ndim == 1:
                    found.append(weight[stage.offset : stage.offset + space.width * stage.repeat])
        return any(bool(sizes.min() <= part * np.median(sizes)) for sizes in found)


def _norms(weight: Tensor, axes: tuple[int, ...]) -> Array:
    wide = torch.promote_types(weight.dtype, torch.float32)
    return np.asarray(torch.linalg.vector_norm(weight, dim=axes, dtype=wide).double().cpu().numpy())
