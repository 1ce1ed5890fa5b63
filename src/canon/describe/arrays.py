"""Decisions are made on the host, in float64, on figures of some hundred channels: numpy takes less time than torch.

Weights stay tensors, wherever they are; what is known of a channel is an array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

quiet = np.errstate(divide="ignore", invalid="ignore", over="ignore")
"""For functions in which a quotient may be undefined where it is not used."""


def norm(vectors: Array) -> Array:
    """Euclidean norms along the last axis."""
    return np.asarray(np.sqrt(np.einsum("...i,...i->...", vectors, vectors)))


def middle(values: Array) -> float:
    """The number in the middle; of an even count the upper one. Many times as fast as a median of few numbers."""
    return float(np.partition(values, values.size // 2)[values.size // 2])
