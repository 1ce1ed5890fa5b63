"""The paper's tables as they were published."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

from canon.bench.tables.common import ATTACKS

Published = dict[str, Any]


@functools.cache
def _tables() -> dict[str, list[Published]]:
    text = (files("canon_benchmarks") / "paper_tables.toml").read_text(encoding="utf-8")
    found: dict[str, list[Published]] = tomllib.loads(text)
    return found


def published_similarity(row: Published, place: int) -> str:
    """One cell of a published row: under attack, after recovery, and in brackets by Tier 2."""
    return f"{row['attacked'][place]:.4f}→{row['recovered'][place]:.4f} ({row['tier2'][place]:.4f})"


def published(kind: str, **wanted: object) -> Published | None:
    """The row of the paper that agrees with all that is wanted.

    >>> published("recovery", dataset="mnist", model="resnet18", scheme="riga21", ratio=0.2, camouflage=True)["clean"]
    0.9766
    """
    return next(iter(published_rows(kind, **wanted)), None)


def published_rows(kind: str, **wanted: object) -> list[Published]:
    """All rows of the paper that agree with all that is wanted."""
    return [row for row in _tables()[kind] if all(row.get(name) == value for name, value in wanted.items())]


def published_cells(attacks: Sequence[str], cell: Callable[[int], str]) -> list[str]:
    """A published row's cell for each attack, by its place in the paper; nothing for an attack that it has not."""
    places = list(ATTACKS)
    return [cell(places.index(attack)) if attack in ATTACKS else "" for attack in attacks]
