"""Cases that train small networks of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from canon.bench.cases import Case, OfTrained, one_of


@dataclass(frozen=True, kw_only=True)
class Start(Case):
    """A common start, or theft: everybody around one owner, held against the owner's model."""

    kind: ClassVar[str] = "start"

    network: str
    """One of `measures.start.NETWORKS`."""

    optimiser: str
    """One of `measures.start.RATES`."""


@dataclass(frozen=True, kw_only=True)
class Wrong(Case):
    """P-values of keys that are not the owner's."""

    kind: ClassVar[str] = "wrong"

    scheme: str
    keys: str
    """`drawn` for other models, or `trained` on them, where keys are trained."""

    count: int

    def check(self) -> None:
        """See `Case`."""
        from canon import watermarks

        one_of("scheme", self.scheme, watermarks.names())
        one_of("sort of wrong keys", self.keys, ("drawn", "trained"))


@dataclass(frozen=True, kw_only=True)
class Extractor(Case):
    """To whom an extractor of riga21 says its message."""

    kind: ClassVar[str] = "extractor"

    weight: float
    """Of unmarked vectors in its loss: 0, where it never sees one; 10, as in `canon.watermarks`."""

    seed: int


@dataclass(frozen=True, kw_only=True)
class Probing(OfTrained):
    """How many of a trained network's duplicates the probes alone find."""

    kind: ClassVar[str] = "probing"
