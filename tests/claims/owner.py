"""An owner with everything that there is to commit to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from torch import nn

import canon
from canon import claims, watermarks
from canon.claims import Committed, Presented, Trust, Used
from tests.claims.authority import Authority

LATER = datetime.now(UTC) + timedelta(days=2)
"""When the disputes of these tests take place; the claims are made now."""

SUSPECT_DATE = datetime.now(UTC) + timedelta(days=1)


@dataclass
class Owner:
    """Everything that an owner has."""

    model: nn.Module
    layout_key: canon.LayoutKey
    watermark_key: watermarks.Key
    signer: Any
    authority: Authority

    def commit(self, **changes: Any) -> Committed:
        """A claim to all of it, stamped."""
        values = {"layout_key": self.layout_key, "watermark_keys": [self.watermark_key], **changes}
        made = claims.commit(values.pop("model", self.model), key=self.signer, **values)
        return Committed(made.claim.stamped(self.authority.stamp(made.claim.encode())), made.opening)

    @property
    def used(self) -> Used:
        return Used(self.model, None, [self.watermark_key])

    def trust(self, *more: Path, now: datetime = LATER, policies: tuple[str, ...] = ()) -> Trust:
        return Trust.load([self.authority.root_file, *more], now=now, policies=policies)

    def present(self, made: Committed, **changes: Any) -> Presented:
        values = {"suspect_date": SUSPECT_DATE, "suspect_date_source": "upload record", **changes}
        return Presented(made.claim, made.opening, values.pop("trust", self.trust()), **values)
