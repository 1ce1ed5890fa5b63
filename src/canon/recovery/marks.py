"""Which row reads which column of a layer, in as little memory as that takes.

Often some rows read some columns and that is all there is to say: then two short lists say it. Otherwise a bit per row
and column is kept on the host, a byte on a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Marks:
    """Marks on `groups x rows x columns`."""

    rows: Tensor
    """`groups x rows`: rows with a mark."""

    columns: Tensor
    """`groups x columns`: columns with a mark."""

    full: Tensor | np.ndarray[Any, Any] | None
    """Every mark, or its bits; None where each marked row marks each marked column."""

    @staticmethod
    def of(full: Tensor) -> Marks:
        """From every mark, as booleans."""
        # As small numbers: for booleans `any` over an axis is twenty times slower.
        small = full.view(torch.uint8)
        rows, columns = small.amax(dim=2).bool().cpu(), small.amax(dim=1).bool().cpu()
        expected = int((rows.sum(dim=1) * columns.sum(dim=1)).sum())
        if int(torch.count_nonzero(full)) == expected:
            return Marks(rows, columns, None)
        return Marks(rows, columns, full if full.device.type != "cpu" else np.packbits(full.numpy(), axis=2))

    def tensor(self) -> Tensor:
        """Every mark."""
        if self.full is None:
            return self.rows[:, :, None] & self.columns[:, None]
        if isinstance(self.full, Tensor):
            return self.full
        bits = np.unpackbits(self.full, axis=2, count=self.columns.shape[1])
        return torch.from_numpy(bits).view(torch.bool)

    def read(self, live: Tensor) -> Tensor:
        """Columns that some of the rows mark, `groups x columns`; `live` is `groups x rows`."""
        if bool(live.all()):
            return self.columns
        if self.full is None:
            return self.columns & (self.rows & live).any(dim=1, keepdim=True)
        full = self.tensor()
        return (full & live.to(full.device)[:, :, None]).view(torch.uint8).amax(dim=1).bool().cpu()

    def without(self, gone: Tensor) -> Marks:
        """Without some columns, `groups x columns`."""
        if self.full is None:
            return Marks(self.rows, self.columns & ~gone, None)
        full = self.tensor()
        return Marks.of(full & ~gone.to(full.device)[:, None])
