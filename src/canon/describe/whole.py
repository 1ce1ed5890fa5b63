"""Rows as they are, all their numbers, in given input coordinates: what sketches suggest is decided on these."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from canon.describe.arrays import Array
from canon.describe.coordinates import Coordinates
from canon.describe.sketch import columns_in
from canon.graph import LinearMap


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
    weight = tensors[linear.weight].detach().movedim((linear.row_axis, linear.column_axis), (0, 1))
    weight = weight.reshape(weight.shape[0], weight.shape[1], -1)
    count, inputs, kernel = weight.shape
    chosen = torch.from_numpy(rows).to(weight.device)
    picked = weight.index_select(0, chosen).double()
    named = columns_in(linear, inputs * linear.groups, coordinates)
    if named.factor is None:
        return picked.flatten(1)
    group = chosen // (count // linear.groups)
    picked *= torch.from_numpy(named.factor).to(picked.device).view(linear.groups, inputs)[group][..., None]
    index = torch.from_numpy(named.index).to(picked.device).view(linear.groups, inputs)
    total = picked.new_zeros(rows.size, named.size, kernel)
    if linear.groups == 1:
        return total.index_add_(1, index[0], picked).flatten(1)
    return total.scatter_add_(1, index[group][..., None].expand_as(picked), picked).flatten(1)
