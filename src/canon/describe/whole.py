"""Rows as they are, all their numbers, in given input coordinates: what sketches suggest is decided on these."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from canon.describe.arrays import Array
from canon.describe.coordinates import Coordinates
from canon.describe.sketch import columns_in
from canon.graph import LinearMap
from canon.rewrite.axes import by_row
from canon.transforms import ChannelTransform


def whole_rows(
    linear: LinearMap, tensors: Mapping[str, Tensor], coordinates: Mapping[int, Coordinates], rows: Array
) -> Tensor:
    """Some rows of a layer, `rows x numbers`, float64, with columns of one coordinate added up.

    Args:
        linear: The layer.
        tensors: The model's tensors by name.
        coordinates: By space id; must hold every space that the layer reads.
        rows: Numbers of rows.
    """
    weight = by_row(tensors[linear.weight], linear)
    count, inputs, kernel = weight.shape
    named = columns_in(linear, inputs * linear.groups, coordinates)
    picked = weight.index_select(0, torch.from_numpy(rows).to(weight.device))
    if named.factor is None:
        return picked.double().flatten(1)
    everyone, group = torch.arange(inputs), rows // (count // linear.groups)
    total = torch.zeros(rows.size, named.size, kernel, dtype=torch.float64, device=weight.device)
    for number in np.unique(group):
        there = slice(number * inputs, (number + 1) * inputs)
        index, factor = torch.from_numpy(named.index[there]), torch.from_numpy(named.factor[there])
        classes = ChannelTransform(inputs, named.size, everyone, index, factor).to(weight.device)
        if linear.groups == 1:
            return classes.summed(picked, 1).flatten(1)
        mine = torch.from_numpy(np.flatnonzero(group == number)).to(weight.device)
        total[mine] = classes.summed(picked[mine], 1)
    return total.flatten(1)
